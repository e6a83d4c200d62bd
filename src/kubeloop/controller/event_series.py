"""events.k8s.io/v1 Events: repetition as a series.

The first occurrence is an Event. The second makes it a series of two, which is written; later ones
only count in memory. A series is written again every 30 minutes, and a last time when nothing came
for 6: then the next occurrence begins a new Event.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from kubeloop.controller.occurrences import Chore, EventWrite, Occurrence, Reporter
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_micro_time

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kubeloop.objects.meta import JsonObject

_HEARTBEAT = 1800.0
_IDLE = 360.0
_LONGEST_NOTE = 1024

_Key: TypeAlias = "Hashable"


class _Series:
    """An Event in memory, with what was observed since it was written."""

    __slots__ = ("count", "event", "last")

    def __init__(self, event: JsonObject, at: dt.datetime) -> None:
        self.event = event
        self.count = 1
        self.last = at

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
    def chores(self) -> Sequence[Chore]:
        """The heartbeat of every series, and the end of idle ones."""
        return (Chore(_HEARTBEAT, self.heartbeat), Chore(_IDLE, self.finish))

    def observe(self, occurrence: Occurrence) -> EventWrite | None:
        """Return what to write: a new Event, or the beginning of a series."""
        key = _key(occurrence)
        series = self._series.get(key)
        if series is None:
            event = self._event(occurrence)
            self._series[key] = _Series(event, occurrence.at)
            return EventWrite(key, event)
        series.count += 1
        series.last = occurrence.at
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

    def _event(self, occurrence: Occurrence) -> JsonObject:
        self._serial += 1
        related = occurrence.related
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": occurrence.metadata(self._serial),
            "eventTime": format_micro_time(occurrence.at),
            "reportingController": self._reporter.component,
            "reportingInstance": self._reporter.instance or self._reporter.component,
            # The API wants one; where the caller names none, the reason is the next best word.
            "action": occurrence.action or occurrence.reason,
            "reason": occurrence.reason,
            "regarding": msgspec.to_builtins(occurrence.regarding),
            **({"related": msgspec.to_builtins(related)} if related else {}),
            "note": _shortened(occurrence.message),
            "type": occurrence.type,
        }


def _key(occurrence: Occurrence) -> _Key:
    """Occurrences are the same whatever their notes say."""
    return (
        occurrence.subject,
        occurrence.related,
        occurrence.type,
        occurrence.reason,
        occurrence.action,
    )


def _shortened(note: str) -> str:
    """Cut a note to the bytes that the API takes."""
    return note.encode()[:_LONGEST_NOTE].decode(errors="ignore")
