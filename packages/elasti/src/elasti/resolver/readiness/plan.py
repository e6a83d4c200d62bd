"""A pod's startup and readiness probes as a plan of questions. Pure.

The plan of a pod is the list of probes that a resolver can run over the network. Where it cannot run them
all (commands inside a container, conditions that another controller sets, a probe that names a host of its
own), the plan says why, and only the pod's Ready condition counts. A host of its own is refused because the
resolver must not become a way to reach places that the pod's author cannot.

A database may be asked in its own words instead (`wake.probe: Protocol`); what a port speaks is read from its
`appProtocol`, its name or its number.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

from kubeloop.objects.core import Container, GrpcAction, HttpGetAction, Pod, Probe, TcpSocketAction

# A timeout is the pod author's choice, and the connections are every tenant's.
_LONGEST_TIMEOUT = 30.0


class Database(enum.Enum):
    """A protocol in which a server says whether it serves, with the names and the port it goes by."""

    POSTGRESQL = (frozenset(("postgresql", "postgres", "pgsql", "pg")), 5432)
    MYSQL = (frozenset(("mysql", "mariadb")), 3306)
    REDIS = (frozenset(("redis", "valkey")), 6379)

    @classmethod
    def of_port(cls, *, app_protocol: str | None, name: str | None, port: int) -> Database | None:
        """Read `appProtocol`, else the part of the name before its first dash, else the pod's port."""
        said = ((app_protocol or "").lower() or (name or "").lower()).partition("-")[0]
        known = [database for database in cls if said in database.value[0]]
        return next(
            iter(known or [database for database in cls if port == database.value[1]]), None
        )


ProbeAction: TypeAlias = HttpGetAction | TcpSocketAction | GrpcAction | Database


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedProbe:
    """One probe that can be asked: where, how long to wait, and how often it must succeed.

    `delay` and `period` in seconds: what must have passed since the pod's port accepted, and between
    two successes.
    """

    action: ProbeAction
    port: int
    timeout: float = 1.0
    successes: int = 1
    delay: float = 0.0
    period: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ProbePlan:
    """The questions, startup before readiness; or why they cannot be asked."""

    questions: tuple[PlannedProbe, ...] = ()
    only_ready: str = ""

    @property
    def only_connects(self) -> bool:
        """Whether there are probes, and none of them asks more than for a connection."""
        actions = [question.action for question in self.questions]
        return bool(actions) and all(isinstance(action, TcpSocketAction) for action in actions)


def plan_of(pod: Pod) -> ProbePlan:
    """Return how to find out whether a pod serves."""
    if pod.spec.readiness_gates:
        return ProbePlan(only_ready="it has readiness gates")
    containers = pod.spec.containers + tuple(
        container for container in pod.spec.init_containers or () if container.is_sidecar
    )
    questions = []
    # All startup probes first: a readiness probe means nothing before them.
    for kind in ("startup_probe", "readiness_probe"):
        for container in containers:
            probe: Probe | None = getattr(container, kind)
            if probe is None:
                continue
            question = _question(probe, container)
            if isinstance(question, str):
                return ProbePlan(only_ready=f"the {kind} of container {container.name} {question}")
            questions.append(question)
    return ProbePlan(tuple(questions))


def _question(probe: Probe, container: Container) -> PlannedProbe | str:
    action = probe.http_get or probe.tcp_socket or probe.grpc
    if action is None:
        return "runs a command" if probe.exec is not None else "asks nothing that is known"
    if not isinstance(action, GrpcAction) and action.host:
        return f"asks host {action.host}"
    port = container.port_number(action.port)
    if port is None:
        return f"asks port {action.port!r}, which the container does not have"
    timeout = min(float(probe.timeout_seconds), _LONGEST_TIMEOUT)
    return PlannedProbe(
        action,
        port,
        timeout,
        max(probe.success_threshold, 1),
        delay=float(probe.initial_delay_seconds),
        period=float(max(probe.period_seconds, 1)),
    )
