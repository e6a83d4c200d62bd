"""A watch's clock: bookmarks about once a minute and shortly before the end, then the end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from devkube.apiserver.auth import AdminAuthorizer, UserInfo
from devkube.apiserver.calls import Call, read_attributes
from devkube.apiserver.core import Core
from devkube.apiserver.registry.list_watch import Watch, read_watch
from devkube.apiserver.registry.serialization import Accepted, Presenter
from devkube.apiserver.storage import HistoryWindow, ObjectStore
from kubeloop.aio.clock import SystemClock

pytestmark = pytest.mark.virtual_time
PATH = "/api/v1/namespaces/default/configmaps"


def make_core(**options) -> Core:
    return Core(
        store=ObjectStore(**options),
        clock=SystemClock(),
        authenticators=[],
        authorizers=[AdminAuthorizer()],
        service_network="127.96.0.0/16",
    )


def open_watch(core: Core, **query: str) -> Watch:
    attributes = read_attributes("GET", PATH, {"watch": "1", **query})
    resource, served = core.registry.find("", "v1", "configmaps")
    call = Call(
        attributes=attributes,
        resource=resource,
        served=served,
        query=query,
        user=UserInfo(name="x"),
        accepted=Accepted(),
    )
    return Watch(
        store=core.store,
        collection=core.store.collection("/configmaps"),
        request=read_watch(call, core.store.version),
        presenter=Presenter(call, core.stamps),
    )


def put(core: Core, name: str) -> None:
    obj = {"metadata": {"name": name, "namespace": "default"}}
    core.store.put(core.store.collection("/configmaps"), f"default/{name}", obj)


async def timeline(watch: Watch) -> list[tuple[float, str]]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    found = []
    async for lines in watch.batches(asyncio.Event()):
        for line in lines.splitlines():
            found.append((round(loop.time() - start, 3), msgspec.json.decode(line)["type"]))
    found.append((round(loop.time() - start, 3), "END"))
    return found


async def test_bookmarks_come_once_a_minute_and_before_the_end():
    watch = open_watch(make_core(), timeoutSeconds="150", allowWatchBookmarks="true")
    assert await timeline(watch) == [
        (60.0, "BOOKMARK"),
        (120.0, "BOOKMARK"),
        (148.0, "BOOKMARK"),
        (150.0, "END"),
    ]


async def test_without_bookmarks_a_quiet_watch_only_ends():
    assert await timeline(open_watch(make_core(), timeoutSeconds="90")) == [(90.0, "END")]


async def test_a_watch_lives_half_an_hour_to_an_hour_of_its_own():
    ((end, _),) = await timeline(open_watch(make_core()))
    assert 1800 <= end <= 3600


async def test_a_bookmark_carries_the_newest_version_even_of_other_resources():
    core = make_core()
    watch = open_watch(core, timeoutSeconds="61", allowWatchBookmarks="true")
    core.store.put(core.store.collection("/secrets"), "default/s", {"metadata": {"name": "s"}})
    stream = watch.batches(asyncio.Event())
    line = await anext(stream)
    await stream.aclose()
    found = msgspec.json.decode(line)["object"]["metadata"]["resourceVersion"]
    assert found == str(core.store.version)


async def test_a_watcher_that_is_too_slow_is_ended():
    core = make_core(window=HistoryWindow(changes=8))
    watch = open_watch(core, timeoutSeconds="100")
    stream = watch.batches(asyncio.Event())
    put(core, "first")
    assert b'"first"' in await anext(stream)
    for number in range(20):
        put(core, f"n{number}")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_what_piles_up_while_the_client_is_slow_goes_out_in_one_piece():
    core = make_core()
    stream = open_watch(core, timeoutSeconds="100").batches(asyncio.Event())
    put(core, "a")
    await anext(stream)
    for name in ("b", "c", "d"):
        put(core, name)
    assert (await anext(stream)).count(b"\n") == 3
    await stream.aclose()
