"""The scenarios that real nodes play, each with an app in containers: those that share them, and those that do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from elasti.api.defaults import ENGAGE_SETTLE
from tests.e2e.scenarios import cycles, fleet, programs
from tests.e2e.table import Scenario
from tests.realcluster import (
    databases,
    disturbing,
    idle,
    ingress,
    losing,
    parts,
    starting,
    workloads,
)
from tests.realcluster.nodes import HASTY
from tests.realcluster.stage import current


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
    played("parts", parts.one_app),
    played("shared-database", parts.ten_of_forty_apps),
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
    played("resolver-killed", losing.resolver_killed),
    # A node is missed after 50 s, and thirty apps take as long to start: too long for a short run.
    *(
        [
            played("apps-node", losing.apps_node),
            played(
                "fleet",
                fleet.enrolled,
                installation=dataclasses.replace(HASTY, enrolment=True),
            ),
        ]
        if current().length.name == "full"
        else []
    ),
    played("uninstall", disturbing.uninstalled),
)
