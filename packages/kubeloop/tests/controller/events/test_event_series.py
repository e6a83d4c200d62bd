from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from kubeloop.controller.events.correlators import EventSeries
from kubeloop.controller.events.event_types import EventRecord, EventWrite, Reporter
from kubeloop.objects.owners import ObjectReference

NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
POD = ObjectReference(api_version="v1", kind="Pod", namespace="shop", name="web", uid="u1")


def at(after: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=after)


def record(message: str = "m", *, after: float = 0.0, **changes: Any) -> EventRecord:
    fields: dict[str, Any] = {"type": "Normal", "reason": "Started", "action": "Start"} | changes
    return EventRecord(regarding=POD, message=message, at=at(after), **fields)


def series_in(write: EventWrite | None) -> Any:
    assert write is not None
    assert write.patch is not None
    return json.loads(write.patch.body)["series"]


@pytest.mark.spec("E4")
def test_a_first_occurrence_is_an_event_without_series() -> None:
    write = EventSeries(Reporter("test", "host-1")).observe(record("it runs"))
    assert write is not None
    assert write.patch is None
    event = dict(write.event)
    assert event.pop("metadata")["namespace"] == "shop"
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2030-01-01T12:00:00.000000Z",
        "reportingController": "test",
        "reportingInstance": "host-1",
        "action": "Start",
        "reason": "Started",
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u1",
        },
        "note": "it runs",
        "type": "Normal",
    }  # fmt: skip


@pytest.mark.spec("E4")
def test_second_writes_series_of_two_and_later_ones_only_count() -> None:
    events = EventSeries(Reporter("test"))
    events.observe(record())
    second = events.observe(record("another note", after=1))
    assert series_in(second) == {"count": 2, "lastObservedTime": "2030-01-01T12:00:01.000000Z"}
    assert [events.observe(record(after=i)) for i in range(2, 7)] == [None] * 5
    (heartbeat,) = events.heartbeat(at(1800))
    assert series_in(heartbeat) == {"count": 7, "lastObservedTime": "2030-01-01T12:00:06.000000Z"}


@pytest.mark.spec("E4")
@pytest.mark.parametrize(
    "change", [{"reason": "Stopped"}, {"type": "Warning"}, {"action": "Stop"}, {"related": POD}]
)
def test_what_differs_in_anything_but_the_note_is_another_event(change: dict[str, Any]) -> None:
    events = EventSeries(Reporter("test"))
    events.observe(record())
    other = events.observe(record(**change))
    assert other is not None
    assert other.patch is None


@pytest.mark.spec("E4")
def test_an_idle_series_is_written_a_last_time_and_forgotten() -> None:
    events = EventSeries(Reporter("test"))
    for second in range(4):
        events.observe(record(after=second))
    assert events.finish(at(363)) == []
    assert len(events) == 1
    (last,) = events.finish(at(363.1))
    assert series_in(last)["count"] == 4
    assert len(events) == 0
    again = events.observe(record(after=400))
    assert again is not None
    assert again.patch is None


@pytest.mark.spec("E4")
def test_an_idle_event_without_series_is_forgotten_silently() -> None:
    events = EventSeries(Reporter("test"))
    events.observe(record())
    assert events.heartbeat(at(300)) == []
    assert events.finish(at(361)) == []
    assert len(events) == 0


@pytest.mark.spec("E4")
def test_series_heartbeat_is_30_minutes_and_end_check_6() -> None:
    assert [
        periodic_task.period for periodic_task in EventSeries(Reporter("test")).periodic_tasks
    ] == [1800, 360]


@pytest.mark.spec("E4")
def test_the_reporting_instance_has_at_most_128_characters() -> None:
    write = EventSeries(Reporter("test", "x" * 200)).observe(record())
    assert write is not None
    assert write.event["reportingInstance"] == "x" * 128


@pytest.mark.spec("E4")
def test_the_name_at_the_server_is_taken_over() -> None:
    events = EventSeries(Reporter("test"))
    first = events.observe(record())
    assert first is not None
    events.written(first, {"metadata": {"name": "renamed"}})
    second = events.observe(record())
    assert second is not None
    assert second.event["metadata"]["name"] == "renamed"


def test_a_note_is_cut_to_what_the_api_takes() -> None:
    write = EventSeries(Reporter("test")).observe(record("ü" * 1000))
    assert write is not None
    assert write.event["note"] == "ü" * 512
