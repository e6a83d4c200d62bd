"""A pod's startup and readiness probes as a plan. Pure.

A pod's plan lists the probes that a resolver can run over the network. If it cannot run them all (commands in a
container, readiness gates, a probe with its own host), the plan says why, and only the pod's Ready condition
counts. A probe with its own host is refused: the resolver must not reach places that the pod's author cannot.

With `wake.probe: Protocol` a database is asked in its own protocol, which is known from the port's
`appProtocol`, name or number.

`next_step` is the readiness policy: it decides from facts when a pod may receive traffic.

    Ready           the pod's Ready condition. It is always sufficient.
    Auto            the port accepts, then the pod's probes pass. The Ready condition decides if the probes
                    cannot be run, or if they only open a connection and the client does not speak HTTP:
                    databases accept connections before they serve.
    Protocol        the port accepts, then the database reports that it serves; otherwise as Auto.
    TCP             the port accepts.

A database whose pod is Ready may still load, if the probe only opens a connection. With Auto and Protocol it is asked:
as long as it says that it starts, for a minute at most, no client is sent there.

A pod that refused a connection must accept one before anything else counts, even Ready: the condition is older
than the refusal.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal, TypeAlias

from elasti.resolver.projections import DatabaseKind
from kubeloop.objects.core import Container, GrpcAction, HttpGetAction, Pod, Probe, TcpSocketAction

# The pod's author chooses the timeout, but all tenants share the connections.
_LONGEST_TIMEOUT = 30.0
ReadinessPolicy: TypeAlias = Literal["Auto", "Ready", "TCP", "Protocol"]


class ReadinessStep(enum.Enum):
    """The next step for a pod that connections wait for."""

    # It serves: send it traffic.
    RELEASE = "release"
    # Try whether its port accepts.
    CONNECT = "connect"
    # Read its probes.
    LEARN = "learn"
    # Run its probes.
    PROBE = "probe"
    # Wait for its Ready condition.
    AWAIT_READY = "await-ready"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessFacts:
    """The facts known about a pod."""

    policy: ReadinessPolicy
    ready: bool
    has_refused: bool = False
    accepts: bool = False
    #: None before the pod was read.
    plan: ProbePlan | None = None
    #: Whether all probes passed.
    passed: bool = False
    #: Whether the waiting client speaks HTTP or gRPC.
    is_http: bool = True


def next_step(facts: ReadinessFacts) -> ReadinessStep:
    """Return the next step."""
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
    # Without probes a pod is Ready as soon as it runs, which proves less than a connection.
    return ReadinessStep.PROBE if plan.questions else ReadinessStep.RELEASE


@dataclasses.dataclass(frozen=True, slots=True)
class StartEnded:
    """Asks a database whether it still starts. Any other answer passes, and so does none: its pod is Ready."""

    database: DatabaseKind


ProbeAction: TypeAlias = HttpGetAction | TcpSocketAction | GrpcAction | DatabaseKind | StartEnded


def is_doubtful(policy: ReadinessPolicy, database: DatabaseKind | None, *, is_http: bool) -> bool:
    """Whether a Ready pod may still start: a database, asked by a client that speaks its protocol."""
    return database is not None and not is_http and policy in ("Auto", "Protocol")


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedProbe:
    """One probe that the resolver can run. Times are in seconds."""

    action: ProbeAction
    port: int
    timeout: float = 1.0
    successes: int = 1
    #: From the first accepted connection to the first probe.
    delay: float = 0.0
    #: Between two successes.
    period: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ProbePlan:
    """The probes, startup before readiness; or the reason why they cannot be run."""

    questions: tuple[PlannedProbe, ...] = ()
    only_ready: str = ""

    @property
    def only_connects(self) -> bool:
        """Whether there are probes, and all of them only open a connection."""
        actions = [question.action for question in self.questions]
        return bool(actions) and all(isinstance(action, TcpSocketAction) for action in actions)


def plan_of(pod: Pod) -> ProbePlan:
    """Return the plan of a pod."""
    if pod.spec.readiness_gates:
        return ProbePlan(only_ready="it has readiness gates")
    containers = pod.spec.containers + tuple(
        container for container in pod.spec.init_containers or () if container.is_sidecar
    )
    questions = []
    # All startup probes first: readiness probes mean nothing before they pass.
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
        return "runs a command" if probe.exec is not None else "is of an unknown type"
    if not isinstance(action, GrpcAction) and action.host:
        return f"has its own host {action.host}"
    port = container.port_number(action.port)
    if port is None:
        return f"names port {action.port!r}, which the container does not have"
    timeout = min(float(probe.timeout_seconds), _LONGEST_TIMEOUT)
    return PlannedProbe(
        action,
        port,
        timeout,
        max(probe.success_threshold, 1),
        delay=float(probe.initial_delay_seconds),
        period=float(max(probe.period_seconds, 1)),
    )
