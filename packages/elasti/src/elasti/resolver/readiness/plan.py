"""A pod's startup and readiness probes as a plan of questions. Pure.

The plan of a pod is the list of probes that a resolver can run over the network. Where it cannot run them
all (commands inside a container, conditions that another controller sets, a probe that names a host of its
own), the plan says why, and only the pod's Ready condition counts. A host of its own is refused because the
resolver must not become a way to reach places that the pod's author cannot.

A database may be asked in its own words instead (`wake.probe: Protocol`); what a port speaks is read from its
`appProtocol`, its name or its number.

`next_step` is the readiness policy: when a pod may receive traffic, decided from facts.

    Ready           the pod's Ready condition, always enough.
    Auto            the port accepts, then the pod's own probes pass; or the Ready condition where they
                    cannot be asked, or only ask for a connection while the client does not speak HTTP:
                    databases accept connections before they serve.
    Protocol        the port accepts, then the database says that it serves; else as Auto.
    TCP             the port accepts.

A pod that refused a connection must accept one again before anything else counts, Ready included: the
condition is older than the refusal.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal, TypeAlias

from kubeloop.objects.core import Container, GrpcAction, HttpGetAction, Pod, Probe, TcpSocketAction

# A timeout is the pod author's choice, and the connections are every tenant's.
_LONGEST_TIMEOUT = 30.0
ReadinessPolicy: TypeAlias = Literal["Auto", "Ready", "TCP", "Protocol"]


class ReadinessStep(enum.Enum):
    """What to do next about a pod that connections wait for."""

    # It serves: give it traffic.
    RELEASE = "release"
    # See whether its port accepts.
    CONNECT = "connect"
    # Find out which probes it has.
    LEARN = "learn"
    # Ask its probes.
    PROBE = "probe"
    # Nothing to do but wait for Kubernetes.
    AWAIT_READY = "await-ready"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessFacts:
    """What is known of a pod. `plan` is None before it was read; `passed`: all probes did.

    `is_http`: the client that waits speaks HTTP or gRPC.
    """

    policy: ReadinessPolicy
    ready: bool
    has_refused: bool = False
    accepts: bool = False
    plan: ProbePlan | None = None
    passed: bool = False
    is_http: bool = True


def next_step(facts: ReadinessFacts) -> ReadinessStep:
    """Decide."""
    if facts.has_refused and not facts.accepts:
        return ReadinessStep.CONNECT
    if facts.ready:
        return ReadinessStep.RELEASE
    if facts.policy == "Ready":
        return ReadinessStep.AWAIT_READY
    if not facts.accepts:
        return ReadinessStep.CONNECT
    if facts.policy == "TCP" or facts.passed:
        return ReadinessStep.RELEASE
    return _by_plan(facts.plan, is_http=facts.is_http)


def _by_plan(plan: ProbePlan | None, *, is_http: bool) -> ReadinessStep:
    if plan is None:
        return ReadinessStep.LEARN
    if plan.only_ready or (plan.only_connects and not is_http):
        return ReadinessStep.AWAIT_READY
    # Without a probe a pod is Ready as soon as it runs, which says less than a connection.
    return ReadinessStep.PROBE if plan.questions else ReadinessStep.RELEASE


class DatabaseKind(enum.Enum):
    """A protocol in which a server says whether it serves, with the names and the port it goes by."""

    POSTGRESQL = (frozenset(("postgresql", "postgres", "pgsql", "pg")), 5432)
    MYSQL = (frozenset(("mysql", "mariadb")), 3306)
    REDIS = (frozenset(("redis", "valkey")), 6379)

    @classmethod
    def of_port(
        cls, *, app_protocol: str | None, name: str | None, port: int
    ) -> DatabaseKind | None:
        """Read `appProtocol`, else the part of the name before its first dash, else the pod's port."""
        said = ((app_protocol or "").lower() or (name or "").lower()).partition("-")[0]
        known = [database for database in cls if said in database.value[0]]
        return next(
            iter(known or [database for database in cls if port == database.value[1]]), None
        )


ProbeAction: TypeAlias = HttpGetAction | TcpSocketAction | GrpcAction | DatabaseKind


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
