from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from kubeloop.client.errors import (
    Forbidden,
    KubeError,
    NotFound,
    Status,
    TooManyRequests,
    TransportError,
)
from kubeloop.controller.events.correlators import EventSeries
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.controller.manager.manager import Manager
from kubeloop.controller.manager.runnables import Group
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.patches import Patch, apply_merge_patch
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.virtual_time import VirtualClock

pytestmark = pytest.mark.virtual_time

Json = dict[str, Any]
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
}


class Sink:
    """Remembers Events by name; fails as the script says, request by request."""

    def __init__(self, script: Iterable[KubeError | None] = (), *, hangs: bool = False) -> None:
        self.log: list[tuple[float, str]] = []
        self.events: dict[str, Json] = {}
        self._script = iter(script)
        self._hangs = hangs

    async def create(self, event: Json) -> Json:
        await self._answer("create")
        self.events[event["metadata"]["name"]] = event
        return event

    async def patch(self, namespace: str, name: str, patch: Patch) -> Json:
        await self._answer(f"patch {namespace}")
        self.events[name] = apply_merge_patch(self.events[name], json.loads(patch.body))
        return self.events[name]

    async def _answer(self, what: str) -> None:
        self.log.append((asyncio.get_running_loop().time(), what))
        if self._hangs:
            await asyncio.Event().wait()
        error = next(self._script, None)
        if error is not None:
            raise error

    @property
    def verbs(self) -> list[str]:
        return [what for _, what in self.log]


def recorder(sink: Sink, **options: Any) -> EventRecorder:
    return EventRecorder(Reporter("test"), sink, clock=VirtualClock(), rand=lambda: 0.5, **options)


async def recording(found: EventRecorder, seconds: float = 1.0) -> None:
    """Run it for a while, then end it in order."""
    task = asyncio.create_task(found.run())
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def unreachable(times: int) -> list[KubeError]:
    return [TransportError("connection refused")] * times


@pytest.mark.spec("E1")
async def test_recording_never_blocks_and_drops_what_does_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink(hangs=True)
    events = recorder(sink)
    for index in range(1500):
        events.normal(POD, f"Reason{index}", "m")
    assert asyncio.get_running_loop().time() == 0
    assert events.dropped == 500
    assert len(caplog.records) == 5
    assert repr(events) == "<EventRecorder: 1000 queued, 500 dropped>"
    assert sink.log == []


@pytest.mark.spec("E1")
async def test_what_was_recorded_before_the_start_is_written() -> None:
    sink = Sink()
    events = recorder(sink)
    events.normal(POD, "Created", "m1")
    events.warning(POD, "Failed", "m2")
    await recording(events)
    assert [(e["type"], e["reason"], e["message"]) for e in sink.events.values()] == [
        ("Normal", "Created", "m1"),
        ("Warning", "Failed", "m2"),
    ]


@pytest.mark.spec("E1")
async def test_ending_writes_what_is_queued_and_takes_nothing_more() -> None:
    sink = Sink()
    events = recorder(sink)
    task = asyncio.create_task(events.run())
    await asyncio.sleep(1)
    events.normal(POD, "Last", "words")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event["reason"] for event in sink.events.values()] == ["Last"]
    events.normal(POD, "TooLate", "m")
    assert events.dropped == 1


@pytest.mark.spec("E1")
async def test_ending_does_not_wait_for_a_server_that_is_gone() -> None:
    sink = Sink(unreachable(99))
    events = recorder(sink)
    task = asyncio.create_task(events.run())
    await asyncio.sleep(1)
    for index in range(5):
        events.normal(POD, f"Reason{index}", "m")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == 1
    assert sink.verbs == ["create"]
    assert events.dropped == 5


@pytest.mark.spec("E3")
async def test_a_repetition_patches_and_an_expired_event_is_created_again() -> None:
    gone = NotFound(Status(code=404))
    sink = Sink([None, None, gone])
    events = recorder(sink)
    for _ in range(3):
        events.normal(POD, "Started", "m")
    await recording(events)
    assert sink.verbs == ["create", "patch shop", "patch shop", "create"]
    (event,) = sink.events.values()
    assert event["count"] == 3


@pytest.mark.spec("E3")
async def test_a_silent_server_is_tried_12_times_every_10_seconds() -> None:
    sink = Sink(unreachable(99))
    events = recorder(sink)
    events.normal(POD, "Started", "m")
    await recording(events, 1000)
    moments = [moment for moment, _ in sink.log]
    # The first pause is random in [0, 10); here the random number is one half.
    assert moments == [0, *(5 + 10 * step for step in range(11))]


@pytest.mark.spec("E3")
async def test_it_goes_on_where_the_server_comes_back() -> None:
    sink = Sink(unreachable(3))
    events = recorder(sink)
    events.normal(POD, "Started", "m")
    events.normal(POD, "Other", "m")
    await recording(events, 100)
    assert [event["reason"] for event in sink.events.values()] == ["Started", "Other"]


@pytest.mark.spec("E3")
@pytest.mark.parametrize("refusal", [Forbidden, TooManyRequests])
async def test_a_refusal_is_final(refusal: type[Forbidden]) -> None:
    sink = Sink([refusal(Status(code=400, message="no"))])
    events = recorder(sink)
    events.normal(POD, "Started", "m")
    events.normal(POD, "Other", "m")
    await recording(events, 100)
    assert sink.verbs == ["create", "create"]
    assert [event["reason"] for event in sink.events.values()] == ["Other"]


@pytest.mark.spec("E3")
async def test_cancelling_ends_the_tries() -> None:
    sink = Sink(unreachable(99))
    events = recorder(sink)
    events.normal(POD, "Started", "m")
    await recording(events, 7)
    assert asyncio.get_running_loop().time() == 7


@pytest.mark.spec("E4")
async def test_a_series_is_written_at_start_heartbeat_and_end() -> None:
    sink = Sink()
    events = recorder(sink, correlator=EventSeries(Reporter("test")))
    task = asyncio.create_task(events.run())
    for _ in range(20):
        events.normal(POD, "Polling", "m")
        await asyncio.sleep(100)
    # From 0 to 1900 s: created, a series at 100 s, the heartbeat at 1800 s.
    assert sink.log == [(0, "create"), (100, "patch shop"), (1800, "patch shop")]
    await asyncio.sleep(600)
    # Idle since 1900 s; looked at every 360 s, so the end is found at 2520 s.
    assert sink.log[3:] == [(2520, "patch shop")]
    events.normal(POD, "Polling", "m")
    await asyncio.sleep(1)
    assert sink.verbs[4:] == ["create"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("E5")
async def test_an_object_without_namespace_has_its_events_in_default() -> None:
    sink = Sink()
    events = recorder(sink)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u2"}}
    events.normal(node, "Up", "m")
    await recording(events)
    (event,) = sink.events.values()
    assert event["metadata"]["namespace"] == "default"


@pytest.mark.parametrize(
    ("obj", "reason", "message", "says"),
    [
        (POD, "", "m", "reason '' is not one CamelCase word"),
        (POD, "It broke", "m", "reason 'It broke' is not one CamelCase word"),
        (POD, "Broke", OSError("m"), "the message is text, not OSError"),
        ("web", "Broke", "m", "about 'web', which is not an object"),
        ({"metadata": {"name": "web", "uid": "u"}}, "Broke", "m", "no apiVersion or kind"),
        (POD | {"metadata": {"name": "web"}}, "Broke", "m", "a Pod without metadata.uid"),
        (POD | {"metadata": {"uid": "u"}}, "Broke", "m", "a Pod without metadata.name"),
    ],
)
async def test_wrong_call_fails_at_once(obj: Any, reason: str, message: Any, says: str) -> None:
    events = recorder(Sink())
    with pytest.raises((TypeError, ValueError), match=says):
        events.warning(obj, reason, message)
    assert repr(events) == "<EventRecorder: 0 queued, 0 dropped>"


async def test_recorder_is_made_of_name_and_client() -> None:
    client = FakeClient()
    events = EventRecorder("buckets", client)
    events.normal(POD, "Made", "m")
    await recording(events)
    (event,) = await client.resource("v1/events").list(namespace="shop")
    assert (event["reason"], event["source"]["component"]) == ("Made", "buckets")
    swapped: Any = client
    with pytest.raises(TypeError, match="the first is a name such as 'my-controller'"):
        EventRecorder(swapped, "buckets")  # type: ignore[arg-type]


async def test_object_that_does_not_say_what_it_is_needs_kind() -> None:
    sink = Sink()
    events = recorder(sink)
    bare: Json = {"metadata": {"name": "web", "namespace": "shop", "uid": "u1"}}
    events.normal(bare, "Known", "m", gvk=GroupVersionKind("", "v1", "Pod"), annotations={"a": "b"})
    await recording(events)
    (event,) = sink.events.values()
    assert event["involvedObject"]["kind"] == "Pod"
    assert event["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.spec("C15")
async def test_a_manager_stops_the_recorder_last() -> None:
    sink = Sink()
    events = recorder(sink)
    manager = Manager()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.normal(POD, "Stopped", "orderly")

    manager.add(events, group=Group.RECORDERS)
    manager.add(work)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    manager.stop()
    await task
    assert [event["reason"] for event in sink.events.values()] == ["Stopped"]
