"""The page's view of ElastiServices, as values for JSON. Pure.

The page adds only spans of time, and writes text as text, never as markup.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from elasti.api.conditions import TRIGGERS_HEALTHY, TROUBLES, Reason
from elasti.api.names import DOZE_GUARD, KEEP_AWAKE_ANNOTATION
from elasti.api.observed import explained
from elasti.api.schedules import outlook
from elasti.api.states import State
from elasti.api.types import ElastiService
from elasti.api.usage import MOST_RECENT, recorded_sleeps
from elasti.api.view import moment, row_of, shown_state, why_of, worker_lines
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import format_time

_WEEK = dt.timedelta(days=7)
_PATIENCE = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """Context that an object does not have: the time, the start of the day, held connections."""

    now: dt.datetime
    midnight: dt.datetime
    held: Mapping[tuple[str, str], int] | None = None


def key_of(es: ElastiService) -> str:
    """Return the key of its row."""
    return f"{es.metadata.namespace}/{es.metadata.name}"


def service_row(es: ElastiService, around: Surroundings) -> JsonObject:
    """Return a row of the table."""
    row, status = row_of(es, around.held), es.status
    kept = (es.metadata.annotations or {}).get(KEEP_AWAKE_ANNOTATION)
    until, wake, capacity = moment(kept), status.last_wake, status.capacity
    is_kept = until is not None and until > around.now and kept != DOZE_GUARD
    observed = status.observed if es.spec.observes else None
    released = None
    if capacity and status.released_since:
        released = {"cpu": capacity.cpu_millicores, "memory": capacity.memory_bytes}
    return {
        "key": key_of(es),
        "namespace": row.namespace,
        "name": row.name,
        "service": row.service,
        "target": row.target,
        "state": row.state if status.conditions else state_of(es),
        "since": status.since if row.state == shown_state(es) else None,
        "trouble": trouble_of(es, around.now),
        "why": row.to_json()["whyNotAsleep"],
        "sleepsAt": status.sleeps_at,
        "held": row.held,
        "coldStart": wake.seconds if wake else None,
        "wakesToday": wakes_since(es, around.midnight),
        "lastWake": msgspec.to_builtins(wake),
        "released": released,
        "counted": capacity is not None,
        "observed": msgspec.to_builtins(observed),
        "observedWhy": explained(observed.reasons) if observed else "",
        "suspended": es.spec.suspended,
        "keptUntil": kept if is_kept else None,
    }


def state_of(es: ElastiService) -> str:
    """Return its state in a word, also while the operator has not reported one."""
    return "pending" if not es.status.conditions else shown_state(es)


def trouble_of(es: ElastiService, now: dt.datetime) -> str:
    """Return the problem that does not pass by itself, as a sentence, or ""."""
    if es.metadata.deletion_timestamp:
        return ""
    found = {entry.type: entry for entry in es.status.conditions}
    if not found:
        return why_of(es).message if _lasts(es.metadata.creation_timestamp, now) else ""
    for kind, bad in TROUBLES:
        entry = found.get(kind)
        if entry is not None and entry.status == bad:
            return entry.message or entry.reason
    # Triggers fail while pods start. Having none is not a problem: the user puts it to sleep by hand.
    triggers = found.get(TRIGGERS_HEALTHY)
    if triggers is not None and triggers.reason == Reason.FAILING:
        return triggers.message if _lasts(triggers.last_transition_time, now) else ""
    if es.status.state == State.WAKING and _lasts(es.status.since, now):
        ref = es.spec.scale_target_ref
        return f"waking for too long; check why no pod of {ref.kind} {ref.name} is ready"
    return ""


def _lasts(since: str | None, now: dt.datetime) -> bool:
    began = moment(since)
    return began is not None and (now - began).total_seconds() >= _PATIENCE


def wakes_since(es: ElastiService, start: dt.datetime) -> str:
    """Return how many wake-ups are recorded since then, with a plus if there may be more."""
    ends = [moment(sleep.until) for sleep in es.status.recent]
    count = sum(end is not None and end >= start for end in ends)
    return f"{count}+" if count == MOST_RECENT else str(count)


# One of them


def service_detail(es: ElastiService, around: Surroundings) -> JsonObject:
    """Return the part of its own page that comes from the object."""
    return {
        "row": service_row(es, around),
        "schedule": outlook(es, around.now),
        "workers": worker_lines(es),
        "history": history(es, around.now),
        "conditions": msgspec.to_builtins(es.status.conditions),
        "triggers": msgspec.to_builtins(es.status.triggers),
    }


def history(es: ElastiService, now: dt.datetime) -> JsonObject:
    """Return the recorded sleeps of the last week, and what ended each."""
    status, start = es.status, now - _WEEK
    if status.usage is None:
        known, asleep, wakes = now, 0, 0
    else:
        began = max(start, moment(status.usage.since) or now)
        known, asleep, wakes = recorded_sleeps(status, now, began)
    sleeps = list(msgspec.to_builtins(status.recent))
    if status.asleep_since is not None:
        sleeps.append({"since": status.asleep_since})
    elif status.doze is not None:
        sleeps.append({"since": status.doze.since, "mode": "Doze"})
    word = "asleep or dozing" if any(one.get("mode") for one in sleeps) else "asleep"
    share = asleep / max((now - known).total_seconds(), 1.0)
    return {
        "knownSince": format_time(known),
        "sleeps": sleeps,
        "text": f"{word} {min(share, 1.0):.0%}, {wakes} wake-up{'' if wakes == 1 else 's'}",
    }


def cold_start_stages(es: ElastiService, pods: Sequence[JsonObject]) -> list[JsonObject]:
    """Return how long each stage of the last cold start took, as its first pod reports it.

    Kubernetes keeps whole seconds. Empty if the wake-up took less, that pod is gone, or the wake-up is not over.
    """
    wake = es.status.last_wake
    began = moment(wake.time) if wake else None
    if wake is None or began is None or wake.seconds is None or wake.seconds < 1.0:
        return []
    second = dt.timedelta(seconds=1)
    made = [(moment(pod["metadata"].get("creationTimestamp")), pod) for pod in pods]
    started = [(at, pod) for at, pod in made if at is not None and at >= began - second]
    if not started:
        return []
    at, pod = min(started, key=lambda entry: entry[0])
    end = began + dt.timedelta(seconds=wake.seconds)
    moments = (
        ("Pod created", at),
        ("Pod scheduled", _condition_time(pod, "PodScheduled")),
        ("Containers running", _running_time(pod)),
        ("Pod ready", _condition_time(pod, "Ready")),
        ("Client served" if wake.client else "Traffic switched", end),
    )
    stages, before = [], began
    for name, reported in moments:
        if reported is not None:
            # Clients are served before Kubernetes calls the pod ready.
            reached = min(reported, end)
            seconds = max((reached - before).total_seconds(), 0.0)
            stages.append({"name": name, "seconds": round(seconds, 1)})
            before = max(reached, before)
    return stages


def _condition_time(pod: JsonObject, kind: str) -> dt.datetime | None:
    conditions: list[dict[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    found = (c.get("lastTransitionTime") for c in conditions if c.get("type") == kind)
    return moment(next(found, None))


def _running_time(pod: JsonObject) -> dt.datetime | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    times = [
        moment(((one.get("state") or {}).get("running") or {}).get("startedAt")) for one in statuses
    ]
    return max((time for time in times if time is not None), default=None)
