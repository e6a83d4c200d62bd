"""Fixtures: the control plane that tests share, the binaries for those that start their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.controlplane.binaries import Binaries, BinariesMissing, Settings
from tests.controlplane.rig import ControlPlane
from tests.controlplane.sandbox import Sandbox, SandboxError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@pytest.fixture(scope="session")
def controlplane_settings() -> Settings:
    return Settings.from_environ(os.environ)


@pytest.fixture(scope="session")
def controlplane_binaries(
    controlplane_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Binaries:
    """The programs, on a machine that can run them.

    Elsewhere the test is skipped, or fails if this is a CI job: there a skip would go unseen.
    """
    try:
        binaries = Binaries.locate(controlplane_settings.assets)
        probe = Sandbox(tmp_path_factory.mktemp("probe"), local_ranges=[], relays={})
    except (BinariesMissing, SandboxError) as missing:
        if controlplane_settings.ci:
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    probe.close()
    return binaries


@pytest.fixture(scope="session")
def controlplane(
    controlplane_settings: Settings, controlplane_binaries: Binaries
) -> Iterator[ControlPlane]:
    """One control plane for the whole session: use a Namespace of your own, and stop nothing."""
    with ControlPlane(controlplane_binaries, logs=controlplane_settings.logs) as rig:
        yield rig


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show logs under a failure, and let all the skips for want of binaries be one line."""
    report = yield
    if isinstance(item, pytest.Function):
        if report.failed:
            report.sections.extend(log_sections(item))
        elif report.skipped and "controlplane_binaries" in item.fixturenames:
            share_location(report)
    return report


def log_sections(item: pytest.Function) -> list[tuple[str, str]]:
    """The ends of the logs of every control plane that a test used."""
    used = [value for value in item.funcargs.values() if isinstance(value, ControlPlane)]
    return [("Control plane logs", rig.tails()) for rig in used]


def share_location(report: pytest.TestReport) -> None:
    """Pytest folds skips of one reason and one place; it would give the place of each test."""
    if isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 1, report.longrepr[2])
