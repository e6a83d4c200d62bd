"""The cluster that these tests share, with Elasti installed in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hack.realcluster import lifecycle, machine
from hack.realcluster.cluster import Options
from hack.realcluster.programs import ROOT
from tests.controlplane.plugin import give_up
from tests.e2e.report import PAGE, forget
from tests.e2e.settings import Settings as ScenarioSettings
from tests.realcluster.nodes import HASTY, install
from tests.realcluster.report import Report
from tests.realcluster.rig import Rig
from tests.realcluster.stage import current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.controlplane.binaries import Settings

# Not the one that `hack/realcluster/cluster up` uses: a developer's cluster is none of ours.
DIRECTORY = ROOT / "build" / "realcluster-test"


@pytest.fixture(scope="session")
def suitable(controlplane_settings: Settings, namespaces: None) -> None:
    """The test needs a machine that can hold a real cluster, and what `make realcluster` makes."""
    try:
        machine.check(os.environ)
    except machine.Unsuitable as error:
        give_up(controlplane_settings, str(error))


@pytest.fixture(scope="session")
def lengths() -> ScenarioSettings:
    """How long scenarios are, and where their report goes; an earlier report is removed."""
    settings = current()
    forget(settings.output)
    return settings


@pytest.fixture(scope="session")
def report(lengths: ScenarioSettings) -> Iterator[Report]:
    """What the tests measured; written when they have all run, with what the scenarios lost."""
    collected = Report()
    yield collected
    collected.write(lengths.output / PAGE)


@pytest.fixture(scope="session")
def realcluster(suitable: None, report: Report) -> Iterator[Rig]:
    """Two nodes for the whole session: use a Namespace of your own.

    One that is up already in `DIRECTORY` is used, and left up: so one can be kept between runs.
    """
    kept = lifecycle.state_of(DIRECTORY) is not None
    state = lifecycle.up(DIRECTORY, Options(nodes=2), beneficiary=os.getpid())
    try:
        report.note("Two nodes Ready, DNS answers", f"{state.seconds:.1f} s after `up`")
        yield Rig(state, DIRECTORY)
    finally:
        if not kept:
            lifecycle.down(DIRECTORY)


@pytest.fixture(scope="session")
def installed(realcluster: Rig, report: Report) -> Rig:
    """The cluster, with Elasti from the image of this tree, under Pod Security `restricted`."""
    realcluster.namespace("elasti")
    began = time.monotonic()
    install(realcluster, HASTY)
    report.note("`elasti install`, operator and resolver available", seconds_since(began))
    return realcluster


@pytest.fixture
def own_directory(suitable: None, tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster of the test's own, which ends with the test."""
    yield tmp_path / "cluster"
    lifecycle.down(tmp_path / "cluster")


def seconds_since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"
