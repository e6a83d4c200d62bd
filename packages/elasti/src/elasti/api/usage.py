"""The capacity that a target's sleep releases, counted at transitions. Pure.

Released is what the target's minimum replicas request, for as long as none of its pods is left. It
begins when the last pod is gone and ends when the scale is written up again. `status` keeps what is over
(`usage`), the present period (`releasedSince`) and its rate (`capacity`): a crash loses no more than the
time until the next leader looks. Nothing is counted that was not released, unless another writer scales a
target up while no operator leads.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from elasti.api.conditions import WakeCause
from elasti.api.types import (
    CapacityStatus,
    DozeStatus,
    ElastiService,
    ElastiServiceStatus,
    LastWake,
    SleepRecord,
    UsageStatus,
)
from kubeloop.objects.quantities import Quantity
from kubeloop.objects.times import format_time, parse_time, unix_seconds

MOST_RECENT = 20
NOTHING = CapacityStatus()
_FLAPS, _SHORT_SLEEP = 5, 120.0
"""How many sleeps in a row, each of at most that many seconds, are flapping."""
_DAMPING, _MOST_DAMPING = 4, 3600.0
"""How many times as long the cooldown of a flapping target is, and how many seconds longer at most."""
_CLOCK_SECONDS = 4.0
"""The jitter that whole seconds and a busy cluster may add to a steady period."""
_SAME_WAKE = 30.0
"""A wake-up and the end of a sleep that are nearer than that are one: two replicas note them."""


class UsageFields(NamedTuple):
    """The fields of status that count."""

    usage: UsageStatus
    released_since: str | None
    recent: tuple[SleepRecord, ...]
    capacity: CapacityStatus | None


def counted(
    old: ElastiServiceStatus,
    *,
    asleep: bool,
    empty: bool,
    capacity: CapacityStatus | None,
    now: dt.datetime,
    woken: str = "",
    doze: DozeStatus | None = None,
    dozed: CapacityStatus = NOTHING,
) -> UsageFields:
    """Return what to write if status was `old`.

    `empty`: asleep, and no pod is left. `woken`: when a wake-up began that is not in status yet. `dozed`:
    what a doze has released.
    """
    time = format_time(now)
    if doze is not None and dozed != NOTHING:
        empty, capacity = True, dozed
    # Of a wake-up without a leader the note in status is all there is.
    woken = woken or (old.last_wake.time if old.last_wake is not None else "")
    usage = old.usage or UsageStatus(since=time)
    since, recent = old.released_since, old.recent
    if since is not None:
        end = _end(since, woken, time)
        if not empty or end != time or capacity != old.capacity:
            usage = _added(usage, old.capacity, since, end)
            since = None
    if empty and capacity is not None and since is None:
        since = time
    if old.asleep_since is not None and not asleep:
        until = _end(old.asleep_since, woken, time)
        slept = max(unix_seconds(until) - unix_seconds(old.asleep_since), 0.0)
        usage = msgspec.structs.replace(
            usage, asleep_seconds=usage.asleep_seconds + round(slept), wakes=usage.wakes + 1
        )
        recent = (*recent, SleepRecord(old.asleep_since, until))[-MOST_RECENT:]
    if old.doze is not None and (doze is None or doze.since != old.doze.since):
        until = _end(old.doze.since, woken, time)
        dozing = max(round(unix_seconds(until) - unix_seconds(old.doze.since)), 0)
        wakes, dozing = usage.wakes + (until == woken), usage.dozing_seconds + dozing
        usage = msgspec.structs.replace(usage, dozing_seconds=dozing, wakes=wakes)
        recent = (*recent, SleepRecord(old.doze.since, until, mode="Doze"))[-MOST_RECENT:]
    return UsageFields(usage, since, recent, capacity)


def with_cause(recent: tuple[SleepRecord, ...], wake: LastWake | None) -> tuple[SleepRecord, ...]:
    """Return the sleeps with what ended the last of them, once that wake-up is over."""
    if not recent or wake is None or wake.seconds is None:
        return recent
    last, woken = recent[-1], unix_seconds(wake.time)
    if woken < unix_seconds(last.since) or abs(woken - unix_seconds(last.until)) > _SAME_WAKE:
        return recent
    ended = msgspec.structs.replace(last, cause=wake.cause, seconds=wake.seconds)
    return (*recent[:-1], ended)


def is_flapping(status: ElastiServiceStatus, now: dt.datetime) -> bool:
    """Whether a client wakes the target soon after each sleep, at a steady period.

    A scraper or a health check does so. People come back at irregular times. A target that sleeps longer
    than it is awake is not flapping: then its sleep is worth the wake-ups, as with a short cooldown. It ends with a sleep
    that lasts, or that something else ends: damping changes the period, and must not end what it damps.
    """
    if status.asleep_since and now.timestamp() - unix_seconds(status.asleep_since) > _SHORT_SLEEP:
        return False
    spans: list[tuple[float, float]] = []
    for item in reversed(status.recent):
        since, until = unix_seconds(item.since), unix_seconds(item.until)
        if item.cause != WakeCause.REQUEST or until - since > _SHORT_SLEEP:
            break
        spans.insert(0, (since, until))
    return any(_is_steady(spans[i : i + _FLAPS]) for i in range(len(spans) - _FLAPS + 1))


def _is_steady(spans: Sequence[tuple[float, float]]) -> bool:
    """Whether sleeps, each shorter than the time awake around it, end at a steady period."""
    awake = min(later[0] - earlier[1] for earlier, later in itertools.pairwise(spans))
    if any(until - since > awake for since, until in spans):
        return False
    ends = [until for _, until in spans]
    periods = [later - earlier for earlier, later in itertools.pairwise(ends)]
    spread = max(periods) - min(periods)
    return spread <= max(_CLOCK_SECONDS, max(periods) / 4)


def damped_cooldown(cooldown: float) -> float:
    """Return the cooldown of a target that is flapping: it wakes less often, and is awake for longer."""
    return min(cooldown * _DAMPING, cooldown + _MOST_DAMPING)


def with_present(status: ElastiServiceStatus, now: dt.datetime) -> UsageStatus | None:
    """Return what is counted, the present sleep with it; None if nothing counts yet."""
    usage, time = status.usage, format_time(now)
    if usage is None:
        return None
    if status.released_since is not None:
        usage = _added(usage, status.capacity, status.released_since, time)
    if status.asleep_since is not None:
        slept = max(round(unix_seconds(time) - unix_seconds(status.asleep_since)), 0)
        usage = msgspec.structs.replace(usage, asleep_seconds=usage.asleep_seconds + slept)
    if status.doze is not None:
        dozing = max(round(unix_seconds(time) - unix_seconds(status.doze.since)), 0)
        usage = msgspec.structs.replace(usage, dozing_seconds=usage.dozing_seconds + dozing)
    return usage


def is_end_noted(status: ElastiServiceStatus) -> bool:
    """Whether a wake-up is noted that ends what is being released; a later one must not hide it."""
    since, wake = status.released_since, status.last_wake
    return since is not None and wake is not None and unix_seconds(since) <= unix_seconds(wake.time)


def _end(since: str, woken: str, now: str) -> str:
    """Return the end of a period that a wake-up may have ended."""
    return woken if unix_seconds(since) <= unix_seconds(woken) <= unix_seconds(now) else now


def _added(
    usage: UsageStatus, capacity: CapacityStatus | None, since: str, until: str
) -> UsageStatus:
    if capacity is None:
        return usage
    seconds = max(round(unix_seconds(until) - unix_seconds(since)), 0)
    return msgspec.structs.replace(
        usage,
        cpu_millicore_seconds=usage.cpu_millicore_seconds + seconds * capacity.cpu_millicores,
        memory_byte_seconds=usage.memory_byte_seconds + seconds * capacity.memory_bytes,
    )


# Requests of pods


class ResourceAmounts(msgspec.Struct, frozen=True, gc=False):
    """Quantities of the resources that are counted; of custom kinds nothing checks what they are."""

    cpu: Any = None
    memory: Any = None


class ContainerResources(msgspec.Struct, frozen=True, gc=False):
    """Requests, and limits, which stand in for missing requests."""

    requests: ResourceAmounts | None = None
    limits: ResourceAmounts | None = None

    def amount(self, resource: str) -> int:
        """Return what is requested, in thousandths."""
        found = getattr(self.requests, resource, None)
        text = getattr(self.limits, resource, None) if found is None else found
        try:
            return -(-Quantity.parse(text or 0).nanos // 1_000_000)
        except ValueError:
            return 0


class RequestingContainer(msgspec.Struct, rename="camel", gc=False):
    """The part of a container that decides about a pod's request."""

    resources: ContainerResources | None = None
    restart_policy: str | None = None

    def amount(self, resource: str) -> int:
        """Return what it requests, in thousandths."""
        return self.resources.amount(resource) if self.resources is not None else 0


class RequestingPod(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's spec that decides about its request."""

    containers: tuple[RequestingContainer, ...] = ()
    init_containers: tuple[RequestingContainer, ...] | None = None
    overhead: ResourceAmounts | None = None
    resources: ContainerResources | None = None


def pod_request(pod: RequestingPod) -> CapacityStatus | None:
    """Return what the scheduler keeps free for a pod; None if it requests nothing."""
    cpu, memory = _requested(pod, "cpu"), _requested(pod, "memory") // 1000
    return CapacityStatus(cpu, memory) if cpu or memory else None


def _requested(pod: RequestingPod, resource: str) -> int:
    together = sum(container.amount(resource) for container in pod.containers)
    beside = starting = 0
    # Init containers run one after the other, beside the sidecars that were started before.
    for container in pod.init_containers or ():
        amount = container.amount(resource)
        if container.restart_policy == "Always":
            beside += amount
            amount = 0
        starting = max(starting, beside + amount)
    found = max(together + beside, starting)
    if pod.resources is not None and (whole := pod.resources.amount(resource)):
        found = whole
    return found + ContainerResources(pod.overhead).amount(resource)


# A report


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Capacity that one ElastiService has released since `since`; `counted`: its target has requests."""

    namespace: str
    name: str
    since: dt.datetime
    asleep_seconds: int
    wakes: int
    counted: bool
    cpu_core_hours: float
    memory_gib_hours: float
    dozing_seconds: int = 0


def usage_row(es: ElastiService, now: dt.datetime, window: dt.timedelta | None) -> UsageRow | None:
    """Return the usage of one ElastiService; None if nothing was counted.

    Without a window, or if counting began within it, that is the whole count. Otherwise the recorded
    sleeps are taken, as far as they reach back, at the present capacity.
    """
    found, status = with_present(es.status, now), es.status
    if found is None:
        return None
    since = parse_time(found.since)
    asleep, wakes, dozing = found.asleep_seconds, found.wakes, found.dozing_seconds
    cpu, memory = found.cpu_millicore_seconds, found.memory_byte_seconds
    if window is not None and since < now - window:
        since, released, wakes = recorded_sleeps(status, now, now - window)
        capacity = status.capacity or CapacityStatus()
        dozes = (
            (max(at, since.timestamp()), end) for at, end, dozed in _spans(status, now) if dozed
        )
        dozing = min(dozing, round(sum(max(end - at, 0.0) for at, end in dozes)))
        asleep = released - dozing
        # Of former dozes only the time is known, and most of them keep their memory.
        kept = 0 if status.doze is not None and status.released_since else dozing
        cpu, memory = released * capacity.cpu_millicores, (released - kept) * capacity.memory_bytes
    return UsageRow(
        namespace=es.metadata.namespace,
        name=es.metadata.name,
        since=since,
        asleep_seconds=asleep,
        dozing_seconds=dozing,
        wakes=wakes,
        counted=status.capacity is not None,
        cpu_core_hours=cpu / 3_600_000,
        memory_gib_hours=memory / 3600 / 2**30,
    )


def _spans(status: ElastiServiceStatus, now: dt.datetime) -> Iterator[tuple[float, float, bool]]:
    """Yield the begin and end of each recorded sleep and the present one, and whether it was a doze."""
    for one in status.recent:
        yield unix_seconds(one.since), unix_seconds(one.until), one.mode == "Doze"
    present = status.asleep_since or (status.doze.since if status.doze is not None else None)
    if present is not None:
        yield unix_seconds(present), now.timestamp(), status.asleep_since is None


def recorded_sleeps(
    status: ElastiServiceStatus, now: dt.datetime, start: dt.datetime
) -> tuple[dt.datetime, int, int]:
    """Return from when sleeps are recorded, and seconds asleep and wake-ups since then."""
    if len(status.recent) >= MOST_RECENT:
        start = max(start, parse_time(status.recent[0].since))
    begin = start.timestamp()
    asleep = sum(max(until - max(since, begin), 0.0) for since, until, _ in _spans(status, now))
    return start, round(asleep), sum(unix_seconds(s.until) >= begin for s in status.recent)


class Release(NamedTuple):
    """Capacity released for a time, on average."""

    begin: float
    end: float
    cpu_millicores: float
    memory_bytes: float


def releases(status: ElastiServiceStatus, now: dt.datetime) -> Iterator[Release]:
    """Yield what sleep has released since counting began, in the order of time.

    The recorded sleeps and the present one count with the present capacity. Of older ones only the sum is known: it
    is spread evenly over their time.
    """
    if (usage := status.usage) is None:
        return
    cpu, memory = msgspec.structs.astuple(status.capacity or NOTHING)
    # Of former dozes only the time is known, and most of them keep their memory.
    spans = [
        Release(since, until, cpu, 0 if dozed and until < now.timestamp() else memory)
        for since, until, dozed in _spans(status, now)
    ]
    ended = spans[: len(status.recent)]
    if len(ended) >= MOST_RECENT and (rest := ended[0].begin - unix_seconds(usage.since)) > 0:
        slept = sum(one.end - one.begin for one in ended)
        at_zero = sum(one.end - one.begin for one in ended if one.memory_bytes)
        cpu_mean = max(usage.cpu_millicore_seconds - slept * cpu, 0.0) / rest
        memory_mean = max(usage.memory_byte_seconds - at_zero * memory, 0.0) / rest
        yield Release(ended[0].begin - rest, ended[0].begin, cpu_mean, memory_mean)
    yield from spans
