from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.operator.fakes import FakePrometheus
from tests.operator.rig import Rig
from tests.operator.servers import CONTROLPLANE, dev_rig, real_rig

from tests.controlplane.rig import ControlPlane


@pytest.fixture
def place(request: pytest.FixtureRequest) -> ControlPlane | None:
    """The session's control plane, for a test that is to run there."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("rig") != CONTROLPLANE:
        return None
    found: ControlPlane = request.getfixturevalue("controlplane")
    return found


@pytest.fixture
async def rig(
    request: pytest.FixtureRequest, tmp_path: Path, place: ControlPlane | None
) -> AsyncIterator[Rig]:
    """A cluster with our CRD and a resolver that pretends; no operator yet.

    The dev cluster's server, unless the test is parametrized by `everywhere`.
    """
    garbage = request.node.get_closest_marker("garbage_collector") is not None
    async with (
        dev_rig(tmp_path, collects_garbage=garbage) if place is None else real_rig(place) as made
    ):
        yield made


@pytest.fixture
async def prometheus() -> AsyncIterator[FakePrometheus]:
    """A Prometheus that says what it is told to."""
    async with FakePrometheus().running() as running:
        yield running
