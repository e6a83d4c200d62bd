"""What a pod itself says about being ready: its startup and readiness probes, as a plan. Pure.

The plan of a pod is the list of questions that a resolver can ask over the network. Where it cannot
ask them all (commands inside a container, conditions that somebody else sets, a probe that names a
host of its own), the plan says why, and only Kubernetes' Ready counts. A host of its own is refused
because the resolver must not become a way to reach places that the pod's author cannot.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import msgspec


class HttpHeader(msgspec.Struct, frozen=True, gc=False):
    """A header of an HTTP probe."""

    name: str
    value: str = ""


class HttpGet(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A GET that must be answered with 2xx or 3xx."""

    port: int | str
    path: str = "/"
    scheme: str = "HTTP"
    host: str = ""
    http_headers: tuple[HttpHeader, ...] = ()


class TcpSocket(msgspec.Struct, frozen=True, gc=False):
    """A connection that must be accepted."""

    port: int | str
    host: str = ""


class Grpc(msgspec.Struct, frozen=True, gc=False):
    """A health check that must say SERVING."""

    port: int
    service: str | None = None


class _Exec(msgspec.Struct, frozen=True, gc=False):
    pass


class Probe(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A probe as a pod writes it."""

    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    grpc: Grpc | None = None
    exec: _Exec | None = None
    timeout_seconds: int = 1
    success_threshold: int = 1


class ContainerPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A port that a container names."""

    container_port: int
    name: str = ""


class Container(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What matters of a container."""

    name: str = ""
    ports: tuple[ContainerPort, ...] | None = None
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    restart_policy: str = ""


class _PodSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    readiness_gates: tuple[dict[str, str], ...] | None = None


class _PodMeta(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class PodView(msgspec.Struct, frozen=True, gc=False):
    """A pod: who it is and how it is asked."""

    metadata: _PodMeta = _PodMeta()
    spec: _PodSpec = _PodSpec()


Action: TypeAlias = HttpGet | TcpSocket | Grpc


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One probe that can be asked: where, how long to wait, and how often it must succeed."""

    action: Action
    port: int
    timeout: float = 1.0
    successes: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class PodPlan:
    """The questions, startup before readiness; or why they cannot be asked."""

    questions: tuple[Question, ...] = ()
    only_ready: str = ""


def plan_of(pod: PodView) -> PodPlan:
    """Return how to find out whether a pod serves."""
    if pod.spec.readiness_gates:
        return PodPlan(only_ready="it has readiness gates")
    containers = pod.spec.containers + tuple(
        container
        for container in pod.spec.init_containers or ()
        if container.restart_policy == "Always"
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
                return PodPlan(only_ready=f"the {kind} of container {container.name} {question}")
            questions.append(question)
    return PodPlan(tuple(questions))


def _question(probe: Probe, container: Container) -> Question | str:
    action = probe.http_get or probe.tcp_socket or probe.grpc
    if action is None:
        return "runs a command" if probe.exec is not None else "asks nothing that is known"
    if not isinstance(action, Grpc) and action.host:
        return f"asks host {action.host}"
    port = _port(action.port, container)
    if port is None:
        return f"asks port {action.port!r}, which the container does not have"
    return Question(action, port, float(probe.timeout_seconds), max(probe.success_threshold, 1))


def _port(port: int | str, container: Container) -> int | None:
    if isinstance(port, str):
        named = {item.name: item.container_port for item in container.ports or () if item.name}
        port = named.get(port, int(port) if port.isdecimal() else 0)
    return port if 0 < port < 65536 else None
