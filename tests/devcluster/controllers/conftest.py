from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.devcluster.controllers.support import Cluster, cluster_on


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A server with all controllers, one node and a kubelet that pretends."""
    async with cluster_on(tmp_path) as running:
        yield running
