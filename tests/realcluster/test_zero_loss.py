"""Requests through sleeps, wake-ups and everything that happens to real containers: none is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hack.realcluster import images, lifecycle
from hack.realcluster import programs as toolsets
from tests.e2e.settings import Settings
from tests.e2e.table import Scenario
from tests.realcluster import ingress, workloads
from tests.realcluster.rig import Rig
from tests.realcluster.scenarios import ALONE, TOGETHER
from tests.realcluster.stage import Stage

# Other scenarios go on when one of them is over.
pytestmark = [
    pytest.mark.realcluster,
    pytest.mark.timeout(1800),
    pytest.mark.allow_leaks("threads"),
]


@pytest.fixture(scope="module")
def stage(
    installed: Rig, lengths: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    for name in ("servers", "metrics-server", "traefik"):
        lifecycle.load(installed.state, images.extra_archive(name, os.environ))
    lifecycle.tag(installed.state, images.PROJECT, f"{images.PROJECT}-next")
    installed.apply(*workloads.metrics_server())
    definitions = toolsets.toolsets()["traefik"].directory(os.environ) / toolsets.GATEWAY_API
    installed.kubectl("apply", "--server-side", "-f", str(definitions))
    installed.namespace(ingress.NAMESPACE)
    installed.apply(*ingress.traefik())
    installed.kubectl("rollout", "status", "deployment/traefik", f"--namespace={ingress.NAMESPACE}")
    with Stage(installed, lengths, tmp_path_factory.mktemp("scenarios")) as made:
        yield made


@pytest.mark.parametrize("scenario", TOGETHER, ids=lambda scenario: scenario.name)
def test_nothing_is_lost(stage: Stage, scenario: Scenario, request: pytest.FixtureRequest) -> None:
    stage.begin(*chosen(request.session.items))
    stage.end(scenario)


@pytest.mark.parametrize("scenario", ALONE, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_by_a_disturbance(stage: Stage, scenario: Scenario) -> None:
    stage.alone(scenario)


def chosen(items: list[pytest.Item]) -> list[Scenario]:
    """Return the scenarios of the tests that this session runs."""
    found = [item.callspec.params.get("scenario") for item in items if hasattr(item, "callspec")]
    return [scenario for scenario in TOGETHER if scenario in found]
