"""One ElastiService as text for a person. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from elasti.api.defaults import cooldown_of
from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.view import moment, why_of
from elasti.cli.describe.model import (
    Description,
    EventSummary,
    MaybeTarget,
    PodSummary,
    ServiceSummary,
    SliceSummary,
    Unreadable,
)
from elasti.cli.rendering import NOTHING, ago, duration, one_line, table
from elasti.cli.view import with_time_left
from elasti.triggers.registry import Role, redacted_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elasti.api.types import ElastiServiceSpec, ElastiServiceStatus, ScaleTrigger, TriggerStatus

T = TypeVar("T")
_INDENT = "  "
_LABEL = 16


def as_text(found: Description) -> str:
    """Return everything, section by section."""
    return "".join(
        [
            *(_field(label, value) for label, value in _summary(found)),
            *_conditions(found),
            *_pods(found),
            *_services(found),
            *_slices(found),
            *_events(found),
            *_advice(found),
        ]
    )


def _summary(found: Description) -> Iterator[tuple[str, str]]:
    es, spec, status = found.es, found.es.spec, found.es.status
    ref = spec.scale_target_ref
    yield "Name", es.metadata.name
    yield "Namespace", es.metadata.namespace
    yield "Service", spec.service
    yield "Target", f"{ref.kind}/{ref.name} ({ref.api_version}): {_replicas(found.target)}"
    yield from _wanted(spec, status)
    yield "State", f"{status.state or NOTHING} (mode {status.mode or NOTHING})"
    yield "Held", str(found.held) if found.held is not None else f"not known: {found.held_why}"
    yield from _seen(status, found)
    yield "Why not asleep", with_time_left(str(why_of(es)) or "it is asleep", found.now)
    for label, annotation in (("Wake asked", WAKE_ANNOTATION), ("Sleep asked", SLEEP_ANNOTATION)):
        if text := (es.metadata.annotations or {}).get(annotation):
            asked = moment(text.partition(" ")[0])
            yield label, f"{ago(asked, found.now)} ago" if asked else text


def _seen(status: ElastiServiceStatus, found: Description) -> Iterator[tuple[str, str]]:
    """Iterate over what the operator has noted of wake-ups, sleep and triggers."""
    woken, wake = moment(status.last_scaled_up_time), status.last_wake
    text = NOTHING if woken is None else f"{ago(woken, found.now)} ago"
    if wake is not None and (began := moment(wake.time)) is not None:
        by = f" ({wake.client})" if wake.client else ""
        took = f", took {wake.seconds:g} s" if wake.seconds is not None else ""
        text = f"{ago(began, found.now)} ago: {wake.cause}{by}{took}"
    yield "Last wake", text
    if (asleep := moment(status.asleep_since)) is not None:
        yield "Asleep for", ago(asleep, found.now)
    if (sleeps := moment(status.sleeps_at)) is not None and sleeps > found.now:
        left = duration((sleeps - found.now).total_seconds())
        yield "Sleeps in", f"{left}, if it is used no more"
    for index, trigger in enumerate(status.triggers):
        value = found.values.get(index)
        now = f"{value:g} now, " if value is not None else ""
        yield f"Trigger {index} is", now + _shown(trigger, found)
    if status.usage is not None:
        slept = duration(status.usage.asleep_seconds)
        since = ago(moment(status.usage.since), found.now)
        yield "Usage", f"{status.usage.wakes} wake-ups and {slept} asleep in {since}"


def _shown(trigger: TriggerStatus, found: Description) -> str:
    if trigger.last_error:
        return f"failing: {trigger.last_error}"
    if (quiet := moment(trigger.quiet_since)) is None:
        return (
            f"not quiet: at or above {trigger.threshold or NOTHING}, or below it for under a minute"
        )
    return f"below {trigger.threshold or NOTHING} for {ago(quiet, found.now)}"


NO_TRIGGERS = "none: it is never put to sleep by itself"


def _wanted(spec: ElastiServiceSpec, status: ElastiServiceStatus) -> Iterator[tuple[str, str]]:
    yield "Cooldown", duration(cooldown_of(spec))
    if not spec.triggers:
        found = ", ".join(trigger.type for trigger in status.triggers)
        yield "Triggers", f"{found} (the installation's default)" if found else NO_TRIGGERS
    for index, trigger in enumerate(spec.triggers):
        yield f"Trigger {index}", _trigger(trigger)
    if spec.autoscaler is not None:
        yield "Autoscaler", f"{spec.autoscaler.type} {spec.autoscaler.name}"
    if spec.enabled_period is not None:
        period = spec.enabled_period
        yield "Enabled", f"{period.schedule} for {period.duration} ({period.timezone})"
    wake = spec.wake
    limits = f"connections held for {wake.timeout_seconds} s at most, {wake.max_held} a resolver"
    yield "Wake", f"to {spec.min_target_replicas}, {limits}, probe {wake.probe}"


def _trigger(trigger: ScaleTrigger) -> str:
    shown = redacted_metadata(trigger.type, trigger.metadata)
    words = [f"{name} {value}" for name, value in shown.items()]
    if trigger.effective_role is Role.VETO:
        words.append("keeps awake only (Veto)")
    return f"{trigger.type}: {', '.join(words)}" if words else trigger.type


def _replicas(target: MaybeTarget) -> str:
    if isinstance(target, Unreadable):
        return f"not known: {target.why}"
    return f"{target.wanted} wanted, {target.present} there"


def _conditions(found: Description) -> Iterator[str]:
    rows = [
        (
            entry.type,
            entry.status,
            entry.reason,
            ago(moment(entry.last_transition_time), found.now),
            with_time_left(entry.message or NOTHING, found.now),
        )
        for entry in found.es.status.conditions
    ]
    return _section("Conditions", ("TYPE", "STATUS", "REASON", "FOR", "MESSAGE"), rows)


def _pods(found: Description) -> Iterator[str]:
    def row(pod: PodSummary) -> Sequence[str]:
        return (
            pod.name,
            "yes" if pod.ready else "no",
            pod.phase,
            str(pod.restarts),
            pod.node or NOTHING,
            ago(pod.created, found.now),
            pod.trouble or NOTHING,
        )

    heads = ("NAME", "READY", "PHASE", "RESTARTS", "NODE", "AGE", "TROUBLE")
    return _part("Pods", heads, found.pods, row)


def _services(found: Description) -> Iterator[str]:
    ports = {port.port: port.resolver_port for port in found.es.status.resolver_ports}
    shown = ", ".join(f"{port} -> {resolver}" for port, resolver in ports.items())

    def row(service: ServiceSummary) -> Sequence[str]:
        return (
            service.role,
            service.name,
            service.kind if service.exists else "missing",
            service.address or NOTHING,
            ", ".join(service.ports) or NOTHING,
            (shown or NOTHING) if service.role == "public" else NOTHING,
        )

    heads = ("ROLE", "NAME", "TYPE", "ADDRESS", "PORTS", "RESOLVER PORTS")
    return _part("Services", heads, found.services, row)


def _slices(found: Description) -> Iterator[str]:
    def row(one: SliceSummary) -> Sequence[str]:
        ports = ", ".join(map(str, one.ports)) or NOTHING
        return one.service, one.of, f"{one.ready} of {one.total}", ports, one.name

    return _part("Endpoints", ("SERVICE", "OF", "READY", "PORTS", "SLICE"), found.slices, row)


def _events(found: Description) -> Iterator[str]:
    def row(event: EventSummary) -> Sequence[str]:
        when, count = ago(event.at, found.now), str(event.count)
        return when, event.kind, event.reason, count, event.about, event.message

    heads = ("AGE", "TYPE", "REASON", "COUNT", "ABOUT", "MESSAGE")
    return _part("Events", heads, found.events, row)


def _advice(found: Description) -> Iterator[str]:
    yield "\nAdvice:\n"
    for sentence in found.advice or ("Nothing is wrong.",):
        yield f"{_INDENT}{one_line(sentence)}\n"


def _field(label: str, value: str) -> str:
    return f"{label + ':':<{_LABEL}}{one_line(value)}\n"


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    body = list(rows)
    yield f"\n{title}:\n"
    yield table(heads, body, indent=_INDENT) if body else f"{_INDENT}none\n"


def _part(
    title: str,
    heads: Sequence[str],
    part: tuple[T, ...] | Unreadable,
    row: Callable[[T], Sequence[str]],
) -> Iterator[str]:
    """Yield a section of what was read, or why it was not."""
    if isinstance(part, Unreadable):
        return iter((f"\n{title}:\n{_INDENT}not known: {one_line(part.why)}\n",))
    return _section(title, heads, map(row, part))
