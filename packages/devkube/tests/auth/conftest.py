from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.auth.support import Guarded, guarded


@pytest.fixture
async def cluster() -> AsyncIterator[Guarded]:
    async with guarded() as running:
        yield running
