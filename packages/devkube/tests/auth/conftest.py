from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.auth.support import AuthCluster, guarded


@pytest.fixture
async def cluster() -> AsyncIterator[AuthCluster]:
    async with guarded() as running:
        yield running
