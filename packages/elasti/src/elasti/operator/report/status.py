"""The status of an ElastiService: conditions for what holds. Pure.

Status is written only if it differs, `lastReconciledTime` with it, so that an ElastiService at
rest costs no write. What passes quickly is left out (`may_wait`): a quick wake-up and the park after it
cost one write each. None of these writes is needed to be right after a crash.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from elasti.api.conditions import (
    DOZE_STUCK,
    MAY_SLEEP,
    READY,
    RESOLVER_AVAILABLE,
    SCALE_CONTESTED,
    SERVICE_FOUND,
    TARGET_FOUND,
    TRAFFIC_PATH,
    TRIGGERS_HEALTHY,
    Reason,
    WakeCause,
)
from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.states import DozeState, State, phase_of
from elasti.api.triggers.registry import self_sufficient_type
from elasti.api.types import (
    CapacityStatus,
    DozeStatus,
    ElastiService,
    ElastiServiceStatus,
    LastWake,
    ResolverPort,
    ScaleTrigger,
    StatusCondition,
    TriggerStatus,
)
from elasti.api.usage import counted, with_cause
from elasti.operator.idleness.decide import Evidence, format_moment, no_triggers, obstacle
from elasti.operator.model.facts import Facts, Verdict
from elasti.operator.model.state import ServiceState
from elasti.operator.report.events import contested_text
from elasti.operator.settings import OperatorSettings
from kubeloop.objects.core import Service
from kubeloop.objects.times import format_time, unix_seconds

_STEADY = 60.0
_LONGEST_ERROR = 512
# Another replica notes a wake-up of its own after the fact, and clocks differ.
_NOTED_WITHIN = 30.0
_UNREAD = frozenset({Reason.NOT_READ_YET, Reason.TRIGGERS_UNREAD})
_IN_USE = frozenset({Reason.COOLDOWN, Reason.IN_USE, Reason.IDLE})
_WITHOUT_OBSTACLE: dict[State | None, str] = {
    State.PROXY: Reason.ASLEEP,
    State.ENGAGING: Reason.FALLING_ASLEEP,
    State.DRAINING: Reason.FALLING_ASLEEP,
    State.PARKING: Reason.FALLING_ASLEEP,
}


def status_of(
    facts: Facts,
    state: ServiceState,
    evidence: Sequence[Evidence],
    now: dt.datetime,
    *,
    sleeps_at: float | None = None,
) -> ElastiServiceStatus:
    """Return the status that an ElastiService should have.

    `sleeps_at`: when it can sleep if it stays unused, in seconds since 1970.
    """
    es, current = facts.es, state.current
    # Without its Service, or while its kind cannot be read, a target that we put to sleep still sleeps.
    still = facts.at_zero or facts.kind_unusable
    asleep = current is State.PROXY or (
        current is None and still and es.status.asleep_since is not None
    )
    triggers = trigger_statuses(es, evidence, now.timestamp(), asleep=asleep)
    quiet = [trigger.quiet_since for trigger in triggers if trigger.quiet_since]
    all_quiet = max(quiet) if quiet and len(quiet) == len(triggers) else None
    phase = phase_of(current, state.doze.state)
    looking = facts.decision.verdict is Verdict.LOOK
    counts_down = all_quiet is not None and (current is State.SERVE or looking)
    last_wake = _last_wake(es.status, state, now.timestamp())
    woken_at = state.requests.woken_at
    usage = counted(
        es.status,
        asleep=asleep,
        empty=asleep and not facts.pods_left,
        capacity=facts.capacity,
        doze=state.doze.status,
        dozed=CapacityStatus(*state.doze.released),
        now=now,
        woken=format_moment(woken_at) if woken_at is not None else "",
    )
    return ElastiServiceStatus(
        phase=phase,
        since=es.status.since if phase == es.status.phase else format_time(now),
        quiet_since=all_quiet,
        sleeps_at=steady_moment(es.status.sleeps_at, sleeps_at) if counts_down else None,
        asleep_since=(es.status.asleep_since or format_time(now)) if asleep else None,
        triggers=triggers,
        last_wake=last_wake,
        awake_until=format_moment(kept.until)
        if (kept := obstacle(facts, state)) is not None and kept.until is not None
        else None,
        warnings=tuple(dict.fromkeys(one.reason for one in (*facts.absences, *facts.findings))),
        sleep_request=state.requests.sleep_outcome or es.status.sleep_request,
        usage=usage.usage,
        capacity=usage.capacity,
        doze=state.doze.status,
        released_since=usage.released_since,
        recent=with_cause(usage.recent, last_wake),
        targets=state.workers.statuses,
        mode=current.mode if current else "",
        last_reconciled_time=es.status.last_reconciled_time,
        last_scaled_up_time=format_moment(scaled_at)
        if (scaled_at := state.requests.scaled_at) is not None
        else es.status.last_scaled_up_time,
        observed_generation=es.metadata.generation,
        state=current.value if current else "",
        replicas=facts.target.spec_replicas if facts.target else 0,
        held=state.handover.held,
        previous_replicas=es.status.previous_replicas,
        resolver_ports=port_statuses(facts.service, facts.ports) or es.status.resolver_ports,
        conditions=merged(
            es.status.conditions, _conditions(facts, state, evidence), now=format_time(now)
        ),
    )


def trigger_statuses(
    es: ElastiService, evidence: Sequence[Evidence], now: float, *, asleep: bool = False
) -> tuple[TriggerStatus, ...]:
    """Return what the triggers have shown; of one that was not read yet, what status says."""
    kept = es.status.triggers if es.status.observed_generation == es.metadata.generation else ()
    return tuple(
        _trigger_status(
            trigger,
            evidence[index] if index < len(evidence) else None,
            kept[index]
            if index < len(kept)
            else TriggerStatus(trigger.type, role=trigger.effective_role),
            now,
            asleep=asleep,
        )
        for index, trigger in enumerate(es.spec.triggers)
    )


def _trigger_status(
    spec: ScaleTrigger, evidence: Evidence | None, old: TriggerStatus, now: float, *, asleep: bool
) -> TriggerStatus:
    if evidence is None or evidence.is_pending or evidence.last is None:
        return old
    # An end is reported at once, since the next leader believes what it finds; a beginning after a while.
    # The quiet of a sleep ends with it, and in a sleep no beginning is of use.
    since = evidence.quiet_since if asleep or not evidence.asleep else None
    quiet = steady_moment(old.quiet_since, since)
    if quiet != old.quiet_since and (asleep or not evidence.is_calm(now)):
        quiet = None
    usable = evidence.last.usable
    return TriggerStatus(
        type=spec.type,
        threshold=f"{evidence.threshold:g}",
        quiet_since=quiet,
        last_error="" if usable else (evidence.last.error or "its value is NaN")[:_LONGEST_ERROR],
        role=spec.effective_role,
    )


def steady_moment(reported: str | None, moment: float | None) -> str | None:
    """Return a moment as status has it, or the new one if it has moved by a minute or more."""
    if moment is None:
        return None
    if reported and abs(unix_seconds(reported) - moment) < _STEADY:
        return reported
    return format_moment(moment)


def _last_wake(old: ElastiServiceStatus, state: ServiceState, now: float) -> LastWake | None:
    """Return the last wake-up: what is known here, or what the replica that made it has written."""
    asked, woken_at, last = state.requests, state.requests.woken_at, old.last_wake
    if woken_at is None:
        return last
    # A wake-up that is over does not count as a note of this one, however short the sleep in between.
    noted = (
        last is not None
        and last.seconds is None
        and unix_seconds(last.time) >= woken_at - _NOTED_WITHIN
    )
    over = not state.waking
    awaits_note = asked.scaled_at is None and asked.cause in (None, WakeCause.REQUEST)
    if not noted and not over and awaits_note:
        return last
    if last is None or not noted:
        cause = asked.cause or WakeCause.SCALED
        last = LastWake(format_moment(woken_at), cause, asked.client, wake_id=asked.wake_id)
    took = now - min(woken_at, unix_seconds(last.time)) if asked.waited is None else asked.waited
    return msgspec.structs.replace(last, seconds=round(took, 2)) if over else last


def port_statuses(service: Service | None, ports: Mapping[int, int]) -> tuple[ResolverPort, ...]:
    """Return the resolver's ports as status shows them."""
    return tuple(
        ResolverPort(port=port.port, resolver_port=ports[port.port], name=port.name)
        for port in (service.tcp_ports if service else ())
        if port.port in ports
    )


def status_patch(
    old: ElastiServiceStatus, new: ElastiServiceStatus, now: dt.datetime
) -> dict[str, Any] | None:
    """Return the fields to merge into one status to make it another; None if nothing differs.

    `lastScaledUpTime` and `lastWake` are left out unless they change: any replica writes them, each
    when it wakes. `previousReplicas` is the park's to write.
    """
    if old == new:
        return None
    names = ElastiServiceStatus.__struct_encode_fields__
    values = map(msgspec.to_builtins, msgspec.structs.astuple(new))
    fields = dict(zip(names, values, strict=True))
    fields["lastReconciledTime"] = format_time(now)
    del fields["previousReplicas"]
    if not new.targets and not old.targets:
        del fields["targets"]
    if new.last_scaled_up_time == old.last_scaled_up_time:
        del fields["lastScaledUpTime"]
    if new.last_wake is None or new.last_wake == old.last_wake:
        del fields["lastWake"]
    else:
        fields["lastWake"] = _wake_fields(new.last_wake)
    fields["doze"] = doze_fields(new.doze)
    if new.doze == old.doze:
        del fields["doze"]  # the cache may be older than the originals of a former leader
    return fields


def doze_fields(doze: DozeStatus | None) -> dict[str, Any] | None:
    """Return a doze as a merge patch: fields that it lacks become null."""
    if doze is None:
        return None
    fields: dict[str, Any] = dict.fromkeys(DozeStatus.__struct_encode_fields__)
    fields |= msgspec.to_builtins(doze)
    return fields


def may_wait(
    facts: Facts, state: ServiceState, new: ElastiServiceStatus, settings: OperatorSettings
) -> float:
    """Return for how many seconds this report may wait, to be merged into the next.

    Never if a person waits for it, the problems change, or the quiet of an awake target ends.
    """
    old = facts.es.status
    if (
        {WAKE_ANNOTATION, SLEEP_ANNOTATION} & (facts.es.metadata.annotations or {}).keys()
        or old.observed_generation != new.observed_generation
        or _health(old) != _health(new)
        or old.sleep_request != new.sleep_request
        or (old.quiet_since and not new.quiet_since and not old.asleep_since)
    ):
        return 0.0
    settle = settings.engage_settle
    match state.current:
        case State.WAKING | State.RELEASING:
            return 2.5 * settings.release_settle
        case State.ENGAGING | State.PARKING if state.look(settle) <= settle:
            return 4 / 3 * settle
        case State.PROXY if facts.pods_left and facts.capacity is not None:
            # The last pod's end is reported as well.
            return settle
        case State.SERVE if (
            msgspec.structs.replace(new, conditions=old.conditions, awake_until=old.awake_until)
            == old
            and {_why(old), _why(new)} <= _IN_USE
        ):
            # One cooldown after the other ends, and then it goes to sleep.
            return 4 * settle
    return 0.0


def _health(status: ElastiServiceStatus) -> set[tuple[str, str]]:
    return {(entry.type, entry.status) for entry in status.conditions if entry.type != MAY_SLEEP}


def _why(status: ElastiServiceStatus) -> str:
    return next((entry.reason for entry in status.conditions if entry.type == MAY_SLEEP), "")


def _wake_fields(wake: LastWake) -> dict[str, Any]:
    """Return a wake-up as a merge patch: null for the fields that it lacks, which clears older ones."""
    fields: dict[str, Any] = msgspec.to_builtins(wake)
    return {"client": None, "seconds": None, "wakeId": None} | fields


def wake_note(now: dt.datetime, cause: WakeCause, client: str, wake_id: str) -> dict[str, Any]:
    """Return what any replica writes into status after a request has woken a target."""
    time = format_time(now)
    wake = LastWake(time, cause, client, wake_id=wake_id)
    return {"lastScaledUpTime": time, "lastWake": _wake_fields(wake)}


def _conditions(
    facts: Facts, state: ServiceState, evidence: Sequence[Evidence]
) -> list[StatusCondition]:
    generation, path = facts.es.metadata.generation, facts.path
    known = {} if _all_read(evidence) else _left_by_former_leader(facts.es, state)
    entries = [
        _ready(facts),
        _found(TARGET_FOUND, facts.target, facts.target_problem),
        _found(SERVICE_FOUND, facts.service, facts.service_problem),
        _resolver_available(facts),
        _triggers_healthy(facts, evidence),
        _scale_contested(facts, state),
        condition(TRAFFIC_PATH, holds=path.holds, reason=path.reason, message=path.message),
        _may_sleep(facts, state),
    ]
    if facts.es.spec.sleep.mode != "Zero":
        entries.append(_doze_stuck(state))
    return [
        known[entry.type]
        if entry.reason in _UNREAD and entry.type in known
        else msgspec.structs.replace(entry, observed_generation=generation)
        for entry in entries
    ]


def _all_read(evidence: Sequence[Evidence]) -> bool:
    return bool(evidence) and not any(item.is_pending for item in evidence)


def _left_by_former_leader(es: ElastiService, state: ServiceState) -> dict[str, StatusCondition]:
    """Return what status says of the same object in the same state.

    A new leader knows nothing of the triggers for a moment; to write that into every status, and a
    second later what was there before, would be two writes for each ElastiService at every start.
    """
    current, generation = state.current.value if state.current else "", es.metadata.generation
    if es.status.state != current:
        return {}
    return {old.type: old for old in es.status.conditions if old.observed_generation == generation}


def _ready(facts: Facts) -> StatusCondition:
    if (refused := facts.unready) is not None:
        return condition(READY, holds=False, reason=refused.reason, message=refused.message)
    warnings = " ".join(f"{finding.message}." for finding in facts.findings)
    return condition(READY, holds=True, reason=Reason.VALID, message=warnings)


def _found(kind: str, found: object | None, problem: str) -> StatusCondition:
    if found is None:
        return condition(kind, holds=False, reason=Reason.NOT_FOUND, message=problem)
    return condition(kind, holds=True, reason=Reason.FOUND)


def _resolver_available(facts: Facts) -> StatusCondition:
    if facts.resolvers:
        return condition(RESOLVER_AVAILABLE, holds=True, reason=Reason.AVAILABLE)
    message = (
        "no resolver is ready, so no target is put to sleep, and sleeping targets are not"
        " reachable; check the pods of the resolver's Deployment"
    )
    return condition(RESOLVER_AVAILABLE, holds=False, reason=Reason.NONE_READY, message=message)


def _triggers_healthy(facts: Facts, evidence: Sequence[Evidence]) -> StatusCondition:
    if not facts.es.spec.triggers:
        emptied = facts.es.spec.given_triggers is not None
        reason = Reason.NO_TRIGGERS if emptied else Reason.NO_DEFAULT_TRIGGERS
        message = (
            "spec.triggers is left out, and the installation had no default for it when this object was"
            f" first seen; add a trigger, such as {{type: {self_sufficient_type()}}}"
        )
        message = no_triggers() if emptied else message
        return condition(TRIGGERS_HEALTHY, holds=False, reason=reason, message=message)
    if not _all_read(evidence):
        return condition(TRIGGERS_HEALTHY, holds=None, reason=Reason.NOT_READ_YET)
    broken = [
        f"triggers[{index}]: {item.last.error or 'its value is NaN'}"
        for index, item in enumerate(evidence)
        if item.last is not None and not item.last.usable
    ]
    reason = Reason.FAILING if broken else Reason.HEALTHY
    message = "; ".join(broken)
    return condition(TRIGGERS_HEALTHY, holds=not broken, reason=reason, message=message)


def _scale_contested(facts: Facts, state: ServiceState) -> StatusCondition:
    if not state.conflict.is_contested:
        return condition(SCALE_CONTESTED, holds=False, reason=Reason.NOT_CONTESTED)
    message = contested_text(facts.es, state.conflict.by)
    return condition(SCALE_CONTESTED, holds=True, reason=Reason.UNDONE_REPEATEDLY, message=message)


def _doze_stuck(state: ServiceState) -> StatusCondition:
    stuck = state.doze.state is DozeState.STUCK
    reason = state.doze.stuck_reason if stuck else Reason.NOT_STUCK
    message = state.doze.stuck if stuck else ""
    return condition(DOZE_STUCK, holds=stuck, reason=reason or Reason.DEFERRED, message=message)


def _may_sleep(facts: Facts, state: ServiceState) -> StatusCondition:
    found = obstacle(facts, state)
    reason = found.reason if found else _WITHOUT_OBSTACLE.get(state.current, Reason.IDLE)
    if found is None and state.doze.state in (DozeState.SHRINKING, DozeState.DOZING):
        reason = Reason.DOZING if state.current is State.SERVE else reason
    return condition(
        MAY_SLEEP,
        holds=found is None if state.current else None,
        reason=reason,
        message=found.message if found else "",
    )


def condition(kind: str, *, holds: bool | None, reason: str, message: str = "") -> StatusCondition:
    """Make a condition; its transition time is found by `merged`."""
    words: dict[bool | None, Literal["True", "False", "Unknown"]]
    words = {True: "True", False: "False", None: "Unknown"}
    return StatusCondition(type=kind, status=words[holds], reason=reason, message=message)


def merged(
    present: Sequence[StatusCondition], new: Iterable[StatusCondition], *, now: str
) -> tuple[StatusCondition, ...]:
    """Return new conditions, each with the time at which its status last changed."""
    since = {(old.type, old.status): old.last_transition_time for old in present}
    return tuple(
        msgspec.structs.replace(
            entry, last_transition_time=since.get((entry.type, entry.status)) or now
        )
        for entry in new
    )
