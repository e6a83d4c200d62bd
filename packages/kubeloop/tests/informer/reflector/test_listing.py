"""How a reflector lists: versions, pages, and servers that do not have what was asked for."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from typing import Any

import pytest
from tests.informer.support import (
    EXACT,
    ScriptedSource,
    ScriptedStream,
    added,
    deleted,
    end_bookmark,
    informing,
    now,
    pod,
    reflecting,
    settle,
)

from kubeloop.client.errors import (
    Gone,
    InternalError,
    ProtocolError,
    Status,
    StatusCause,
    TransportError,
)
from kubeloop.informer.reflector.source import ListFailed
from kubeloop.objects.codec import codec_for
from kubeloop.objects.list_watch import DecodeError, Page, WatchEvent
from kubeloop.testing.fake_errors import api_error, gone, too_large
from kubeloop.testing.fake_source import FakeSource
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


EXPIRED = WatchEvent("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})


def closes_with_410(*before) -> ScriptedStream:
    return ScriptedStream([*before, EXPIRED])


@pytest.mark.spec("R1")
async def test_the_first_list_is_at_version_0_in_pages():
    source = ScriptedSource([Page([pod("foo", 1)], "7")])
    async with reflecting(source) as (reflector, sink):
        await settle()
        (request,) = source.lists
        assert (request.resource_version, request.limit, request.resource_version_match) == (
            *("0", 500),
            "",
        )
        (watch,) = source.watches
        assert watch.resource_version == "7"
        assert watch.allow_bookmarks
        assert watch.timeout_seconds == 300
        assert sink.log == [("replace", ["default/foo"], "7")]
        assert reflector.last_version == "7"


@pytest.mark.spec("R2")
async def test_relist_asks_for_last_version_seen_without_limit():
    source = ScriptedSource([Page([], "5"), Page([], "12")], [closes_with_410(added("a", 10))])
    async with reflecting(source):
        await asyncio.sleep(0.9)
        assert [(request.resource_version, request.limit) for request in source.lists] == [
            ("0", 500),
            ("10", 0),
        ]


@pytest.mark.spec("R3")
async def test_continue_token_on_version_0_list_keeps_limit_indefinitely():
    source = ScriptedSource(
        [Page([pod("a")], "5", "more"), Page([pod("b")], "5"), Page([], "9"), Page([], "9")],
        [closes_with_410(), closes_with_410()],
    )
    async with reflecting(source):
        await asyncio.sleep(3)
        assert [request.limit for request in source.lists] == [500, 500, 500, 500]
        assert source.list_versions == ["0", "", "5", "9"]


@pytest.mark.spec("R3")
async def test_continue_token_on_any_other_list_does_not_keep_limit():
    source = ScriptedSource(
        [Page([], "5"), Page([pod("a")], "6", "more"), Page([], "6"), Page([], "7")],
        [closes_with_410(), closes_with_410()],
    )
    async with reflecting(source):
        await asyncio.sleep(3)
        assert source.list_versions == ["0", "5", "", "6"]
        assert source.lists[3].limit == 0


@pytest.mark.spec("R4")
async def test_a_page_size_of_the_caller_holds_for_every_list():
    source = FakeSource[Any](watch_cache=False)
    for number in range(10):
        source.create(f"pod-{number}")
    options = dataclasses.replace(EXACT, page_size=4)
    async with reflecting(source, options=options) as (_, sink):
        await settle()
        assert [request.limit for request in source.lists] == [4, 4, 4]
        assert len(sink.items) == 10
        source.compact()
        source.send_error(Status(code=410, reason="Expired"))
        await asyncio.sleep(1)
        assert [request.limit for request in source.lists] == [4] * 6


@pytest.mark.spec("R5")
async def test_continuations_carry_token_and_selectors_and_first_pages_version_counts():
    source = ScriptedSource(
        [
            Page([], "5"),
            Page([pod("a")], "8", "t1"),
            Page([pod("b")], "9", "t2"),
            Page([pod("c")], "10"),
        ],
        [closes_with_410()],
    )
    options = dataclasses.replace(
        EXACT, label_selector="app=web", field_selector="spec.nodeName=n1", page_size=1
    )
    async with reflecting(source, options=options) as (reflector, sink):
        await asyncio.sleep(1)
        pages = source.lists[1:]
        assert [page.continue_token for page in pages] == ["", "t1", "t2"]
        assert [page.resource_version for page in pages] == ["5", "", ""]
        assert {page.resource_version_match for page in pages} == {""}
        assert {(page.label_selector, page.field_selector, page.limit) for page in pages} == {
            ("app=web", "spec.nodeName=n1", 1)
        }
        assert sink.log[-1] == ("replace", ["default/a", "default/b", "default/c"], "8")
        assert reflector.last_version == "8"


@pytest.mark.spec("R6")
async def test_410_on_later_page_falls_back_to_full_list():
    source = ScriptedSource(
        [
            Page([], "10"),
            Page([pod("half", 11)], "11", "token"),
            gone("token"),
            Page([pod("a", 12), pod("b", 12)], "12"),
        ],
        [closes_with_410()],
    )
    async with reflecting(source) as (_, sink):
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "10", "", "10"]
        assert source.lists[3].limit == 0
        assert source.lists[3].continue_token == ""
        assert sink.log[-1] == ("replace", ["default/a", "default/b"], "12")


@pytest.mark.spec("R7")
async def test_410_on_the_first_page_becomes_a_consistent_read():
    source = ScriptedSource(
        [Page([], "10"), gone("10"), Page([pod("a", 11)], "11")], [closes_with_410()]
    )
    async with reflecting(source):
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "10", ""]
        assert source.list_times[1:] == [0.8, 0.8]


TOO_LARGE_SHAPES = {
    "cause type": too_large("20", 5),
    "cause message": api_error(
        *(504, "Timeout", "cannot answer"),
        causes=(StatusCause(message="Too large resource version"),),
    ),
    "message": api_error(504, "Timeout", "Too large resource version: 20, current: 5"),
}


@pytest.mark.spec("R8")
@pytest.mark.parametrize("shape", TOO_LARGE_SHAPES)
async def test_version_too_large_is_treated_like_410_in_every_shape(shape):
    error = TOO_LARGE_SHAPES[shape]
    source = ScriptedSource(
        [Page([], "20"), error, Page([], "30"), error, Page([], "40")],
        [closes_with_410(), closes_with_410()],
    )
    async with reflecting(source) as (reflector, _):
        await asyncio.sleep(3)
        assert source.list_versions == ["0", "20", "", "30", ""]
        assert reflector.last_version == "40"


@pytest.mark.spec("R8")
async def test_too_large_version_on_later_page_drops_earlier_pages():
    source = ScriptedSource(
        [Page([pod("half", 1)], "20", "token"), too_large("20", 5), Page([pod("a", 4)], "5")]
    )
    async with reflecting(source) as (_, sink):
        await settle()
        assert source.list_versions == ["0", "", ""]
        assert sink.log == [("replace", ["default/a"], "5")]


@pytest.mark.spec("R9")
async def test_consistent_reads_go_on_until_a_list_succeeds():
    source = ScriptedSource(
        [
            Page([], "10"),
            gone("10"),
            api_error(500, "InternalError"),
            api_error(500, "InternalError"),
            Page([], "20"),
            Page([], "30"),
        ],
        [closes_with_410(), closes_with_410()],
    )
    async with reflecting(source):
        await asyncio.sleep(20)
        assert source.list_versions == ["0", "10", "", "", "", "20"]


@pytest.mark.spec("R10")
async def test_any_other_list_error_is_reported_and_retried():
    errors: list[Any] = []
    source = ScriptedSource(
        [Page([], "10"), api_error(500, "InternalError", "boom"), Page([], "11")],
        [closes_with_410()],
    )
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(3)
        assert source.list_versions == ["0", "10", "10"]
        assert source.list_times == [0.0, pytest.approx(0.8), pytest.approx(0.8 + 1.6)]
        (error,) = errors
        assert isinstance(error, ListFailed)
        assert "pods" in str(error)
        assert "boom" in str(error)
        assert isinstance(error.__cause__, InternalError)


@pytest.mark.spec("R11")
async def test_stop_during_list_returns_at_once_and_touches_nothing():
    errors: list[Any] = []
    source = FakeSource[Any]()
    source.create("a")
    source.stall_lists()
    async with reflecting(source, on_error=errors.append) as (_, sink):
        await asyncio.sleep(5)
        assert len(source.lists) == 1
    assert now() == 5
    assert sink.log == []
    assert errors == []


@pytest.mark.spec("R12")
async def test_a_defect_in_the_list_call_surfaces():
    source = ScriptedSource([ZeroDivisionError("a defect")])
    with pytest.raises(ZeroDivisionError):
        async with reflecting(source):
            await asyncio.sleep(100)
    assert len(source.lists) == 1


@pytest.mark.spec("R13")
async def test_a_list_that_is_a_table_fails():
    body = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"rows":[]}'

    def table(_options):
        # The decoder behind every real source refuses it; a Table must not pass for an empty list.
        try:
            return codec_for(dict).decode_page(body)
        except DecodeError as error:
            raise ProtocolError(str(error)) from error

    errors: list[Any] = []
    source = ScriptedSource([Page([pod("a")], "5"), table, Page([], "6")], [closes_with_410()])
    async with reflecting(source, on_error=errors.append) as (_, sink):
        await asyncio.sleep(1)
        assert "Table" in str(errors[0])
        assert list(sink.items) == ["default/a"]


@pytest.mark.spec("R14")
async def test_stored_objects_pin_neither_their_page_nor_each_other():
    class TrackedList(list[Any]):
        """A list that can be referred to weakly."""

    items = TrackedList([pod("a"), pod("b")])
    page_list = weakref.ref(items)
    source = ScriptedSource([Page(items, "5")])
    del items
    async with reflecting(source) as (_, sink):
        await settle()
        gc.collect()
        assert len(sink.items) == 2
        assert page_list() is None


@pytest.mark.spec("R15")
async def test_a_big_list_yields_to_the_loop_between_chunks():
    source = ScriptedSource([Page([pod(f"pod-{n}") for n in range(20_000)], "5")])
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with reflecting(source) as (_, sink):
        counting = asyncio.create_task(count_turns())
        await eventually(lambda: bool(sink.log), every=0)
        counting.cancel()
    assert turns >= 20_000 / 250
    assert len(sink.items) == 20_000


@pytest.mark.spec("R10", "R73")
async def test_transport_errors_of_a_list_reach_the_error_handler():
    errors: list[Any] = []
    source = ScriptedSource([TransportError("reset"), Page([], "1")])
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "0"]
        assert [type(error.__cause__) for error in errors] == [TransportError]


@pytest.mark.spec("R10")
async def test_410_twice_in_a_row_is_an_ordinary_error():
    errors: list[Any] = []
    source = ScriptedSource(
        [Page([], "10"), gone("10"), gone(""), Page([], "11")], [closes_with_410()]
    )
    async with reflecting(source, on_error=errors.append):
        await asyncio.sleep(3)
        assert source.list_versions == ["0", "10", "", ""]
        assert [type(error.__cause__) for error in errors] == [Gone]


def empty_after(*lists, streams: bool) -> ScriptedSource:
    """Return a source that lists a pod, loses its watch, and lists what is given."""
    if not streams:
        return ScriptedSource([Page([pod("a")], "5"), *lists], [closes_with_410()])
    pages = [
        ScriptedStream([*(added(item["metadata"]["name"]) for item in page.items), end_bookmark(9)])
        for page in lists
    ]
    first = ScriptedStream([added("a"), end_bookmark(5), EXPIRED])
    return ScriptedSource([], [first, *pages], supports_watch_list=True)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_sudden_empty_list_is_believed_after_a_time_if_asked_for(streams):
    source = empty_after(*[Page([], "9")] * 100, streams=streams)
    options = dataclasses.replace(EXACT, watch_list=streams, distrust_empty=30.0)
    async with informing(source, options=options) as (informer, recorder):
        await asyncio.sleep(28)
        assert [note[0] for note in recorder.brief] == ["initial"]
        assert "the server lists nothing, and there were 1 objects" in informer.doubt
        await asyncio.sleep(40)
        assert [note[0] for note in recorder.brief] == ["initial", "stale"]
    assert all(stream.closes == 1 for stream in source.streams)


@pytest.mark.parametrize("streams", [False, True])
async def test_objects_that_are_listed_again_were_never_gone(streams):
    source = empty_after(*[Page([], "9")] * 2, Page([pod("a")], "10"), streams=streams)
    options = dataclasses.replace(EXACT, watch_list=streams, distrust_empty=30.0)
    async with informing(source, options=options) as (informer, recorder):
        await asyncio.sleep(60)
        assert {note[0] for note in recorder.brief} <= {"initial", "update"}
        assert informer.lister.find("default", "a") is not None


async def test_an_empty_list_is_believed_at_once_by_default():
    source = empty_after(Page([], "9"), streams=False)
    async with informing(source) as (_, recorder):
        await asyncio.sleep(2)
        assert [note[0] for note in recorder.brief] == ["initial", "stale"]


async def test_the_last_object_deleted_by_the_watch_leaves_nothing_to_distrust():
    source = ScriptedSource(
        [Page([pod("a")], "5"), Page([], "9")], [closes_with_410(deleted("a", 6))]
    )
    options = dataclasses.replace(EXACT, distrust_empty=1e9)
    async with informing(source, options=options) as (informer, _):
        await asyncio.sleep(2)
        assert informer.doubt == ""
        assert informer.last_version == "9"
