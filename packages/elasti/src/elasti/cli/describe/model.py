"""The state of one ElastiService and everything around it, as values. Pure.

A part that could not be read is an `Unreadable` with the reason, never an empty list, which would mean that it is
empty. Each line of `advice` names something to check or to do. It repeats the operator's conditions only if they
prevent sleep or waking.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec import to_builtins

from elasti.api import conditions as words
from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.states import State
from elasti.api.view import condition, moment
from elasti.cli.install.rollout import pod_troubles
from elasti.cli.rendering import duration

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping

    from elasti.api.types import ElastiService
    from kubeloop.objects.meta import JsonObject


T = TypeVar("T")
_PATIENCE = 60.0
"""Seconds after which a request that is still pending is reported."""

_HOLDING = (State.PARKING, State.PROXY, State.WAKING)


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """Something that could not be read, and why."""

    why: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetSummary:
    """The workload: desired and present replicas."""

    wanted: int
    present: int
    selector: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodSummary:
    """A pod of the target; `trouble` is the reason why it is not ready."""

    name: str
    phase: str
    ready: bool
    restarts: int
    node: str
    trouble: str
    created: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSummary:
    """A Service: the public one, or the private one beside it. `exists` is False if it is missing."""

    role: str
    name: str
    exists: bool
    kind: str = ""
    address: str = ""
    ports: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SliceSummary:
    """An EndpointSlice: whose endpoints it lists, and how many of them are ready."""

    name: str
    service: str
    of: str
    ready: int
    total: int
    ports: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventSummary:
    """Something that happened."""

    at: dt.datetime | None
    kind: str
    reason: str
    message: str
    count: int
    about: str


MaybeTarget: TypeAlias = TargetSummary | Unreadable
Readable: TypeAlias = tuple[T, ...] | Unreadable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Everything about one ElastiService; `held` is None if it is unknown, and `held_why` is the reason.

    `values`: the current values of triggers, by index in the spec, if the operator could be asked.
    `dependencies`: the tree below it, a line for each.
    """

    es: ElastiService
    now: dt.datetime
    target: MaybeTarget
    pods: Readable[PodSummary]
    services: Readable[ServiceSummary]
    slices: Readable[SliceSummary]
    events: Readable[EventSummary]
    held: int | None
    held_why: str = ""
    advice: tuple[str, ...] = ()
    values: Mapping[int, float] = dataclasses.field(default_factory=dict)
    dependencies: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        """Return it for scripts."""
        names = ("target", "pods", "services", "slices", "events")
        parts = {name: getattr(self, name) for name in names}
        return {
            "elastiService": to_builtins(self.es),
            **{
                name: {"unknown": part.why} if isinstance(part, Unreadable) else to_builtins(part)
                for name, part in parts.items()
            },
            "held": self.held,
            "dependencies": list(self.dependencies),
            "triggerValues": {str(index): value for index, value in self.values.items()},
            "advice": list(self.advice),
        }


def pod_from(obj: JsonObject) -> PodSummary:
    """Read a pod."""
    meta, status = obj["metadata"], obj.get("status") or {}
    containers, conditions = status.get("containerStatuses") or [], status.get("conditions") or []
    return PodSummary(
        name=meta["name"],
        phase="Terminating" if meta.get("deletionTimestamp") else status.get("phase", ""),
        ready=any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions),
        restarts=sum(entry.get("restartCount", 0) for entry in containers),
        node=(obj.get("spec") or {}).get("nodeName", ""),
        trouble=next(pod_troubles(status), ""),
        created=moment(meta.get("creationTimestamp")),
    )


def service_from(obj: JsonObject, role: str) -> ServiceSummary:
    """Read a Service."""
    spec = obj.get("spec") or {}
    return ServiceSummary(
        role=role,
        name=obj["metadata"]["name"],
        exists=True,
        kind=spec.get("type", "ClusterIP"),
        address=spec.get("clusterIP", ""),
        ports=tuple(_port(port) for port in spec.get("ports") or ()),
    )


def slice_from(obj: JsonObject, *, resolver_names: frozenset[str]) -> SliceSummary:
    """Read an EndpointSlice; those that point at the resolver are known by their names."""
    meta = obj["metadata"]
    endpoints = obj.get("endpoints") or []
    ready = [e for e in endpoints if (e.get("conditions") or {}).get("ready") is not False]
    return SliceSummary(
        name=meta["name"],
        service=(meta.get("labels") or {}).get("kubernetes.io/service-name", ""),
        of="resolver" if meta["name"] in resolver_names else "pods",
        ready=len(ready),
        total=len(endpoints),
        ports=tuple(port["port"] for port in obj.get("ports") or () if port.get("port")),
    )


def event_from(obj: JsonObject) -> EventSummary:
    """Read an event, of either generation."""
    about = obj.get("involvedObject") or {}
    last = (obj.get("series") or {}).get("lastObservedTime") or obj.get("lastTimestamp")
    return EventSummary(
        at=moment(last or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")),
        kind=obj.get("type", ""),
        reason=obj.get("reason", ""),
        message=(obj.get("message") or "").strip(),
        count=(obj.get("series") or {}).get("count") or obj.get("count") or 1,
        about=f"{about.get('kind', '')}/{about.get('name', '')}",
    )


def _port(port: JsonObject) -> str:
    name = f" ({port['name']})" if port.get("name") else ""
    return f"{port.get('port')}/{port.get('protocol', 'TCP')}{name}"


def advice(found: Description) -> Iterator[str]:
    """Yield advice, the most urgent first."""
    if not found.es.status.conditions:
        yield "No operator has reconciled this ElastiService yet: run elasti doctor to see why."
        return
    yield from _about_operator(found)
    yield from _about_conditions(found)
    yield from _about_pods(found)
    yield from _about_traffic(found)


def _about_operator(found: Description) -> Iterator[str]:
    meta, status = found.es.metadata, found.es.status
    if status.observed_generation < meta.generation:
        yield (
            f"The operator has not yet observed the last change of the spec (generation"
            f" {meta.generation}, observed {status.observed_generation}): check with elasti doctor"
            " whether one leads."
        )
    for verb, annotation in (("wake", WAKE_ANNOTATION), ("sleep", SLEEP_ANNOTATION)):
        asked = moment((meta.annotations or {}).get(annotation, "").partition(" ")[0])
        waited = (found.now - asked).total_seconds() if asked else 0.0
        if waited > _PATIENCE and not (verb == "sleep" and status.state == State.PROXY):
            yield (
                f"A request to {verb} has been waiting for {duration(waited)}: check with elasti"
                " doctor whether an operator leads."
            )


_ATTEMPT_ENDED = words.Reason.ATTEMPT_ENDED
_Ended = words.TransitionReason
# Attempts to sleep that ended for another reason than use.
_FAILURES = (_Ended.NOT_PARKED, _Ended.NOT_DRAINED, _Ended.RESOLVER_SILENT)


def _about_conditions(found: Description) -> Iterator[str]:
    lesser = ((words.TRIGGERS_HEALTHY, "False"), (words.TRAFFIC_PATH, "False"))
    for kind, status in (*words.TROUBLES, *lesser):
        entry = condition(found.es, kind)
        if entry is not None and entry.status == status:
            yield f"{kind} is {status} ({entry.reason}): {entry.message}."
    may_sleep = condition(found.es, words.MAY_SLEEP)
    ended = may_sleep.message if may_sleep and may_sleep.reason == _ATTEMPT_ENDED else ""
    if any(failure.text in ended for failure in _FAILURES):
        yield f"It does not sleep: {ended}."
    ready = condition(found.es, words.READY)
    if ready is not None and ready.status == "True" and ready.message:
        yield f"It may sleep, but: {ready.message}"


def _about_pods(found: Description) -> Iterator[str]:
    namespace = found.es.metadata.namespace
    if not isinstance(found.pods, tuple):
        return
    for pod in found.pods:
        if pod.trouble:
            yield f"Pod {pod.name} is not ready: {pod.trouble}."
        elif not pod.ready and pod.restarts > 1:
            yield (
                f"Pod {pod.name} was restarted {pod.restarts} times and is not ready: kubectl logs -n"
                f" {namespace} {pod.name} --previous."
            )
    if found.es.status.state == State.WAKING and not found.pods:
        ref = found.es.spec.scale_target_ref
        yield (
            f"It is waking, and {ref.kind} {ref.name} has no pod yet: kubectl describe -n {namespace}"
            f" {ref.kind.lower()} {ref.name} shows the reason (quotas, admission, nodes)."
        )


def _about_traffic(found: Description) -> Iterator[str]:
    service, ready = found.es.spec.service, condition(found.es, words.READY)
    # The operator creates it only for a target that can sleep.
    usable = ready is None or ready.status == "True"
    if isinstance(found.services, tuple) and usable and not found.es.spec.observes:
        for entry in found.services:
            if entry.role == "private" and not entry.exists and found.es.status.state:
                yield (
                    f"The private Service {entry.name} is missing; the operator creates it again,"
                    " unless it may not create Services: check its logs."
                )
    if not isinstance(found.slices, tuple):
        return
    public = [
        endpoint_slice for endpoint_slice in found.slices if endpoint_slice.service == service
    ]
    if public and not any(endpoint_slice.ready for endpoint_slice in public):
        yield (
            f"No endpoint of Service {service} is ready, neither a pod nor a resolver: connections to"
            " it are refused now."
        )
    holding = found.es.status.state in _HOLDING
    if holding and not any(
        endpoint_slice.of == "resolver" and endpoint_slice.total for endpoint_slice in public
    ):
        yield (
            f"State {found.es.status.state}, but no resolver is in the rotation of Service"
            f" {service}: check with elasti doctor whether resolvers are ready."
        )
