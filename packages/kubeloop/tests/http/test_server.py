"""Connections that say nothing, or too slowly: they end, and keep nobody out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from kubeloop.http.server import ConnectionLimits, HardenedServer
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PATIENT = ConnectionLimits(head=600.0, idle=600.0, answer=600.0)


async def say_hello(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


@contextlib.asynccontextmanager
async def serving(
    limits: ConnectionLimits, handler: Handler = say_hello
) -> AsyncIterator[HardenedServer]:
    server = HardenedServer(limits)
    app = web.Application()
    app.router.add_route("*", "/", handler)
    try:
        await server.open(app, "127.0.0.1", 0, shutdown_timeout=0.1)
        yield server
    finally:
        await server.close()


class Caller:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ends(self) -> None:
        """Wait for the server to end it."""
        with contextlib.suppress(ConnectionError):
            assert await self.reader.read() == b""


@contextlib.asynccontextmanager
async def calling(server: HardenedServer, said: bytes = b"") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(said)
        yield Caller(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def get(server: HardenedServer) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.port}/"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def until_left(server: HardenedServer, count: int) -> None:
    await eventually(lambda: len(server) == count, f"{count} connections left", timeout=60)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_connection_without_a_whole_head_ends(said: bytes):
    async with serving(ConnectionLimits(head=0.2)) as server, calling(server, said) as caller:
        await caller.ends()
        await until_left(server, 0)


async def test_a_head_that_trickles_in_gets_no_more_time():
    said = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "
    async with serving(ConnectionLimits(head=0.3)) as server, calling(server, said) as caller:
        end = asyncio.create_task(caller.ends())
        with contextlib.suppress(ConnectionError):
            while not end.done():
                caller.writer.write(b"X")
                await caller.writer.drain()
                await asyncio.sleep(0.02)
        await end


async def test_next_request_has_as_little_time_once_it_has_begun():
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    limits = ConnectionLimits(head=0.3, idle=600.0)
    async with serving(limits) as server, calling(server, request) as caller:
        await caller.reader.readuntil(b"hello")
        caller.writer.write(b"GET / HT")
        await caller.ends()


async def test_a_connection_may_rest_between_requests_but_not_indefinitely():
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        serving(ConnectionLimits(head=600.0, idle=0.3)) as server,
        calling(server, request) as caller,
    ):
        await caller.reader.readuntil(b"hello")
        await caller.ends()


async def test_a_body_that_does_not_come_is_reported_so():
    said = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1"
    async with serving(ConnectionLimits(head=0.3)) as server, calling(server, said) as caller:
        assert b" 408 " in await caller.reader.readline()


async def test_an_answer_that_no_client_takes_is_given_up():
    async def much(_request: web.Request) -> web.Response:
        return web.Response(body=bytes(64 << 20))

    said = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    limits = ConnectionLimits(idle=0.3, answer=0.3)
    async with serving(limits, much) as server, calling(server, said):
        await until_left(server, 1)
        await until_left(server, 0)


async def test_newcomer_takes_place_of_any_caller_has_waited_longest():
    limits = ConnectionLimits(head=600.0, connections=3)
    async with serving(limits) as server, contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(calling(server)) for _ in range(3)]
        await until_left(server, 3)
        assert await get(server) == (200, "hello")
        await silent[0].ends()
        for _ in range(10):
            assert await get(server) == (200, "hello")
        # Those that came and went took each other's place.
        assert not silent[2].reader.at_eof()


async def test_any_caller_is_being_served_keeps_its_place():
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        begun.set()
        await may_end.wait()
        return web.Response(text="hello")

    limits = ConnectionLimits(head=600.0, connections=1)
    async with serving(limits, slow) as server:
        first = asyncio.create_task(get(server))
        await begun.wait()
        async with calling(server) as second:
            await second.ends()
        may_end.set()
        assert await first == (200, "hello")


async def test_many_requests_on_one_connection_are_served():
    async with serving(PATIENT) as server, aiohttp.ClientSession() as session:
        for _ in range(20):
            async with session.post(f"http://127.0.0.1:{server.port}/", data=b"x" * 1000) as reply:
                assert (reply.status, await reply.text()) == (200, "hello")
        assert len(server) == 1
