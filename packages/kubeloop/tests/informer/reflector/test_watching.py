"""How a reflector watches: what it resumes from, and what it makes of every kind of end."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest
from tests.informer.support import (
    EXACT,
    STREAMING,
    RecordingMetrics,
    ScriptedSource,
    ScriptedStream,
    added,
    bookmark,
    deleted,
    end_bookmark,
    modified,
    pod,
    reflecting,
    settle,
)

from kubeloop.client.errors import (
    ConnectionRefused,
    Gone,
    ProtocolError,
    Status,
    TooManyRequests,
    TransportError,
)
from kubeloop.informer.reflector.events import ObjectPreparer
from kubeloop.informer.reflector.source import Expectation, ReflectorOptions, WatchFailed
from kubeloop.informer.reflector.timers import RetryWindow
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.list_watch import Page, WatchEvent
from kubeloop.objects.meta import DICT_ACCESS
from kubeloop.testing.fake_errors import api_error, gone
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


def error_event(code: int, reason: str = "") -> WatchEvent[object]:
    return WatchEvent("ERROR", {"kind": "Status", "code": code, "reason": reason})


async def close_after(stream: ScriptedStream, seconds: float) -> None:
    await asyncio.sleep(seconds)
    stream.end()


@pytest.mark.spec("R20")
@pytest.mark.parametrize(
    ("configured", "least", "most"), [(None, 300, 600), (1.0, 300, 600), (1800.0, 1800, 3600)]
)
def test_watch_timeout_is_random_between_minimum_and_twice_that(configured, least, most):
    options = ReflectorOptions(rand=random.Random(7).random)
    if configured is not None:
        options = dataclasses.replace(options, min_watch_timeout=configured)
    drawn = {options.watch_timeout() for _ in range(5000)}
    assert least <= min(drawn) < least * 1.05
    assert most * 0.95 < max(drawn) <= most


@pytest.mark.spec("R20")
async def test_a_watch_asks_for_bookmarks_a_timeout_and_the_selectors():
    source = ScriptedSource()
    options = dataclasses.replace(EXACT, label_selector="a=b", field_selector="c=d")
    async with reflecting(source, options=options):
        await settle()
        (request,) = source.watches
        assert request.allow_bookmarks
        assert request.timeout_seconds == 300
        assert not request.send_initial_events
        assert request.resource_version_match == ""
        assert (request.label_selector, request.field_selector) == ("a=b", "c=d")


@pytest.mark.spec("R21")
async def test_the_last_version_follows_every_accepted_event_and_bookmark():
    stream = ScriptedStream(ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source) as (reflector, _):
        seen = []
        for event in (added("a", 10), modified("a", 20), bookmark(30), deleted("a", 40)):
            stream.push(event)
            await settle()
            seen.append(reflector.last_version)
        assert seen == ["10", "20", "30", "40"]


@pytest.mark.spec("R22")
async def test_versions_are_replaced_and_never_compared():
    stream = ScriptedStream([modified("a", 55), added("b", 32)], ends=False)
    source = ScriptedSource([Page([pod("a", 1)], "60")], [stream])
    async with reflecting(source) as (reflector, sink):
        await settle()
        assert reflector.last_version == "32"
        assert [entry[2] for entry in sink.log[1:]] == ["55", "32"]


@pytest.mark.spec("R23")
@pytest.mark.parametrize("start", ["", "0"])
async def test_synthetic_adds_do_not_move_the_last_version(start):
    stream = ScriptedStream([added("a", 50), added("b", 20)], ends=False)
    source = ScriptedSource([Page([], start)], [stream])
    async with reflecting(source) as (reflector, sink):
        await settle()
        assert len(sink.items) == 2
        assert reflector.last_version == start
        stream.push(modified("a", 51))
        await settle()
        assert reflector.last_version == "51"
        stream.push(added("c", 52))
        await settle()
        assert reflector.last_version == "52"


@pytest.mark.spec("R23")
async def test_bookmark_ends_synthetic_adds_of_watch_from_nowhere():
    stream = ScriptedStream([added("a", 50), bookmark(60), added("b", 61)], ends=False)
    async with reflecting(ScriptedSource([Page([], "0")], [stream])) as (reflector, _):
        await settle()
        assert reflector.last_version == "61"


@pytest.mark.spec("R24", "X4")
@pytest.mark.parametrize(
    "ending", [None, TransportError("reset"), api_error(429, "TooManyRequests"), "silence"], ids=str
)
async def test_a_watch_from_nowhere_is_never_resumed_however_it_ended(ending):
    if ending == "silence":
        stream = ScriptedStream([added("a", 50)], ends=False)
    else:
        stream = ScriptedStream([added("a", 50)], error=ending)
    source = ScriptedSource([Page([], "0"), Page([], "60")], [stream])
    async with reflecting(source):
        await asyncio.sleep(310)
        assert len(source.lists) == 2, "what was deleted meanwhile is noticed by a list only"
        assert source.watch_versions[:2] == ["0", "60"]


@pytest.mark.spec("R24")
async def test_clean_close_after_event_reopens_at_once_from_last_version():
    errors: list[Any] = []
    source = ScriptedSource([Page([], "5")], [ScriptedStream([added("a", 6)])])
    async with reflecting(source, on_error=errors.append):
        await settle()
        assert source.watch_versions == ["5", "6"]
        assert source.watch_times == [0, 0]
        assert len(source.lists) == 1
        assert errors == []


@pytest.mark.spec("R24")
async def test_clean_close_after_second_reopens_at_once_even_without_events():
    errors: list[Any] = []
    stream = ScriptedStream(ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source, on_error=errors.append):
        await close_after(stream, 1.0)
        await settle()
        assert source.watch_versions == ["5", "5"]
        assert source.watch_times == [0.0, 1.0]
        assert len(source.lists) == 1
        assert errors == []


@pytest.mark.spec("R25")
async def test_close_within_second_without_event_backs_off_and_relists():
    errors: list[Any] = []
    stream = ScriptedStream(ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source, on_error=errors.append):
        await close_after(stream, 0.99)
        await asyncio.sleep(2)
        assert source.list_versions == ["0", "5"]
        assert source.list_times[1] == pytest.approx(0.99 + 0.8)
        assert errors == []


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "svc", "namespace": "default", "resourceVersion": "77"},
}


@pytest.mark.spec("R26")
async def test_an_event_of_another_kind_is_dropped():
    stream = ScriptedStream([added("a", 6), WatchEvent("ADDED", SERVICE)], ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    metrics = RecordingMetrics()
    expected = Expectation(representation=dict, gvk=GroupVersionKind("", "v1", "Pod"))
    options = dataclasses.replace(EXACT, expected=expected)
    async with reflecting(source, options=options, metrics=metrics) as (reflector, sink):
        await settle()
        assert list(sink.items) == ["default/a"]
        assert reflector.last_version == "6"
        assert metrics.values("rejected", "reason") == ["type"]
        stream.push(added("b", 8))
        await settle()
        assert sorted(sink.items) == ["default/a", "default/b"]


@pytest.mark.spec("R26")
async def test_an_object_of_another_representation_is_dropped():
    stream = ScriptedStream([WatchEvent("ADDED", object())], ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    options = dataclasses.replace(EXACT, expected=Expectation(representation=dict))
    async with reflecting(source, options=options) as (reflector, sink):
        await settle()
        assert sink.items == {}
        assert reflector.last_version == "5"
        assert len(source.watches) == 1


@pytest.mark.spec("R13")
async def test_a_table_event_is_dropped():
    table = {"kind": "Table", "metadata": {"name": "t", "resourceVersion": "9"}, "rows": []}
    stream = ScriptedStream([WatchEvent("ADDED", table), added("a", 10)], ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source) as (reflector, sink):
        await settle()
        assert list(sink.items) == ["default/a"]
        assert reflector.last_version == "10"


@pytest.mark.spec("R27")
async def test_a_rejected_event_is_counted_and_moves_the_version():
    def transform(obj):
        if DICT_ACCESS.name(obj) == "poison":
            raise ValueError("cannot")
        return obj

    nameless = {"kind": "Pod", "metadata": {"resourceVersion": "8"}}
    stream = ScriptedStream([added("poison", 7), added("a", 6)], ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    metrics = RecordingMetrics()
    preparer = ObjectPreparer[Any](DICT_ACCESS, transform)
    async with reflecting(source, preparer=preparer, metrics=metrics) as (reflector, sink):
        await settle()
        assert list(sink.items) == ["default/a"]
        stream.push(added("poison", 7))
        await settle()
        assert reflector.last_version == "7"
        stream.push(WatchEvent("ADDED", nameless))
        await settle()
        assert reflector.last_version == "8"
        assert metrics.values("rejected", "reason") == ["transform", "transform", "key"]
        assert len(source.watches) == 1


@pytest.mark.spec("R28")
async def test_an_unknown_event_type_moves_the_version():
    stream = ScriptedStream([WatchEvent("FOO", pod("a", 6))], ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source) as (reflector, sink):
        await settle()
        assert reflector.last_version == "6"
        stream.push(WatchEvent("ADDED", {"kind": "Pod"}), WatchEvent("FOO", None))
        await settle()
        assert reflector.last_version == "6"
        assert sink.items == {}
        assert len(source.watches) == 1


@pytest.mark.spec("R29")
async def test_a_bookmark_moves_versions_and_touches_no_object():
    stream = ScriptedStream([bookmark(9)], ends=False)
    source = ScriptedSource([Page([pod("a", 1)], "5")], [stream])
    async with reflecting(source) as (reflector, sink):
        await settle()
        assert sink.log == [("replace", ["default/a"], "5"), ("bookmark", "9")]
        assert reflector.last_version == "9"


@pytest.mark.spec("R30")
async def test_a_410_event_relists_without_the_error_handler():
    errors: list[Any] = []
    stream = ScriptedStream([added("a", 8), error_event(410, "Expired")])
    source = ScriptedSource([Page([], "5"), Page([], "9")], [stream])
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "8"]
        assert source.list_times == [0, 0.8]
        assert errors == []


@pytest.mark.spec("R31")
@pytest.mark.parametrize("refusal", [gone("5"), api_error(403, "Forbidden", "not you")])
async def test_refusal_on_opening_is_reported_and_relists_after_rest(refusal):
    errors: list[Any] = []
    source = ScriptedSource([Page([], "5"), Page([], "9")], [refusal])
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "5"]
        assert source.list_times == [0, 0.8]
        (error,) = errors
        assert isinstance(error, WatchFailed)
        assert error.__cause__ is refusal


@pytest.mark.spec("R32")
async def test_429_on_opening_backs_off_and_never_relists():
    errors: list[Any] = []
    busy = [TooManyRequests(Status(code=429)) for _ in range(4)]
    source = ScriptedSource([Page([], "5")], [*busy, ScriptedStream(ends=False)])
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(60)
        assert len(source.lists) == 1
        assert source.watch_versions == ["5"] * 5
        gaps = [b - a for a, b in zip(source.watch_times, source.watch_times[1:], strict=False)]
        assert gaps == pytest.approx([0.8, 1.6, 3.2, 6.4])
        assert errors == []


@pytest.mark.spec("R32")
async def test_429_as_an_event_backs_off_and_never_relists():
    errors: list[Any] = []
    stream = ScriptedStream([added("a", 6), error_event(429, "TooManyRequests")])
    source = ScriptedSource([Page([], "5")], [stream, ScriptedStream(ends=False)])
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(10)
        assert len(source.lists) == 1
        assert source.watch_versions == ["5", "6"]
        assert source.watch_times[1] == pytest.approx(0.8)
        assert errors == []


@pytest.mark.spec("R32", "R40")
async def test_a_longer_retry_after_is_honoured_once():
    busy = TooManyRequests(Status(code=429), retry_after=7.0)
    source = ScriptedSource([Page([], "5")], [busy])
    async with reflecting(source):
        await asyncio.sleep(20)
        assert source.watch_times == [0.0, 7.0]


@pytest.mark.spec("R33")
async def test_refused_connection_backs_off_up_to_cap_and_never_relists():
    errors: list[Any] = []
    refused = [ConnectionRefused("nobody there") for _ in range(40)]
    source = ScriptedSource([Page([], "5")], refused)
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(1100)
        gaps = [b - a for a, b in zip(source.watch_times, source.watch_times[1:], strict=False)]
        assert gaps[:6] == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6])
        assert set(map(round, gaps[6:])) == {30}
        assert len(source.watches) == 41
        assert len(source.lists) == 1
        assert errors == []


@pytest.mark.spec("R34")
async def test_other_transport_errors_on_opening_are_reported_and_retried():
    errors: list[Any] = []
    source = ScriptedSource([Page([], "5")], [TransportError("reset"), gone("5")])
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(0.9)
        assert source.watch_versions == ["5", "5"]
        assert len(source.lists) == 1
        await asyncio.sleep(2)
        assert source.list_versions == ["0", "5"], "410 still forces a list"
        assert [type(error.__cause__) for error in errors] == [TransportError, Gone]


@pytest.mark.spec("R35")
async def test_an_internal_error_event_relists_by_default():
    stream = ScriptedStream([added("a", 6), error_event(500, "InternalError")])
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source):
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "6"]


@pytest.mark.spec("R35")
async def test_within_its_window_an_internal_error_reopens_at_once():
    async def failing_slowly(_options):
        await asyncio.sleep(1)
        return ScriptedStream([error_event(500, "InternalError")])

    source = ScriptedSource([Page([], "5")], [failing_slowly] * 40)
    options = dataclasses.replace(EXACT, internal_error_window=30.0)
    async with reflecting(source, options=options):
        await asyncio.sleep(32.5)
        # One attempt each second: the first failure opens the window, 31 retries fit into it.
        assert len(source.watches) == 32
        assert len(source.lists) == 1
        await asyncio.sleep(1)
        assert source.list_times == [0.0, pytest.approx(32 + 0.8)]


@pytest.mark.spec("R35")
@pytest.mark.parametrize(("gap_at", "retries"), [(None, 31), (9, 40)])
async def test_the_retry_window_starts_at_its_first_failure(gap_at, retries):
    window = RetryWindow(30.0)
    allowed = 0
    while window.failed():
        allowed += 1
        await asyncio.sleep(60.0 if allowed == gap_at else 1.0)
    assert allowed == retries


@pytest.mark.spec("R36")
async def test_any_other_error_event_relists_and_replaces():
    stream = ScriptedStream([error_event(500, "StoreReadError")], ends=False)
    source = ScriptedSource(
        [Page([pod("corrupt", 1), pod("a", 2)], "5"), Page([pod("a", 2)], "6")],
        [ScriptedStream([modified("a", 5), error_event(418, "StoreReadError")]), stream],
    )
    async with reflecting(source) as (_, sink):
        await asyncio.sleep(1)
        assert sink.log[-1] == ("replace", ["default/a"], "6")


@pytest.mark.spec("R37")
async def test_undecodable_bytes_relist_and_a_broken_connection_resumes():
    errors: list[Any] = []
    source = ScriptedSource(
        [Page([], "5"), Page([], "9")],
        [
            ScriptedStream([added("a", 6)], error=TransportError("reset by peer")),
            ScriptedStream([added("b", 7)], error=ProtocolError("undecodable watch event")),
        ],
    )
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(4)
        assert source.watch_versions == ["5", "6", "9"]
        assert source.list_versions == ["0", "7"]
        assert errors == []


@pytest.mark.spec("R38")
async def test_every_opened_watch_is_closed_exactly_once_on_every_path():
    source = ScriptedSource(
        [Page([], "5")] * 20,
        [
            ScriptedStream([added("a", 6)]),
            ScriptedStream(),
            ScriptedStream([error_event(410)]),
            ScriptedStream([error_event(429)]),
            ScriptedStream([error_event(500)]),
            ScriptedStream(error=TransportError("reset")),
            ScriptedStream(error=ProtocolError("bytes")),
            ScriptedStream([modified("a", 9)], ends=False),
        ],
    )
    async with reflecting(source):
        await asyncio.sleep(200)
        assert [stream.closes for stream in source.streams] == [1] * 7 + [0]
    assert [stream.closes for stream in source.streams] == [1] * 8


@pytest.mark.spec("R38")
async def test_a_reflector_stopped_before_it_began_asks_for_nothing():
    source = ScriptedSource()
    async with reflecting(source):
        pass
    assert source.lists == []
    assert source.watches == []


@pytest.mark.spec("R39")
async def test_a_silent_watch_ends_five_seconds_after_its_timeout():
    errors: list[Any] = []
    source = FakeSource[Any](bookmark_every=0)
    source.create("a")
    async with reflecting(source, on_error=errors.append) as (_, sink):
        await asyncio.sleep(10)
        source.stall_watches()
        source.create("b")
        await asyncio.sleep(294.9)
        assert len(source.watches) == 1
        await asyncio.sleep(0.2)
        assert [request.at for request in source.watch_requests] == [0, pytest.approx(305.0)]
        assert len(source.lists) == 1
        assert sorted(sink.items) == ["default/a", "default/b"]
        assert errors == []


@pytest.mark.spec("R39")
async def test_events_postpone_the_verdict_of_silence():
    stream = ScriptedStream(ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source):
        for version in range(6, 16):
            await asyncio.sleep(200)
            stream.push(added("a", version))
        assert len(source.watches) == 1
        await asyncio.sleep(305.1)
        assert source.watch_versions == ["5", "15"]


@pytest.mark.spec("R39")
async def test_a_watch_with_bookmarks_is_dead_after_three_minutes_of_silence():
    stream = ScriptedStream(ends=False)
    source = ScriptedSource([Page([], "5")], [stream])
    async with reflecting(source) as (reflector, _):
        for version in range(6, 16):
            await asyncio.sleep(75)
            stream.push(bookmark(version))
        await asyncio.sleep(119)
        assert reflector.doubt == ""
        await asyncio.sleep(2)
        assert reflector.doubt == "no byte in 121 s"
        assert len(source.watches) == 1
        await asyncio.sleep(59.1)
        assert source.watch_versions == ["5", "15"]
        assert source.watch_times[1] == pytest.approx(750 + 180)
        assert reflector.doubt == ""
        await asyncio.sleep(180.1)
        assert source.watch_versions == ["5", "15", "15"], "a server that sends them owes them"
        assert len(source.lists) == 1


@pytest.mark.spec("R39")
async def test_bookmark_of_the_streamed_list_alone_ends_one_silent_watch():
    source = ScriptedSource(
        [], [ScriptedStream([end_bookmark(5)], ends=False)], supports_watch_list=True
    )
    async with reflecting(source, options=STREAMING):
        await asyncio.sleep(1000)
        assert source.watch_times == pytest.approx([0, 180, 180 + 305, 180 + 610])


async def test_doubt_lasts_from_a_failed_watch_or_a_requested_list_to_their_success():
    stream = ScriptedStream(ends=False)
    source = ScriptedSource(
        [Page([], "5"), api_error(500, "InternalError"), Page([], "9")],
        [TransportError("no route"), stream],
    )
    async with reflecting(source, on_error=lambda _: None) as (reflector, _):
        await settle()
        assert "no route" in reflector.doubt
        await asyncio.sleep(1)
        assert reflector.doubt == ""
        reflector.relist(RuntimeError("a live read differs"))
        assert reflector.doubt == "a live read differs"
        await asyncio.sleep(3)
        assert "InternalError" in reflector.doubt
        await asyncio.sleep(10)
        assert (len(source.lists), reflector.doubt) == (3, "")


@pytest.mark.spec("R40")
async def test_a_reflector_asks_once_for_each_attempt():
    source = ScriptedSource([api_error(429, "TooManyRequests"), Page([], "5")])
    async with reflecting(source):
        await asyncio.sleep(0.7)
        assert len(source.lists) == 1
        await asyncio.sleep(0.2)
        assert len(source.lists) == 2
