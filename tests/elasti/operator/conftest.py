from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.elasti.operator.rig import FakePrometheus, Rig, rig_on


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A dev cluster with our CRD and a resolver that pretends; no operator yet."""
    async with rig_on(tmp_path) as made:
        yield made


@pytest.fixture
async def prometheus() -> AsyncIterator[FakePrometheus]:
    """A Prometheus that says what it is told to."""
    async with FakePrometheus().running() as running:
        yield running
