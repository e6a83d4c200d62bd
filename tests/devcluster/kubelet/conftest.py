from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.devcluster.kubelet.support import Cluster, cluster_on


@pytest.fixture(autouse=True)
def leak_guard(kubeloop_leak_guard: None) -> None:
    """A test that leaves anything behind fails."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A server and one kubelet that is in a hurry."""
    async with cluster_on(tmp_path) as running:
        yield running
