"""A pod's startup and readiness probes as a plan of questions. Pure.

The plan of a pod is the list of probes that a resolver can run over the network. Where it cannot run them
all (commands inside a container, conditions that another controller sets, a probe that names a host of its
own), the plan says why, and only the pod's Ready condition counts. A host of its own is refused because the
resolver must not become a way to reach places that the pod's author cannot.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import msgspec


class HttpProbeHeader(msgspec.Struct, frozen=True, gc=False):
    """A header of an HTTP probe."""

    name: str
    value: str = ""


class HttpGetProbe(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A GET that must be answered with 2xx or 3xx."""

    port: int | str
    path: str = "/"
    scheme: str = "HTTP"
    host: str = ""
    http_headers: tuple[HttpProbeHeader, ...] = ()


class TcpSocketProbe(msgspec.Struct, frozen=True, gc=False):
    """A connection that must be accepted."""

    port: int | str
    host: str = ""


class GrpcProbe(msgspec.Struct, frozen=True, gc=False):
    """A health check that must say SERVING."""

    port: int
    service: str | None = None


class _ExecProbe(msgspec.Struct, frozen=True, gc=False):
    pass


class ProbeView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A probe as a pod writes it."""

    http_get: HttpGetProbe | None = None
    tcp_socket: TcpSocketProbe | None = None
    grpc: GrpcProbe | None = None
    exec: _ExecProbe | None = None
    timeout_seconds: int = 1
    success_threshold: int = 1


class ContainerPortView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A port that a container names."""

    container_port: int
    name: str = ""


class ContainerView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What matters of a container."""

    name: str = ""
    ports: tuple[ContainerPortView, ...] | None = None
    startup_probe: ProbeView | None = None
    readiness_probe: ProbeView | None = None
    restart_policy: str = ""


class _PodSpecView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] | None = None
    readiness_gates: tuple[dict[str, str], ...] | None = None


class _PodMeta(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class PodView(msgspec.Struct, frozen=True, gc=False):
    """A pod: who it is and how it is asked."""

    metadata: _PodMeta = _PodMeta()
    spec: _PodSpecView = _PodSpecView()


ProbeAction: TypeAlias = HttpGetProbe | TcpSocketProbe | GrpcProbe


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


def plan_of(pod: PodView) -> ProbePlan:
    """Return how to find out whether a pod serves."""
    if pod.spec.readiness_gates:
        return ProbePlan(only_ready="it has readiness gates")
    containers = pod.spec.containers + tuple(
        container
        for container in pod.spec.init_containers or ()
        if container.restart_policy == "Always"
    )
    questions = []
    # All startup probes first: a readiness probe means nothing before them.
    for kind in ("startup_probe", "readiness_probe"):
        for container in containers:
            probe: ProbeView | None = getattr(container, kind)
            if probe is None:
                continue
            question = _question(probe, container)
            if isinstance(question, str):
                return ProbePlan(only_ready=f"the {kind} of container {container.name} {question}")
            questions.append(question)
    return ProbePlan(tuple(questions))


def _question(probe: ProbeView, container: ContainerView) -> PlannedProbe | str:
    action = probe.http_get or probe.tcp_socket or probe.grpc
    if action is None:
        return "runs a command" if probe.exec is not None else "asks nothing that is known"
    if not isinstance(action, GrpcProbe) and action.host:
        return f"asks host {action.host}"
    port = _port(action.port, container)
    if port is None:
        return f"asks port {action.port!r}, which the container does not have"
    return PlannedProbe(action, port, float(probe.timeout_seconds), max(probe.success_threshold, 1))


def _port(port: int | str, container: ContainerView) -> int | None:
    if isinstance(port, str):
        named = {item.name: item.container_port for item in container.ports or () if item.name}
        port = named.get(port, int(port) if port.isdecimal() else 0)
    return port if 0 < port < 65536 else None
