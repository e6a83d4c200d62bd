from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.controlplane.binaries import Settings
from tests.controlplane.plugin import give_up
from tests.e2e.cases.prometheus import binary
from tests.e2e.cases.session import Case, Session
from tests.e2e.dev.testbed import dev_testbed
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.real.testbed import real_testbed
from tests.e2e.testbed import Testbed

DEV, REAL = "dev cluster", "control plane"


@pytest.fixture(scope="session", params=[DEV, pytest.param(REAL, marks=pytest.mark.controlplane)])
def session(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    controlplane_settings: Settings,
) -> Iterator[Session]:
    """Elasti on a cluster, for the whole session; the cases of the session begin to play."""
    if binary() is None:
        give_up(controlplane_settings, "no prometheus: apt-get install prometheus")
    binaries = None if request.param == DEV else request.getfixturevalue("controlplane_binaries")

    def open_testbed(directory: Path) -> AbstractAsyncContextManager[Testbed]:
        return real_testbed(binaries, ProxyKind.OURS) if binaries else dev_testbed(directory)

    session = Session(open_testbed, tmp_path_factory.mktemp("session"))
    session.start()
    try:
        session.announce(_chosen(request))
        yield session
    finally:
        session.stop()


def _chosen(request: pytest.FixtureRequest) -> list[Case]:
    """The cases that this session plays on this environment, in their order."""
    found = [getattr(item, "callspec", None) for item in request.session.items]
    params = [callspec.params for callspec in found if callspec is not None]
    return [p["case"] for p in params if p.get("session") == request.param and "case" in p]
