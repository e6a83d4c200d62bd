"""The same streams where the program runs on uvloop; the server stays on asyncio."""

from __future__ import annotations

import asyncio
import gc
import ssl
import tracemalloc
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pytest
import uvloop
from tests.certs import make_authority, server_context
from tests.testing.scripted_answers import WatchScript, event_line, raw, refuse, reply, silence
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.auth.tls import shrink_read_buffers
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConnectionRefused, Gone
from kubeloop.client.wire.streams import StreamRequest, open_watch, read_list
from kubeloop.http.connection import Connection
from kubeloop.objects.codec import codec_for

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
LoopFactory: TypeAlias = "Callable[[], asyncio.AbstractEventLoop]"
PODS = "/api/v1/pods"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


async def on_loop(factory: LoopFactory, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a loop of its own in a thread."""

    def run() -> T:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    return await asyncio.to_thread(run)


async def on_uvloop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a uvloop in a thread."""
    return await on_loop(uvloop.new_event_loop, main)


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def tls(request: pytest.FixtureRequest) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Return the contexts of the server and of the client."""
    if not request.param:
        return None, None
    authority = make_authority()
    client = ssl.create_default_context(cadata=authority.pem.decode())
    return server_context(authority.server()), client


def request(url: str, context: ssl.SSLContext | None) -> StreamRequest:
    return StreamRequest(
        endpoint=Endpoint.parse(url),
        ssl_context=context,
        headers=(),
        target=PODS,
        connect_timeout=5.0,
    )


Tls = tuple[ssl.SSLContext | None, ssl.SSLContext | None]


async def test_watches_and_lists(tls: Tls) -> None:
    items = [{"metadata": {"name": f"p{n}"}, "data": "x" * 1000} for n in range(1500)]
    lines = b"".join(event_line("ADDED", item) for item in items)

    async def client() -> tuple[int, int]:
        stream = await open_watch(request(server.url, tls[1]), codec_for(dict), idle_timeout=30.0)
        events = 0
        while batch := await stream.read():
            events += len(batch)
        await stream.close()
        page = await read_list(request(server.url, tls[1]), codec_for(dict), timeout=30.0)
        return events, len(page.items)

    async with ScriptedServer(ssl_context=tls[0]) as server:
        pods = {"kind": "PodList", "metadata": {}, "items": items}
        server.expect("GET", PODS, raw(HEAD + lines), reply(pods))

        assert await on_uvloop(client) == (1500, 1500)


async def test_cancelled_at_any_step_it_leaves_nothing_behind(tls: Tls) -> None:
    async def client() -> None:
        for steps in range(30):
            sent = request(server.url, tls[1])
            opening = asyncio.create_task(open_watch(sent, codec_for(dict), idle_timeout=5.0))
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        gc.collect()

    async with ScriptedServer(ssl_context=tls[0]) as server:
        server.serve("GET", PODS, silence)

        await on_uvloop(client)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_refused_watch_is_freed_without_the_collector(tls: Tls, factory: LoopFactory) -> None:
    """A server that refuses for ever must not depend on the collector to be survived."""

    async def client() -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                with pytest.raises(Gone):
                    await open_watch(request(server.url, tls[1]), codec_for(dict), idle_timeout=5.0)
            return sum(isinstance(obj, Connection) for obj in gc.get_objects())
        finally:
            gc.enable()

    async with ScriptedServer(ssl_context=tls[0]) as server:
        server.serve("GET", PODS, refuse(410, "Expired"))

        assert await on_loop(factory, client) <= 1, "only the last may still be closing"


async def test_quiet_watches_over_tls_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SSLProtocol, "max_size", SSLProtocol.max_size)
    shrink_read_buffers()
    authority = make_authority()
    context = ssl.create_default_context(cadata=authority.pem.decode())
    async with ScriptedServer(ssl_context=server_context(authority.server())) as server:
        server.serve("GET", PODS, WatchScript())
        gc.collect()
        tracemalloc.start()
        try:
            watches = [
                await open_watch(request(server.url, context), codec_for(dict), idle_timeout=30.0)
                for _ in range(10)
            ]
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for watch in watches:
            await watch.close()

    assert taken / 10 < 300 * 1024, "both ends of each, with the client's own 128 KiB"


async def test_refused_connections() -> None:
    async def client() -> None:
        with pytest.raises(ConnectionRefused):
            await open_watch(request(url, None), codec_for(dict), idle_timeout=5.0)

    async with ScriptedServer() as server:
        url = server.url

    await on_uvloop(client)
