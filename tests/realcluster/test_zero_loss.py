"""Requests through sleeps, wake-ups and everything that happens to real containers: none is lost."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from elasti.api.defaults import ENGAGE_SETTLE
from hack.realcluster import images, lifecycle
from hack.realcluster import programs as toolsets
from tests.e2e.scenarios import cycles, programs
from tests.e2e.settings import Settings
from tests.e2e.table import Scenario
from tests.realcluster import databases, disturbing, idle, ingress, losing, starting, workloads
from tests.realcluster.nodes import HASTY
from tests.realcluster.rig import Rig
from tests.realcluster.stage import Stage, current

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

# Other scenarios go on when one of them is over.
pytestmark = [
    pytest.mark.realcluster,
    pytest.mark.timeout(1800),
    pytest.mark.allow_leaks("threads"),
]


def played(name: str, trial: Callable[[Any], Awaitable[None]], **more: Any) -> Scenario:
    return Scenario(name=name, trial=trial, **{"installation": HASTY, **more})


# The longest first.
TOGETHER = (
    played("idle-conversations", idle.conversations),
    played("idle-servers", idle.idle_servers),
    played("ingress", ingress.by_ingress),
    played("gateway", ingress.by_gateway),
    played("autoscaled", workloads.autoscaled),
    played("postgresql-tcp-probe", databases.postgresql_with_tcp_probe),
    played("cycles", cycles.cycles),
    played("postgresql", databases.postgresql),
    played("ingress-conversations", ingress.websocket_and_grpc_by_ingress),
    played("gateway-conversations", ingress.websocket_and_grpc_by_gateway),
    played("ingress-page", ingress.waiting_page),
    played("redis", databases.redis),
    played("stateful-set", workloads.stateful_set),
    played("last-moment", cycles.sleep_at_the_last_moment),
    played("last-moment-drained", cycles.new_connections_at_the_last_moment_of_drained_pods),
    played("crash-loop", starting.crash_loop),
    played("out-of-memory", starting.out_of_memory),
    played("cycle", cycles.cycle, picture=True),
    played("exec-probe", workloads.exec_probe),
    played("grpc-probe", workloads.grpc_probe),
    played("tcp-probe", workloads.tcp_probe),
    played("slow-start", starting.slow_start),
    played("image-not-there", starting.image_not_there),
    played("app-rollout", workloads.app_rollout),
)
ALONE = (
    played("rollout", programs.resolver_rollout),
    played("drain", disturbing.node_drained),
    played("upgrade", programs.upgrade),
    played(
        "defaults",
        cycles.cycle,
        installation=dataclasses.replace(HASTY, engage_settle=ENGAGE_SETTLE),
    ),
    played("leaders-node", losing.leaders_node),
    played("followers-node", losing.followers_node),
    # A node is missed after 50 s: too long for a short run.
    *([played("apps-node", losing.apps_node)] if current().length.name == "full" else []),
    played("uninstall", disturbing.uninstalled),
)


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
