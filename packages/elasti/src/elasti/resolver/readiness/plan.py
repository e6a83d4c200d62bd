"""A pod's startup and readiness probes as a plan of questions. Pure.

The plan of a pod is the list of probes that a resolver can run over the network. Where it cannot run them
all (commands inside a container, conditions that another controller sets, a probe that names a host of its
own), the plan says why, and only the pod's Ready condition counts. A host of its own is refused because the
resolver must not become a way to reach places that the pod's author cannot.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from kubeloop.objects.core import Container, GrpcAction, HttpGetAction, Pod, Probe, TcpSocketAction

# A timeout is the pod author's choice, and the connections are every tenant's.
_LONGEST_TIMEOUT = 30.0

ProbeAction: TypeAlias = HttpGetAction | TcpSocketAction | GrpcAction


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedProbe:
    """One probe that can be asked: where, how long to wait, and how often it must succeed."""

    action: ProbeAction
    port: int
    timeout: float = 1.0
    successes: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ProbePlan:
    """The questions, startup before readiness; or why they cannot be asked."""

    questions: tuple[PlannedProbe, ...] = ()
    only_ready: str = ""


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
    return PlannedProbe(action, port, timeout, max(probe.success_threshold, 1))
