"""Fixtures: the control plane that tests share, the binaries for those that start their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.controlplane.binaries import Binaries, BinariesMissing, Settings
from tests.controlplane.rig import ControlPlane, Options
from tests.controlplane.sandbox import Sandbox, SandboxError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@pytest.fixture(scope="session")
def controlplane_settings() -> Settings:
    return Settings.from_environ(os.environ)


@pytest.fixture(scope="session")
def namespaces(controlplane_settings: Settings) -> None:
    """The test needs a machine that lets us make namespaces."""
    try:
        Sandbox(local_ranges=[], relays={}).close()
    except SandboxError as error:
        give_up(controlplane_settings, str(error))


@pytest.fixture(scope="session")
def controlplane_binaries(controlplane_settings: Settings, namespaces: None) -> Binaries:
    """The programs, for a test that starts a control plane of its own."""
    try:
        return Binaries.locate(controlplane_settings.assets)
    except BinariesMissing as error:
        give_up(controlplane_settings, str(error))


# How the reason of a skip begins that is meant in a CI job, too.
ELSEWHERE = "played elsewhere"


def give_up(settings: Settings, reason: str) -> NoReturn:
    """Skip the test, or fail it if this is a CI job: there a skip would go unseen."""
    if settings.ci:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def controlplane_definitions() -> tuple[dict[str, Any], ...]:
    """CustomResourceDefinitions that the shared control plane has from the start; to be overridden."""
    return ()


@pytest.fixture(scope="session")
def controlplane(
    controlplane_settings: Settings,
    controlplane_binaries: Binaries,
    controlplane_definitions: tuple[dict[str, Any], ...],
) -> Iterator[ControlPlane]:
    """One control plane for the whole session: use a Namespace of your own, and stop nothing."""
    options = Options(definitions=controlplane_definitions)
    with ControlPlane(controlplane_binaries, options, logs=controlplane_settings.logs) as rig:
        yield rig


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show logs under a failure, and let all the skips for want of means be one line.

    In a CI job there are none: a skip there is a failure, since nobody would see it. But what needs root
    has a run of its own, and what is played elsewhere says so.
    """
    report = yield
    needs_root = item.get_closest_marker("needs_root") is not None and os.geteuid() != 0
    is_meant = needs_root or ELSEWHERE in report.longreprtext
    is_means = report.skipped and not hasattr(report, "wasxfail") and not is_meant
    if is_means and Settings.from_environ(os.environ).ci:
        report.outcome = "failed"
        report.longrepr = f"skipped in a CI job: {report.longreprtext}"
    if isinstance(item, pytest.Function):
        if report.failed:
            report.sections.extend(log_sections(item))
        elif report.skipped and "namespaces" in item.fixturenames:
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
