from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from kubeloop.controller.events.correlators import EventCorrelator, Lru
from kubeloop.controller.events.event_types import EventRecord, EventWrite, Reporter
from kubeloop.objects.owners import ObjectReference

NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
POD = ObjectReference(api_version="v1", kind="Pod", namespace="shop", name="web", uid="u1")


def record(
    message: str = "m", *, after: float = 0.0, regarding: ObjectReference = POD, **changes: Any
) -> EventRecord:
    fields: dict[str, Any] = {"type": "Normal", "reason": "Started"} | changes
    at = NOON + dt.timedelta(seconds=after)
    return EventRecord(regarding=regarding, message=message, at=at, **fields)


def correlator() -> EventCorrelator:
    return EventCorrelator(Reporter("test", "host-1"))


def observed(found: EventWrite | None) -> EventWrite:
    assert found is not None
    return found


def patch_of(write: EventWrite) -> Any:
    assert write.patch is not None
    return json.loads(write.patch.body)


@pytest.mark.spec("E2")
def test_a_first_occurrence_is_created_whole() -> None:
    write = observed(correlator().observe(record("it runs")))
    assert write.patch is None
    name = write.event["metadata"].pop("name")
    assert name.startswith("web.")
    assert write.event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "shop"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u1",
        },
        "type": "Normal",
        "reason": "Started",
        "message": "it runs",
        "source": {"component": "test", "host": "host-1"},
        "reportingComponent": "test",
        "reportingInstance": "host-1",
        "firstTimestamp": "2030-01-01T12:00:00Z",
        "lastTimestamp": "2030-01-01T12:00:00Z",
        "count": 1,
    }  # fmt: skip


@pytest.mark.spec("E2")
def test_an_identical_occurrence_patches_the_count_of_the_first() -> None:
    events = correlator()
    first = observed(events.observe(record()))
    second = observed(events.observe(record(after=60)))
    assert second.event["metadata"]["name"] == first.event["metadata"]["name"]
    assert second.event["firstTimestamp"] == "2030-01-01T12:00:00Z"
    assert patch_of(second) == {
        "count": 2, "lastTimestamp": "2030-01-01T12:01:00Z", "message": "m",
    }  # fmt: skip


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "other",
    [
        record("other message"),
        record(reason="Stopped"),
        record(type="Warning"),
        record(regarding=ObjectReference(api_version="v1", kind="Pod", name="other")),
    ],
)
def test_a_different_occurrence_is_an_event_of_its_own(other: EventRecord) -> None:
    events = correlator()
    first, second = observed(events.observe(record())), observed(events.observe(other))
    assert second.patch is None
    assert second.event["metadata"]["name"] != first.event["metadata"]["name"]


@pytest.mark.spec("E2")
def test_new_version_of_object_does_not_make_new_event() -> None:
    events = correlator()
    events.observe(record())
    newer = ObjectReference(
        api_version="v1", kind="Pod", namespace="shop", name="web", uid="u1", resource_version="9"
    )
    assert patch_of(observed(events.observe(record(regarding=newer))))["count"] == 2


@pytest.mark.spec("E2")
def test_ten_different_messages_in_ten_minutes_are_combined() -> None:
    events = correlator()
    writes = [observed(events.observe(record(f"m{i}", after=i))) for i in range(12)]
    assert [write.patch for write in writes[:10]] == [None] * 10
    assert writes[8].event["message"] == "m8"
    assert writes[9].event["message"] == "(combined from similar events): m9"
    assert writes[9].event["count"] == 1
    assert patch_of(writes[11]) == {
        "count": 3,
        "lastTimestamp": "2030-01-01T12:00:11Z",
        "message": "(combined from similar events): m11",
    }


@pytest.mark.spec("E2")
def test_pause_of_more_than_ten_minutes_starts_aggregation_again() -> None:
    events = correlator()
    for index in range(9):
        events.observe(record(f"m{index}"))
    assert observed(events.observe(record("x", after=600.5))).event["message"] == "x"
    again = correlator()
    for index in range(9):
        again.observe(record(f"m{index}"))
    combined = observed(again.observe(record("x", after=599.5)))
    assert combined.event["message"].startswith("(combined")


@pytest.mark.spec("E2")
def test_other_reasons_are_aggregated_apart() -> None:
    events = correlator()
    for index in range(9):
        events.observe(record(f"m{index}"))
    assert observed(events.observe(record("x", reason="Other"))).event["message"] == "x"


@pytest.mark.spec("E2")
def test_after_25_writes_one_in_five_minutes_passes() -> None:
    events = correlator()
    passed = [events.observe(record()) is not None for _ in range(30)]
    assert passed == [True] * 25 + [False] * 5
    assert events.observe(record(after=299)) is None
    late = observed(events.observe(record(after=301)))
    # What was held back is counted all the same.
    assert patch_of(late)["count"] == 32
    assert events.observe(record(after=302)) is None


@pytest.mark.spec("E2")
def test_the_filter_is_for_each_object_and_type() -> None:
    events = correlator()
    for _ in range(25):
        events.observe(record())
    assert events.observe(record(reason="Other")) is None
    assert events.observe(record(type="Warning")) is not None
    other = ObjectReference(api_version="v1", kind="Pod", namespace="shop", name="x")
    assert events.observe(record(regarding=other)) is not None


@pytest.mark.spec("E2")
def test_a_clock_that_goes_back_does_no_harm() -> None:
    events = correlator()
    for _ in range(26):
        events.observe(record())
    assert events.observe(record(after=-100_000)) is None


@pytest.mark.spec("E2")
def test_the_servers_own_count_is_taken_over() -> None:
    events = correlator()
    first = observed(events.observe(record()))
    events.written(first, {**first.event, "count": 7, "metadata": {"name": "renamed"}})
    second = observed(events.observe(record()))
    assert patch_of(second)["count"] == 8
    assert second.event["metadata"]["name"] == "renamed"


@pytest.mark.spec("E2")
def test_the_memory_is_of_4096_events() -> None:
    events = correlator()

    def about(index: int) -> ObjectReference:
        return ObjectReference(api_version="v1", kind="Pod", name=f"p{index}")

    for index in range(4097):
        events.observe(record(regarding=about(index)))
    assert observed(events.observe(record(regarding=about(1)))).patch is not None
    assert observed(events.observe(record(regarding=about(0)))).patch is None


@pytest.mark.spec("E5")
def test_an_object_without_namespace_has_its_events_in_default() -> None:
    node = ObjectReference(api_version="v1", kind="Node", name="n1")
    event = observed(correlator().observe(record(regarding=node))).event
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


def test_events_of_one_moment_have_different_names() -> None:
    events = correlator()
    names = {
        observed(events.observe(record(f"m{i}", reason=f"r{i}"))).event["metadata"]["name"]
        for i in range(20)
    }
    assert len(names) == 20


def test_the_least_recently_used_is_forgotten_first() -> None:
    memory: Lru[str, int] = Lru(2)
    memory.put("a", 1)
    memory.put("b", 2)
    assert memory.get("a") == 1
    memory.put("c", 3)
    assert memory.get("b") is None
    assert (memory.get("a"), memory.get("c"), len(memory)) == (1, 3, 2)
