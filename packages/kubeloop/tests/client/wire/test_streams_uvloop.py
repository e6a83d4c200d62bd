"""The same streams where the program runs on uvloop; the server stays on asyncio."""

from __future__ import annotations

import asyncio
import gc
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import uvloop
from tests.certs import make_authority, server_context
from tests.testing.scripted_answers import event_line, raw, reply, silence
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConnectionRefused
from kubeloop.client.wire.streams import StreamRequest, open_watch, read_list
from kubeloop.objects.codec import codec_for

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
PODS = "/api/v1/pods"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


async def on_uvloop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a uvloop in a thread."""

    def run() -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    return await asyncio.to_thread(run)


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


async def test_refused_connections() -> None:
    async def client() -> None:
        with pytest.raises(ConnectionRefused):
            await open_watch(request(url, None), codec_for(dict), idle_timeout=5.0)

    async with ScriptedServer() as server:
        url = server.url

    await on_uvloop(client)
