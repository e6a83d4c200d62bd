"""core/v1 Events: many occurrences, few writes.

Three stages, each with a memory of the 4096 most recent things:

1. Aggregation. When ten different messages of the same subject, type and reason came within ten
   minutes, further ones become one Event with a marked message.
2. Counting. An Event that was seen before is not created again; its count is patched.
3. The spam filter. Each subject and type has a bucket of 25 writes, refilled by one in 5 minutes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from kubeloop.controller.lru import Lru
from kubeloop.controller.occurrences import Chore, EventWrite, Occurrence, Reporter
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Hashable, Sequence

    from kubeloop.objects.meta import JsonObject

_MEMORY = 4096
_SIMILAR = 10
_SIMILAR_WITHIN = 600.0
_BURST = 25
_REFILL_SECONDS = 300.0
_COMBINED = "(combined from similar events): "

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
    def chores(self) -> Sequence[Chore]:
        """None: everything happens when something occurs."""
        return ()

    def observe(self, occurrence: Occurrence) -> EventWrite | None:
        """Return what to write; None where the filter says that it is enough."""
        key, message = self._aggregate(occurrence)
        before = self._logged.get(key)
        event = self._event(occurrence, message, before)
        self._remember(key, event)
        if not self._may_write(occurrence):
            return None
        return EventWrite(key, event, _count_patch(event) if before else None)

    def written(self, write: EventWrite, saved: JsonObject) -> None:
        """Take over the name and the count that the server has."""
        self._remember(write.key, saved)

    def _aggregate(self, occurrence: Occurrence) -> tuple[_Key, str]:
        """Return the key by which the occurrence is counted, and its message."""
        group = (occurrence.subject, occurrence.type, occurrence.reason)
        similar = self._similar.get(group)
        if similar is None or _seconds(similar.last, occurrence.at) > _SIMILAR_WITHIN:
            similar = _Similar(set(), occurrence.at)
        similar.messages.add(occurrence.message)
        similar.last = occurrence.at
        self._similar.put(group, similar)
        if len(similar.messages) < _SIMILAR:
            return (*group, occurrence.message), occurrence.message
        similar.messages.pop()
        return group, _COMBINED + occurrence.message

    def _event(self, occurrence: Occurrence, message: str, before: _Logged | None) -> JsonObject:
        self._serial += 1
        now = format_time(occurrence.at)
        metadata = occurrence.metadata(self._serial)
        if before is not None:
            metadata["name"] = before.name
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": msgspec.to_builtins(occurrence.regarding),
            "type": occurrence.type,
            "reason": occurrence.reason,
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

    def _may_write(self, occurrence: Occurrence) -> bool:
        key = (occurrence.subject, occurrence.type)
        bucket = self._buckets.get(key) or _Bucket(_BURST, occurrence.at)
        gained = max(0.0, _seconds(bucket.last, occurrence.at)) / _REFILL_SECONDS
        bucket.tokens, bucket.last = min(_BURST, bucket.tokens + gained), occurrence.at
        self._buckets.put(key, bucket)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _count_patch(event: JsonObject) -> MergePatch:
    return MergePatch({name: event[name] for name in ("count", "lastTimestamp", "message")})


def _seconds(earlier: dt.datetime, later: dt.datetime) -> float:
    return (later - earlier).total_seconds()
