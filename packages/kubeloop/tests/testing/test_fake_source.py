"""The fake source answers as an API server does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kubeloop.client.errors import (
    ConnectionRefused,
    Gone,
    Status,
    TransportError,
    is_version_too_large,
)
from kubeloop.objects.list_watch import ListOptions, WatchOptions
from kubeloop.objects.meta import DICT_ACCESS
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


def names(items) -> list[str]:
    return [DICT_ACCESS.name(obj) for obj in items]


def filled(count=5, **options) -> FakeSource[Any]:
    source = FakeSource(**options)
    for number in range(count):
        source.create(f"pod-{number}")
    return source


async def test_lists_are_cut_into_pages_of_one_snapshot():
    source = filled(watch_cache=False)
    first = await source.list(ListOptions(limit=2))
    source.delete("pod-4")
    second = await source.list(ListOptions(limit=2, continue_token=first.continue_token))
    third = await source.list(ListOptions(limit=2, continue_token=second.continue_token))
    assert names([*first.items, *second.items, *third.items]) == [f"pod-{n}" for n in range(5)]
    assert (first.resource_version, third.resource_version) == ("5", "5")
    assert (first.remaining, third.remaining, third.continue_token) == (3, None, "")


async def test_watch_cache_ignores_limit_of_lists_at_version_0():
    page = await filled().list(ListOptions(limit=2, resource_version="0"))
    assert len(page.items) == 5


async def test_expired_tokens_and_future_versions_are_refused():
    source = filled(watch_cache=False)
    page = await source.list(ListOptions(limit=2))
    source.expire_tokens()
    with pytest.raises(Gone):
        await source.list(ListOptions(continue_token=page.continue_token))
    for request in (
        source.list(ListOptions(resource_version="99")),
        source.watch(WatchOptions(resource_version="99")),
    ):
        with pytest.raises(Exception) as caught:
            await request
        assert is_version_too_large(caught.value)


async def test_an_exact_list_shows_the_past_until_it_is_compacted():
    source = filled(2)
    source.update("pod-0", n=1)
    source.delete("pod-1")
    exact = ListOptions(resource_version="2", resource_version_match="Exact")
    page = await source.list(exact)
    assert [DICT_ACCESS.version(obj) for obj in page.items] == ["1", "2"]
    source.compact(3)
    with pytest.raises(Gone):
        await source.list(exact)


async def test_watch_replays_what_came_after_version_and_goes_on():
    source = filled(2)
    stream = await source.watch(WatchOptions(resource_version="1"))
    source.delete("pod-0")
    events = await stream.read()
    assert [(event.type, DICT_ACCESS.version(event.object)) for event in events] == [
        ("ADDED", "2"),
        ("DELETED", "3"),
    ]
    await stream.close()


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_compacted_version_is_410_event_or_response(as_event):
    source = filled(3, gone_as_event=as_event)
    source.compact()
    if as_event:
        stream = await source.watch(WatchOptions(resource_version="1"))
        (event,) = await stream.read()
        assert (event.type, event.object["code"]) == ("ERROR", 410)
        assert await stream.read() == []
        await stream.close()
    else:
        with pytest.raises(Gone):
            await source.watch(WatchOptions(resource_version="1"))
    at_the_edge = await source.watch(WatchOptions(resource_version="3"))
    await at_the_edge.close()


async def test_a_streaming_list_ends_its_initial_events_with_a_bookmark():
    source = filled(3)
    source.shuffle = list.reverse
    stream = await source.watch(WatchOptions(send_initial_events=True))
    source.create("live")
    events = await stream.read()
    assert [event.type for event in events] == ["ADDED"] * 3 + ["BOOKMARK", "ADDED"]
    assert names(event.object for event in events[:3]) == ["pod-2", "pod-1", "pod-0"]
    assert events[3].object.metadata.annotations == {"k8s.io/initial-events-end": "true"}
    assert events[3].object.metadata.resource_version == "3"
    await stream.close()


async def test_watches_end_at_their_timeout_and_send_bookmarks_until_then():
    source = filled(1)
    stream = await source.watch(WatchOptions(resource_version="1", timeout_seconds=150))
    source.bump(9)
    times = []
    while events := await stream.read():
        times.append(
            (asyncio.get_running_loop().time(), events[0].object.metadata.resource_version)
        )
    assert times == [(60, "10"), (120, "10")]
    assert asyncio.get_running_loop().time() == 150
    await stream.close()


async def test_selectors_decide_what_a_watch_sees_of_a_change():
    source = FakeSource[Any]()
    stream = await source.watch(WatchOptions(resource_version="", label_selector="app=web"))
    source.create("a", labels={"app": "web"})
    source.update("a", n=1)
    source.update("a", labels={"app": "db"})
    source.update("a", n=2)
    source.update("a", labels={"app": "web"})
    source.delete("a")
    events = await stream.read()
    assert [(event.type, DICT_ACCESS.version(event.object)) for event in events] == [
        ("ADDED", "1"),
        ("MODIFIED", "2"),
        ("DELETED", "3"),
        ("ADDED", "5"),
        ("DELETED", "6"),
    ]
    await stream.close()


async def test_faults_come_when_asked_for():
    source = filled(1)
    source.fail_lists(None, api_error(500))
    await source.list(ListOptions())
    with pytest.raises(Exception, match="500"):
        await source.list(ListOptions())
    stream = await source.watch(WatchOptions(resource_version="1"))
    source.create("lost")
    source.drop_watches(TransportError("reset"), lose_pending=True)
    with pytest.raises(TransportError):
        await stream.read()
    await stream.close()
    source.refuse_connections()
    with pytest.raises(ConnectionRefused):
        await source.watch(WatchOptions())
    source.refuse_connections(refuse=False)
    stalled = await source.watch(WatchOptions(resource_version="1"))
    source.stall_watches()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stalled.read(), 10)
    source.stall_watches(stall=False)
    assert len(await stalled.read()) == 1
    source.send_error(Status(code=429, reason="TooManyRequests"))
    (event,) = await stalled.read()
    assert event.object["reason"] == "TooManyRequests"
    assert await stalled.read() == []
    await stalled.close()


async def test_a_restore_goes_back_in_time():
    source = filled(3)
    source.update("pod-0", n=1)
    source.delete("pod-1")
    source.restore(2)
    assert source.version == 2
    assert names(source.objects.values()) == ["pod-0", "pod-1"]
    assert "n" not in source.objects[source.key("pod-0")]


async def test_what_a_client_gets_is_never_the_servers_own_object():
    source = filled(1)
    page = await source.list(ListOptions())
    page.items[0]["metadata"]["name"] = "changed"
    assert names(source.objects.values()) == ["pod-0"]
