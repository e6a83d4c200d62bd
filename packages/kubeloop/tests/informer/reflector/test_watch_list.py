"""Streaming lists: nothing is seen before the end bookmark, everything at once after it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import pytest
from tests.informer.support import (
    STREAMING,
    RecordingMetrics,
    ScriptedSource,
    ScriptedStream,
    added,
    bookmark,
    deleted,
    end_bookmark,
    modified,
    now,
    pod,
    reflecting,
    settle,
)

from kubeloop.client.errors import (
    BadRequest,
    ConnectionRefused,
    Invalid,
    Status,
    TooManyRequests,
    TransportError,
)
from kubeloop.informer.reflector.events import ObjectPreparer
from kubeloop.informer.reflector.listing import InconsistentWatchList
from kubeloop.objects.list_watch import Page, WatchEvent
from kubeloop.objects.meta import DICT_ACCESS
from kubeloop.testing.fake_errors import api_error, gone, too_large
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


def streaming(*watches, lists=()) -> ScriptedSource:
    return ScriptedSource(lists, watches, supports_watch_list=True)


def reflect(source, **arguments):
    return reflecting(source, options=arguments.pop("options", STREAMING), **arguments)


@pytest.mark.spec("R50")
async def test_the_first_request_asks_for_initial_events_without_a_version():
    source = streaming(ScriptedStream([end_bookmark(5)], ends=False))
    options = dataclasses.replace(STREAMING, label_selector="a=b")
    async with reflect(source, options=options):
        await settle()
        (request,) = source.watches
        assert request.send_initial_events
        assert request.resource_version == ""
        assert request.resource_version_match == "NotOlderThan"
        assert request.allow_bookmarks
        assert request.timeout_seconds == 300
        assert request.label_selector == "a=b"
        assert source.lists == []


@pytest.mark.spec("R50")
async def test_a_later_cycle_asks_for_what_was_seen_last():
    expired = WatchEvent("ERROR", {"code": 410, "reason": "Expired"})
    source = streaming(
        ScriptedStream([end_bookmark(5), added("a", 7), expired]), ScriptedStream(ends=False)
    )
    async with reflect(source):
        await asyncio.sleep(1)
        assert [
            (request.resource_version, request.send_initial_events) for request in source.watches
        ] == [("", True), ("7", True)]


@pytest.mark.spec("R51")
async def test_the_end_bookmark_publishes_everything_and_keeps_the_connection():
    stream = ScriptedStream([added("p1", 1)], [added("p2", 2)], ends=False)
    source = streaming(stream)
    async with reflect(source) as (reflector, sink):
        await settle()
        assert sink.log == []
        assert reflector.last_version == ""
        stream.push(end_bookmark(5))
        await settle()
        assert sink.log == [("replace", ["default/p1", "default/p2"], "5")]
        assert reflector.last_version == "5"
        stream.push(added("p3", 6))
        await settle()
        assert sink.log[1:] == [("put", "default/p3", "6")]
        assert len(source.watches) == 1
        assert source.lists == []


@pytest.mark.spec("R51")
async def test_events_behind_end_bookmark_in_same_read_are_live():
    source = streaming(
        ScriptedStream([added("p1", 1), end_bookmark(5), modified("p1", 6)], ends=False)
    )
    async with reflect(source) as (reflector, sink):
        await settle()
        assert sink.log == [("replace", ["default/p1"], "5"), ("put", "default/p1", "6")]
        assert reflector.last_version == "6"


@pytest.mark.spec("R52")
@pytest.mark.parametrize("other", [bookmark(3), end_bookmark(3, "false")])
async def test_other_bookmarks_do_not_end_the_initial_phase(other):
    stream = ScriptedStream([added("p1", 1), other, added("p2", 2)], ends=False)
    async with reflect(streaming(stream)) as (reflector, sink):
        await asyncio.sleep(5)
        assert sink.log == []
        assert reflector.last_version == ""
        stream.push(end_bookmark(5))
        await settle()
        assert sink.log == [("replace", ["default/p1", "default/p2"], "5")]


@pytest.mark.spec("R53")
async def test_changes_before_the_end_bookmark_apply_to_the_temporary_objects():
    stream = ScriptedStream(
        [added("p1", 1), added("p2", 2), modified("p1", 3), deleted("p2", 4), end_bookmark(5)],
        ends=False,
    )
    async with reflect(streaming(stream)) as (_, sink):
        await settle()
        assert sink.log == [("replace", ["default/p1"], "5")]
        assert DICT_ACCESS.version(sink.items["default/p1"]) == "3"


@pytest.mark.spec("R54")
async def test_a_truncated_stream_is_dropped_and_retried_after_backoff():
    source = streaming(
        ScriptedStream([added("p1", 1), bookmark(3)]),
        ScriptedStream([added("p2", 2), end_bookmark(5)], ends=False),
    )
    async with reflect(source) as (_, sink):
        await asyncio.sleep(1)
        assert source.watch_versions == ["", ""]
        assert [request.send_initial_events for request in source.watches] == [True, True]
        assert source.watch_times == [0, 0.8]
        assert source.lists == []
        assert sink.log == [("replace", ["default/p2"], "5")]


@pytest.mark.spec("R55")
@pytest.mark.parametrize(
    "refusal", [TooManyRequests(Status(code=429)), ConnectionRefused("nobody there")]
)
async def test_429_and_refused_connections_back_off_and_stream_again(refusal):
    source = streaming(refusal, refusal, ScriptedStream([end_bookmark(5)], ends=False))
    async with reflect(source) as (_, sink):
        await asyncio.sleep(3)
        assert source.watch_times == [0, 0.8, pytest.approx(2.4)]
        assert all(request.send_initial_events for request in source.watches)
        assert source.lists == []
        assert sink.log == [("replace", [], "5")]


@pytest.mark.spec("R55")
async def test_the_rest_between_two_streams_can_be_cancelled():
    busy = TooManyRequests(Status(code=429), retry_after=1000)
    async with reflect(streaming(busy)):
        await asyncio.sleep(2)
    assert now() == 2


@pytest.mark.spec("R56")
@pytest.mark.parametrize("refusal", [gone("7"), too_large("7", 3)])
async def test_unavailable_version_is_asked_again_at_once_as_consistent_read(refusal):
    expired = WatchEvent("ERROR", {"code": 410, "reason": "Expired"})
    source = streaming(
        ScriptedStream([end_bookmark(7), added("a", 7), expired]),
        refusal,
        ScriptedStream([end_bookmark(9)], ends=False),
    )
    async with reflect(source) as (reflector, _):
        await asyncio.sleep(1)
        assert source.watch_versions == ["", "7", ""]
        assert source.watch_times[1:] == [0.8, 0.8]
        assert reflector.last_version == "9"
        assert source.lists == []


@pytest.mark.spec("R56")
async def test_410_in_middle_of_initial_events_is_treated_same():
    expired = WatchEvent("ERROR", {"code": 410, "reason": "Expired"})
    source = streaming(
        ScriptedStream([added("p1", 1), expired]),
        ScriptedStream([added("p2", 2), end_bookmark(9)], ends=False),
    )
    async with reflect(source) as (_, sink):
        await settle()
        assert source.watch_versions == ["", ""]
        assert source.streams[0].closes == 1
        assert sink.log == [("replace", ["default/p2"], "9")]


@pytest.mark.spec("R57")
@pytest.mark.parametrize(
    "refusal",
    [Invalid(Status(code=422)), BadRequest(Status(code=400)), api_error(403, "Forbidden")],
)
async def test_any_other_refusal_falls_back_to_list_and_watch(refusal):
    source = streaming(
        refusal, ScriptedStream([added("b", 6)], ends=False), lists=[Page([pod("a", 1)], "5")]
    )
    async with reflect(source) as (_, sink):
        await settle()
        assert [request.send_initial_events for request in source.watches] == [True, False]
        assert [(r.resource_version, r.limit) for r in source.lists] == [("0", 500)]
        assert source.watch_versions == ["", "5"]
        assert sorted(sink.items) == ["default/a", "default/b"]


@pytest.mark.spec("R57")
async def test_a_very_short_stream_falls_back_for_this_cycle_only():
    expired = WatchEvent("ERROR", {"code": 410, "reason": "Expired"})
    source = streaming(
        ScriptedStream(), ScriptedStream([added("a", 6), expired]), lists=[Page([], "5")]
    )
    async with reflect(source):
        await asyncio.sleep(1)
        assert [request.send_initial_events for request in source.watches] == [True, False, True]


@pytest.mark.spec("R57")
async def test_a_server_without_streaming_is_retried_after_ten_minutes():
    expired = ScriptedStream([added("a", 6), WatchEvent("ERROR", {"code": 410})])
    source = streaming(
        Invalid(Status(code=422)),
        expired,
        ScriptedStream(ends=False),
        lists=[Page([], "5"), Page([], "6"), Page([], "7")],
    )
    async with reflect(source):
        await asyncio.sleep(590)
        # The silent watch of cycle two was reopened meanwhile; nobody asked for a stream.
        assert [request.send_initial_events for request in source.watches[1:]] == [False] * 3
        await asyncio.sleep(20)
        source.streams[-1].push(WatchEvent("ERROR", {"code": 410}))
        await asyncio.sleep(5)
        assert source.watches[-1].send_initial_events


@pytest.mark.spec("R57")
async def test_server_that_streams_but_never_ends_initial_events_is_listed():
    ignorant = ScriptedStream([added("a", 1)], ends=False)
    source = streaming(ignorant, lists=[Page([pod("a", 1)], "5")])
    async with reflect(source) as (_, sink):
        asyncio.get_running_loop().call_at(300, ignorant.end)
        await asyncio.sleep(299)
        assert sink.log == []
        await asyncio.sleep(2)
        assert sink.log == [("replace", ["default/a"], "5")]
        assert [request.send_initial_events for request in source.watches] == [True, False]


@pytest.mark.spec("R58")
async def test_after_sync_closed_stream_resumes_as_ordinary_watch():
    source = streaming(ScriptedStream([end_bookmark(5)]), ScriptedStream(ends=False))
    async with reflect(source):
        await settle()
        first, second = source.watches
        assert first.send_initial_events
        assert not second.send_initial_events
        assert second.resource_version == "5"
        assert second.resource_version_match == ""
        assert source.lists == []


@pytest.mark.spec("R59")
async def test_late_end_bookmark_is_warned_about_every_ten_quiet_seconds(caplog):
    stream = ScriptedStream(ends=False)
    with caplog.at_level(logging.WARNING, "kubeloop.informer.reflector.listing"):
        async with reflect(streaming(stream)):
            await asyncio.sleep(9.9)
            assert caplog.records == []
            await asyncio.sleep(10.2)
            assert len(caplog.records) == 2
            stream.push(added("a", 1))
            await asyncio.sleep(9.9)
            assert len(caplog.records) == 2, "an event came within the window"
            await asyncio.sleep(10)
            assert len(caplog.records) == 3
            stream.push(end_bookmark(5))
            await asyncio.sleep(60)
            assert len(caplog.records) == 3


@pytest.mark.spec("R60")
async def test_self_check_lists_at_exactly_streamed_version_and_is_content():
    source = FakeSource[Any](supports_watch_list=True)
    source.create("a")
    source.create("b")
    options = dataclasses.replace(STREAMING, self_check=True)
    async with reflect(source, options=options) as (_, sink):
        await settle()
        (request,) = source.lists
        assert (request.resource_version, request.resource_version_match) == ("2", "Exact")
        assert len(sink.items) == 2


@pytest.mark.spec("R60")
async def test_the_self_check_fails_loudly_when_stream_and_list_differ():
    source = streaming(
        ScriptedStream([added("a", 1), end_bookmark(5)], ends=False),
        lists=[Page([pod("a", 1), pod("lost", 2)], "5")],
    )
    with pytest.raises(InconsistentWatchList, match="lost"):
        async with reflect(source, options=dataclasses.replace(STREAMING, self_check=True)):
            await settle()
    assert source.streams[0].closes == 1


@pytest.mark.spec("R61")
async def test_a_source_that_cannot_stream_is_listed_silently():
    errors: list[Any] = []
    source = ScriptedSource([Page([pod("a", 1)], "5")])
    async with reflect(source, on_error=errors.append) as (_, sink):
        await settle()
        assert source.list_versions == ["0"]
        assert not source.watches[0].send_initial_events
        assert list(sink.items) == ["default/a"]
        assert errors == []


@pytest.mark.spec("R62")
async def test_the_transform_runs_once_for_each_streamed_object():
    calls = []

    def transform(obj):
        calls.append(DICT_ACCESS.name(obj))
        return obj

    source = streaming(
        ScriptedStream([added("a", 1), added("b", 2), end_bookmark(5), added("c", 6)], ends=False)
    )
    async with reflect(source, preparer=ObjectPreparer(DICT_ACCESS, transform)) as (_, sink):
        await settle()
        assert len(sink.items) == 3
        assert calls == ["a", "b", "c"]


@pytest.mark.spec("R39", "R54")
async def test_stream_that_dies_silently_in_initial_phase_is_begun_again():
    source = streaming(
        ScriptedStream([added("a", 1)], ends=False),
        ScriptedStream([added("b", 2), end_bookmark(5)], ends=False),
    )
    metrics = RecordingMetrics()
    async with reflect(source, metrics=metrics) as (_, sink):
        await asyncio.sleep(307)
        assert source.watch_times == [0, pytest.approx(305 + 0.8)]
        assert list(sink.items) == ["default/b"]


@pytest.mark.spec("R38")
async def test_every_failed_stream_is_closed_exactly_once():
    source = streaming(
        ScriptedStream([added("a", 1)]),
        ScriptedStream(),
        ScriptedStream([WatchEvent("ERROR", {"code": 410})]),
        ScriptedStream([WatchEvent("ERROR", {"code": 429})]),
        ScriptedStream([added("a", 1)], error=TransportError("reset")),
        ScriptedStream([end_bookmark(9)], ends=False),
        lists=[Page([], "")] * 3,
    )
    async with reflect(source):
        await asyncio.sleep(100)
    assert [stream.closes for stream in source.streams] == [1] * len(source.streams)
    assert len(source.streams) >= 6
