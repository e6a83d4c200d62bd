from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubelet.support import Cluster, cluster_on


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A server and one kubelet that is in a hurry."""
    async with cluster_on(tmp_path) as running:
        yield running
