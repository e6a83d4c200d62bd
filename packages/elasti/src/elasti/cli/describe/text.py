"""One ElastiService as text for a person. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from elasti.api.names import (
    ENROLLED_FROM_ANNOTATION,
    ENROLLED_LABEL,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.api.observed import explained, quiet_share
from elasti.api.schedules import outlook
from elasti.api.states import NOT_READY, OBSERVED, DozeState, State, state_text
from elasti.api.triggers.registry import Role, redacted_metadata
from elasti.api.types import CapacityStatus
from elasti.api.view import moment, why_of, worker_lines
from elasti.cli.describe.model import (
    Description,
    EventSummary,
    PodSummary,
    ServiceSummary,
    SliceSummary,
    Unreadable,
)
from elasti.cli.rendering import NOTHING, ago, counted, duration, one_line, table, with_time_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasti.api.types import (
        ElastiServiceSpec,
        ElastiServiceStatus,
        ObservedStatus,
        ScaleTrigger,
        StatusCondition,
        TriggerStatus,
    )

T = TypeVar("T")
_INDENT = "  "
_LABEL = 16


def as_text(found: Description) -> str:
    """Return everything, section by section."""
    heads = [(f"{label}:" if label else "", value) for label, value in _summary(found)]
    fields = [f"{head:<{_LABEL}}{one_line(value)}\n" for head, value in heads]
    sections = [part(found) for part in (_conditions, _pods, _services, _slices, _events)]
    advice = [f"{_INDENT}{one_line(line)}\n" for line in found.advice or ("Nothing is wrong.",)]
    return "".join([*fields, *sections, "\nAdvice:\n", *advice])


def _summary(found: Description) -> Iterator[tuple[str, str]]:
    es, spec, status = found.es, found.es.spec, found.es.status
    ref = spec.scale_target_ref
    yield "Name", es.metadata.name
    yield "Namespace", es.metadata.namespace
    if ENROLLED_LABEL in (es.metadata.labels or {}):
        template = (
            (es.metadata.annotations or {}).get(ENROLLED_FROM_ANNOTATION, "").partition("/")[0]
        )
        yield "Enrolled", f"from ElastiTemplate {template or 'unknown'}"
    yield "Service", spec.service
    replicas = (
        f"unknown: {found.target.why}"
        if isinstance(found.target, Unreadable)
        else f"{found.target.wanted} desired, {found.target.present} running"
    )
    yield "Target", f"{ref.kind}/{ref.name} ({ref.api_version}): {replicas}"
    yield from _wanted(spec, status)
    found_doze = status.doze.state if status.doze is not None else ""
    shown = state_text(status.state, found_doze)
    if spec.observes and status.state == State.SERVE:
        yield "State", f"{OBSERVED}: Elasti scales nothing"
    else:
        yield "State", str(shown or (NOT_READY if status.conditions else NOTHING))
    if status.observed is not None:
        yield from _observed(status.observed, found)
    if planned := outlook(es, found.now):
        yield "Schedule", planned
    yield "Held", str(found.held) if found.held is not None else f"unknown: {found.held_why}"
    yield from _seen(status, found)
    asleep = "it dozes" if found_doze else "it is asleep"
    yield "Why not asleep", with_time_left(why_of(es), found.now) or asleep
    for index, line in enumerate(found.dependencies):
        yield "Depends on" if not index else "", line
    for index, line in enumerate(worker_lines(es)):
        yield "Sleeps with it" if not index else "", line
    for label, annotation in (("Wake asked", WAKE_ANNOTATION), ("Sleep asked", SLEEP_ANNOTATION)):
        if text := (es.metadata.annotations or {}).get(annotation):
            asked = moment(text.partition(" ")[0])
            yield label, f"{ago(asked, found.now)} ago" if asked else text


def _seen(status: ElastiServiceStatus, found: Description) -> Iterator[tuple[str, str]]:
    """Yield the operator's notes on wake-ups, sleep and triggers."""
    woken, wake = moment(status.last_scaled_up_time), status.last_wake
    text = NOTHING if woken is None else f"{ago(woken, found.now)} ago"
    if wake is not None and (began := moment(wake.time)) is not None:
        by = f" ({wake.client})" if wake.client else ""
        took = f", took {wake.seconds:g} s" if wake.seconds is not None else ""
        logged = f", wake_id {wake.wake_id}" if wake.wake_id else ""
        text = f"{ago(began, found.now)} ago: {wake.cause}{by}{took}{logged}"
    yield "Last wake", text
    if (asleep := moment(status.asleep_since)) is not None:
        yield "Asleep for", ago(asleep, found.now)
    if (doze := status.doze) is not None:
        done = "restored" if doze.state in (DozeState.GROWING, DozeState.STUCK) else "shrunk"
        back = status.capacity if status.released_since and status.capacity else CapacityStatus()
        memory = f" and {back.memory_bytes // 2**20} MiB of memory" if back.memory_bytes else ""
        given = f"{back.cpu_millicores}m CPU{memory} given back"
        pods = f"{doze.pods} of {counted(doze.pods + doze.pending, 'pod')} {done}"
        yield "Dozing for", f"{ago(moment(doze.since), found.now)}: {pods}, {given}"
        for one in doze.containers:
            both = (("CPU", one.cpu, one.dozed_cpu), ("memory", one.memory, one.dozed_memory))
            changed = ", ".join(f"{what} {full} -> {small}" for what, full, small in both if full)
            yield f"Request {one.name}", f"{changed} (template {one.template})"
    if (sleeps := moment(status.sleeps_at)) is not None and sleeps > found.now:
        yield "Sleeps in", f"{duration((sleeps - found.now).total_seconds())} if unused"
    for index, trigger in enumerate(status.triggers):
        value = found.values.get(index)
        now = f"{value:g} now, " if value is not None else ""
        yield f"Trigger {index} is", now + _shown(trigger, found)
    if status.usage is not None:
        slept = duration(status.usage.asleep_seconds)
        since = ago(moment(status.usage.since), found.now)
        wakes = counted(status.usage.wakes, "wake-up")
        dozing = status.usage.dozing_seconds
        dozed = f", {duration(dozing)} dozing" if dozing else ""
        yield "Usage", f"{wakes} and {slept} asleep{dozed} in {since}"


def _observed(observed: ObservedStatus, found: Description) -> Iterator[tuple[str, str]]:
    known, share = duration(observed.observed_seconds), quiet_share(observed)
    since, wakes = ago(moment(observed.since), found.now), counted(observed.wakes, "wake-up")
    yield "Would sleep", f"{share:.0%} of {known} known in {since}, with {wakes}"
    if (start := observed.cold_start_seconds) is not None:
        yield "Cold start", f"p50 {start.p50:g} s, p95 {start.p95:g} s ({start.basis})"
    why = explained(observed.reasons)
    yield "Verdict", f"{observed.verdict}: {why}" if why else observed.verdict


def _shown(trigger: TriggerStatus, found: Description) -> str:
    if trigger.last_error:
        return f"failing: {trigger.last_error}"
    if (quiet := moment(trigger.quiet_since)) is None:
        return "active within the last minute"
    below = f"below {trigger.threshold}" if trigger.threshold else "quiet"
    return f"{below} for {ago(quiet, found.now)}"


NO_TRIGGERS = "none: it sleeps only on request"


def _wanted(spec: ElastiServiceSpec, status: ElastiServiceStatus) -> Iterator[tuple[str, str]]:
    yield "Cooldown", duration(spec.cooldown)
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
    for one in spec.schedules:
        when = f"{one.during or one.dates} ({one.timezone})"
        yield f"Keep {one.keep}", f"{one.name}: {when}{', warmed by then' if one.warm_by else ''}"
    wake = spec.wake
    limits = f"connections held for {wake.timeout_seconds} s at most, {wake.max_held} a resolver"
    yield "Wake", f"to {spec.min_target_replicas}, {limits}, probe {wake.probe}, TCP {wake.tcp}"
    given, rules = wake.ignore.presets, wake.ignore.rules
    presets = "the installation's presets" if given is None else ", ".join(given) or "no preset"
    yield "Ignores", f"{presets}, {counted(len(rules), 'own rule')}" if rules else presets


def _trigger(trigger: ScaleTrigger) -> str:
    shown = redacted_metadata(trigger.type, trigger.metadata)
    words = [f"{name} {value}" for name, value in shown.items()]
    if trigger.effective_role is Role.VETO:
        words.append("keeps awake only (Veto)")
    return f"{trigger.type}: {', '.join(words)}" if words else trigger.type


def _conditions(found: Description) -> str:
    def row(entry: StatusCondition) -> Sequence[str]:
        since = ago(moment(entry.last_transition_time), found.now)
        return entry.type, entry.status, entry.reason, since, entry.message or NOTHING

    heads = ("TYPE", "STATUS", "REASON", "FOR", "MESSAGE")
    return _section("Conditions", heads, found.es.status.conditions, row)


def _pods(found: Description) -> str:
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
    return _section("Pods", heads, found.pods, row)


def _services(found: Description) -> str:
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
    return _section("Services", heads, found.services, row)


def _slices(found: Description) -> str:
    def row(one: SliceSummary) -> Sequence[str]:
        ports = ", ".join(map(str, one.ports)) or NOTHING
        return one.service, one.of, f"{one.ready} of {one.total}", ports, one.name

    return _section("Endpoints", ("SERVICE", "OF", "READY", "PORTS", "SLICE"), found.slices, row)


def _events(found: Description) -> str:
    def row(event: EventSummary) -> Sequence[str]:
        when, count = ago(event.at, found.now), str(event.count)
        return when, event.kind, event.reason, count, event.about, event.message

    heads = ("AGE", "TYPE", "REASON", "COUNT", "ABOUT", "MESSAGE")
    return _section("Events", heads, found.events, row)


def _section(
    title: str,
    heads: Sequence[str],
    part: Sequence[T] | Unreadable,
    row: Callable[[T], Sequence[str]],
) -> str:
    """Return a section, or the reason why it could not be read."""
    if isinstance(part, Unreadable):
        return f"\n{title}:\n{_INDENT}unknown: {one_line(part.why)}\n"
    rows = [row(one) for one in part]
    body = table(heads, rows, indent=_INDENT) if rows else f"{_INDENT}none\n"
    return f"\n{title}:\n{body}"
