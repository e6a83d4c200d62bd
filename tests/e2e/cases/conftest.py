from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.controlplane.binaries import Settings
from tests.controlplane.plugin import give_up
from tests.e2e.cases.prometheus import binary
from tests.e2e.cases.theatre import Case, Theatre
from tests.e2e.dev.ground import dev_ground
from tests.e2e.ground import Ground
from tests.e2e.real.ground import real_ground
from tests.e2e.real.proxies import ProxyKind

DEV, REAL = "dev cluster", "control plane"


@pytest.fixture(scope="session", params=[DEV, pytest.param(REAL, marks=pytest.mark.controlplane)])
def theatre(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    controlplane_settings: Settings,
) -> Iterator[Theatre]:
    """Elasti on a cluster, for the whole session; the cases of the session begin to play."""
    if binary() is None:
        give_up(controlplane_settings, "no prometheus: apt-get install prometheus")
    binaries = None if request.param == DEV else request.getfixturevalue("controlplane_binaries")

    def open_ground(directory: Path) -> AbstractAsyncContextManager[Ground]:
        return real_ground(binaries, ProxyKind.OURS) if binaries else dev_ground(directory)

    theatre = Theatre(open_ground, tmp_path_factory.mktemp("theatre"))
    theatre.start()
    try:
        theatre.announce(_chosen(request))
        yield theatre
    finally:
        theatre.stop()


def _chosen(request: pytest.FixtureRequest) -> list[Case]:
    """The cases that this session plays on this stage, in their order."""
    found = [getattr(item, "callspec", None) for item in request.session.items]
    params = [callspec.params for callspec in found if callspec is not None]
    return [p["case"] for p in params if p.get("theatre") == request.param and "case" in p]
