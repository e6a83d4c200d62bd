"""Correlators: many event records, few writes; one for each of the two Event APIs.

`EventCorrelator` is for core/v1. It has three stages, each with a memory of the 4096 most recent
entries:

1. Aggregation. When ten different messages of the same subject, type and reason came within ten
   minutes, further ones become one Event with a marked message.
2. Counting. An Event that was seen before is not created again; its count is patched.
3. The spam filter. Each subject and type has a bucket of 25 writes, refilled by one in 5 minutes.

`EventSeries` is for events.k8s.io/v1, where repetition is a series. The first occurrence is an
Event. The second makes it a series of two, which is written; later ones only count in memory. A
series is written again every 30 minutes, and a last time when nothing came for 6: then the next
occurrence begins a new Event.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from kubeloop.controller.events.event_types import EventRecord, EventWrite, PeriodicTask, Reporter
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_micro_time, format_time

K = TypeVar("K")
V = TypeVar("V")


_MEMORY = 4096
_SIMILAR = 10
_SIMILAR_WITHIN = 600.0
_BURST = 25
_REFILL_SECONDS = 300.0
_COMBINED = "(combined from similar events): "
_HEARTBEAT = 1800.0
_IDLE = 360.0
_LONGEST_NOTE = 1024


class Lru(Generic[K, V]):
    """A mapping that forgets what was not used for longest when it is full."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> V | None:
        """Return the value, and count that as use; None if absent."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Set the value."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)


_Key: TypeAlias = "Hashable"


@dataclasses.dataclass(slots=True)
class _Similar:
    messages: set[str]
    last: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class _Logged:
    name: str
    first: str
    count: int


@dataclasses.dataclass(slots=True)
class _Bucket:
    tokens: float
    last: dt.datetime


class EventCorrelator:
    """The correlator of core/v1 Events for one reporter."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._similar: Lru[_Key, _Similar] = Lru(_MEMORY)
        self._logged: Lru[_Key, _Logged] = Lru(_MEMORY)
        self._buckets: Lru[_Key, _Bucket] = Lru(_MEMORY)
        self._serial = 0

    @property
    def periodic_tasks(self) -> Sequence[PeriodicTask]:
        """None: everything happens when something occurs."""
        return ()

    def observe(self, record: EventRecord) -> EventWrite | None:
        """Return what to write; None if the filter says that it is enough."""
        key, message = self._aggregate(record)
        before = self._logged.get(key)
        event = self._event(record, message, before)
        self._remember(key, event)
        if not self._may_write(record):
            return None
        return EventWrite(key, event, _count_patch(event) if before else None)

    def written(self, write: EventWrite, saved: JsonObject) -> None:
        """Take over the name and the count that the server has."""
        self._remember(write.key, saved)

    def _aggregate(self, record: EventRecord) -> tuple[_Key, str]:
        """Return the key by which the occurrence is counted, and its message."""
        group = (record.subject, record.type, record.reason)
        similar = self._similar.get(group)
        if similar is None or _seconds(similar.last, record.at) > _SIMILAR_WITHIN:
            similar = _Similar(set(), record.at)
        similar.messages.add(record.message)
        similar.last = record.at
        self._similar.put(group, similar)
        if len(similar.messages) < _SIMILAR:
            return (*group, record.message), record.message
        similar.messages.pop()
        return group, _COMBINED + record.message

    def _event(self, record: EventRecord, message: str, before: _Logged | None) -> JsonObject:
        self._serial += 1
        now = format_time(record.at)
        metadata = record.metadata(self._serial)
        if before is not None:
            metadata["name"] = before.name
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": msgspec.to_builtins(record.regarding),
            "type": record.type,
            "reason": record.reason,
            "message": message,
            "source": {"component": self._reporter.component, "host": self._reporter.instance},
            "reportingComponent": self._reporter.component,
            "reportingInstance": self._reporter.instance,
            "firstTimestamp": before.first if before else now,
            "lastTimestamp": now,
            "count": before.count + 1 if before else 1,
        }

    def _remember(self, key: _Key, event: JsonObject) -> None:
        first, count = event.get("firstTimestamp") or "", event.get("count") or 1
        self._logged.put(key, _Logged(event["metadata"]["name"], first, count))

    def _may_write(self, record: EventRecord) -> bool:
        key = (record.subject, record.type)
        bucket = self._buckets.get(key) or _Bucket(_BURST, record.at)
        gained = max(0.0, _seconds(bucket.last, record.at)) / _REFILL_SECONDS
        bucket.tokens, bucket.last = min(_BURST, bucket.tokens + gained), record.at
        self._buckets.put(key, bucket)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _count_patch(event: JsonObject) -> MergePatch:
    return MergePatch({name: event[name] for name in ("count", "lastTimestamp", "message")})


def _seconds(earlier: dt.datetime, later: dt.datetime) -> float:
    return (later - earlier).total_seconds()


@dataclasses.dataclass(slots=True)
class _Series:
    """An Event in memory, with what was observed since it was written."""

    event: JsonObject
    last: dt.datetime
    count: int = 1

    def write(self, key: _Key) -> EventWrite:
        """Return the write that brings the server up to date."""
        series = {"count": self.count, "lastObservedTime": format_micro_time(self.last)}
        return EventWrite(key, {**self.event, "series": series}, MergePatch({"series": series}))


class EventSeries:
    """The correlator of events.k8s.io/v1 Events for one reporter."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._series: dict[_Key, _Series] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._series)

    @property
    def periodic_tasks(self) -> Sequence[PeriodicTask]:
        """The heartbeat of every series, and the end of idle ones."""
        return (PeriodicTask(_HEARTBEAT, self.heartbeat), PeriodicTask(_IDLE, self.finish))

    def observe(self, record: EventRecord) -> EventWrite | None:
        """Return what to write: a new Event, or the beginning of a series."""
        key = _key(record)
        series = self._series.get(key)
        if series is None:
            event = self._event(record)
            self._series[key] = _Series(event, record.at)
            return EventWrite(key, event)
        series.count += 1
        series.last = record.at
        return series.write(key) if series.count == 2 else None

    def written(self, write: EventWrite, saved: JsonObject) -> None:
        """Take over the name that the Event has at the server."""
        series = self._series.get(write.key)
        if series is not None:
            series.event["metadata"]["name"] = saved["metadata"]["name"]

    def heartbeat(self, _now: dt.datetime) -> list[EventWrite]:
        """Return the present state of every series."""
        return [series.write(key) for key, series in self._series.items() if series.count > 1]

    def finish(self, now: dt.datetime) -> list[EventWrite]:
        """Forget what has been idle; return the last state of the series among it."""
        limit = now - dt.timedelta(seconds=_IDLE)
        idle = {key: series for key, series in self._series.items() if series.last < limit}
        for key in idle:
            del self._series[key]
        return [series.write(key) for key, series in idle.items() if series.count > 1]

    def _event(self, record: EventRecord) -> JsonObject:
        self._serial += 1
        related = record.related
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": record.metadata(self._serial),
            "eventTime": format_micro_time(record.at),
            "reportingController": self._reporter.component,
            "reportingInstance": self._reporter.instance or self._reporter.component,
            # The API requires one; if the caller names none, the reason is the next best word.
            "action": record.action or record.reason,
            "reason": record.reason,
            "regarding": msgspec.to_builtins(record.regarding),
            **({"related": msgspec.to_builtins(related)} if related else {}),
            "note": record.message.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
            "type": record.type,
        }


def _key(record: EventRecord) -> _Key:
    """Occurrences are the same whatever their notes say."""
    return (record.subject, record.related, record.type, record.reason, record.action)
