"""Connections that say nothing, or too slowly: they end, and keep nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import pytest

from kubeloop.http.framing import FramingError, parse_request_head, parse_response_head
from kubeloop.http.server import (
    ConnectionLimits,
    Handler,
    HttpError,
    HttpServer,
    Request,
    Response,
    Router,
)
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

PATIENT = ConnectionLimits(head=600.0, idle=600.0, answer=600.0)
PATIENT_OF_2 = ConnectionLimits(head=600.0, idle=600.0, answer=600.0, connections=2)


async def say_hello(_request: Request) -> Response:
    return Response(body=b"hello")


@contextlib.asynccontextmanager
async def serving(
    limits: ConnectionLimits, handler: Handler = say_hello, *, max_body: int = 64 * 1024
) -> AsyncIterator[HttpServer]:
    server = HttpServer(handler, limits, max_body=max_body, shutdown_timeout=0.1)
    try:
        await server.open("127.0.0.1", 0)
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

    async def reads(self) -> None:
        """Read whatever comes, until the server ends it."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


@contextlib.asynccontextmanager
async def calling(server: HttpServer, said: bytes = b"") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(said)
        yield Caller(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def get(server: HttpServer) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.port}/"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def until_left(server: HttpServer, count: int) -> None:
    await eventually(lambda: len(server) == count, f"{count} connections left", timeout=60)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_connection_without_a_whole_head_ends(said: bytes):
    async with serving(ConnectionLimits(head=0.2)) as server, calling(server, said) as caller:
        await caller.ends()
        await until_left(server, 0)


async def test_a_head_that_trickles_in_gets_no_extra_time():
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
    async def much(_request: Request) -> Response:
        return Response(body=bytes(64 << 20))

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

    async def slow(_request: Request) -> Response:
        begun.set()
        await may_end.wait()
        return Response(body=b"hello")

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


async def said(server: HttpServer, wire: bytes) -> bytes:
    """Everything that a server says to some bytes, until it closes the connection."""
    async with calling(server, wire) as caller:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(caller.reader.read(), 10)
    return b""


async def echo(request: Request) -> Response:
    return Response(body=f"{request.method} {request.path}:".encode() + request.body)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
LAST = GET.replace(b"/ ", b"/last ") + b"Connection: close\r\n\r\n"
# Each is one request for some parsers and another, or two, for others.
AMBIGUOUS = {
    "cl-te": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "te-te": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "te-list": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "te-in-1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "same length twice": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "length list": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na",
    "signed length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na",
    "fold": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "bare line feed": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "no path": b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "other version": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "padded chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
    "signed chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
async def test_what_parsers_read_differently_is_refused_and_nothing_after_it_is_served(what: str):
    async with serving(PATIENT, echo) as server:
        answer = await said(server, AMBIGUOUS[what] + LAST)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"/last:" not in answer


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5_000 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n11000\r\n"
            + bytes(69_632),
            413,
        ),
        (GET + b"Expect: 200-ok\r\n\r\n", 417),
        (b"GET /?" + b"&".join(b"a=b" for _ in range(200)) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ],
)
async def test_what_is_too_much_is_refused(wire: bytes, status: int):
    async with serving(PATIENT, echo) as server:
        assert (await said(server, wire)).startswith(b"HTTP/1.1 %d " % status)


async def test_requests_that_come_at_once_are_answered_in_order():
    wire = b"POST /one HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab" + GET + b"\r\n" + LAST
    async with serving(PATIENT, echo) as server:
        answer = await said(server, wire)
    assert [part in answer for part in (b"POST /one:ab", b"GET /:", b"GET /last:")] == [True] * 3


async def test_what_follows_a_chunked_body_is_not_served():
    wire = (
        b"POST /one HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    )
    async with serving(PATIENT, echo) as server:
        answer = await said(server, wire + LAST)
    assert b"POST /one:ab" in answer
    assert b"/last:" not in answer


async def test_old_clients_close_and_a_head_has_no_body():
    async with serving(PATIENT, echo) as server:
        assert (await said(server, b"GET /old HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nGET /old:")
        answer = await said(server, LAST.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 11\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_an_answer_may_come_in_pieces():
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"hel"
        yield b"lo"

    async def stream(_request: Request) -> Response:
        return Response(body=pieces())

    async with serving(PATIENT, stream) as server:
        assert await get(server) == (200, "hello")
        assert (await said(server, b"GET / HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nhello")


async def test_a_handler_that_fails_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture):
    async def fails(_request: Request) -> Response:
        raise ValueError("secret")

    async with serving(PATIENT, fails) as server:
        assert await get(server) == (500, "internal error\n")
    assert "secret" in caplog.text


async def test_routes_are_by_method_and_path():
    async def named(request: Request) -> Response:
        return Response(body=request.arguments["name"].encode())

    async def refused(_request: Request) -> Response:
        raise HttpError(418, "no")

    routes = {"GET /of/{name}": named, "POST /of/{name}": refused}
    async with serving(PATIENT, Router(routes)) as server, aiohttp.ClientSession() as session:
        found = []
        for method, path in (
            ("GET", "/of/a%20b"),
            ("POST", "/of/x"),
            ("PUT", "/of/x"),
            ("GET", "/"),
        ):
            url = f"http://127.0.0.1:{server.port}{path}"
            async with session.request(method, url) as reply:
                found.append((reply.status, await reply.text()))
    assert found == [(200, "a b"), (418, "no"), (405, "method not allowed\n"), (404, "not found\n")]


async def test_a_request_that_is_being_served_is_answered_when_the_server_closes():
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> Response:
        begun.set()
        await may_end.wait()
        return Response(body=b"hello")

    server = HttpServer(slow, PATIENT, shutdown_timeout=10)
    await server.open("127.0.0.1", 0)
    first = asyncio.create_task(get(server))
    await begun.wait()
    closing = asyncio.create_task(server.close())
    await asyncio.sleep(0)
    may_end.set()
    assert await first == (200, "hello")
    await closing
    assert len(server) == 0


BLANKS = b" " * 16_000
HOSTILE_HEADS = [
    GET + b"A:" + BLANKS + b"\0\r\n\r\n",
    GET + b"A:" + BLANKS + b"b\r\n\r\n",
    GET + b"A: b" + BLANKS + b"c" + b"\r\n\r\n",
    GET + (b"A:" + BLANKS[:70] + b"\r\n") * 200 + b"B\r\n\r\n",
]


@pytest.mark.parametrize("wire", HOSTILE_HEADS)
def test_a_head_takes_time_in_proportion_to_its_bytes(wire: bytes):
    begun = time.process_time()
    with contextlib.suppress(FramingError):
        parse_request_head(wire[:-2])
    with contextlib.suppress(FramingError):
        parse_response_head(wire[:-2].replace(GET, b"HTTP/1.1 200 OK\r\n"))
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("blank", [b"\xa0", b"\x85"])
async def test_a_length_beside_what_only_unicode_takes_for_a_blank_is_refused(blank: bytes):
    wire = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1" + blank + b"\r\n\r\na"
    async with serving(PATIENT, echo) as server:
        assert (await said(server, wire + LAST)).startswith(b"HTTP/1.1 400 ")


async def test_an_empty_piece_does_not_end_an_answer():
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"hel"
        yield b""
        yield b"lo"

    async def stream(_request: Request) -> Response:
        return Response(body=pieces())

    async with serving(PATIENT, stream) as server:
        assert await get(server) == (200, "hello")


async def test_a_head_request_does_not_begin_the_body():
    async def pieces() -> AsyncGenerator[bytes, None]:
        await asyncio.get_running_loop().create_future()
        yield b""

    async def stream(_request: Request) -> Response:
        return Response(body=pieces())

    async with serving(PATIENT, stream) as server:
        answer = await said(server, LAST.replace(b"GET", b"HEAD"))
    assert answer.endswith(b"Connection: close\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_status_without_a_body_has_neither_body_nor_length(status: int, *, streams: bool):
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"hello"

    async def bodiless(_request: Request) -> Response:
        return Response(status, pieces() if streams else b"hello")

    async with serving(PATIENT, bodiless) as server:
        answer = await said(server, GET + b"\r\n" + LAST)
    assert answer.count(b"HTTP/1.1 %d " % status) == 2
    assert answer.endswith(b"Connection: close\r\n\r\n")
    assert not any(part in answer for part in (b"hello", b"Content-Length", b"Transfer-Encoding"))


# What a client may hold a connection with, without a whole request and without reading.
HOLDING = {
    "half a head": GET,
    "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
    "half a chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
    "answers unread": b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("what", HOLDING)
async def test_clients_that_hold_every_connection_keep_no_one_out(what: str):
    async def handle(request: Request) -> Response:
        return Response(body=bytes(32 << 20) if request.path == "/much" else b"hello")

    limits = ConnectionLimits(head=600.0, answer=600.0, connections=8)
    async with serving(limits, handle) as server, contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(calling(server, HOLDING[what]))
        await until_left(server, 8)
        await asyncio.sleep(0.05)
        for _ in range(20):
            assert await get(server) == (200, "hello")
        assert len(server) <= 8


async def test_clients_that_send_ahead_keep_no_one_out_and_little_of_it_is_read():
    async with (
        serving(ConnectionLimits(connections=8)) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        ahead = (GET + b"\r\n") * 100_000
        callers = [await stack.enter_async_context(calling(server, ahead)) for _ in range(8)]
        takers = [asyncio.create_task(caller.reads()) for caller in callers]
        await until_left(server, 8)
        for _ in range(5):
            assert await get(server) == (200, "hello")
            assert all(len(one._buffer) <= 48 * 1024 for one in server._connections)
        for taker in takers:
            taker.cancel()


@pytest.mark.parametrize("framing", ["Content-Length: 2000000", "Transfer-Encoding: chunked"])
async def test_long_bodies_that_are_not_whole_are_kept_on_a_few_connections(framing: str):
    head = f"POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
    piece = b"1E8480\r\n" if "chunked" in framing else b""
    async with (
        serving(PATIENT, echo, max_body=4 << 20) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        wire = head + piece + bytes(1_000_000)
        first, *_ = [await stack.enter_async_context(calling(server, wire)) for _ in range(40)]
        await until_left(server, 16)
        assert sum(one.is_long for one in server._connections) == 16
        await first.ends()
        assert b" 200 " in await said(server, b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab")


async def test_a_body_that_drips_in_chunks_is_not_copied_again_and_again():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    async with serving(PATIENT, echo, max_body=8 << 20) as server, calling(server) as caller:
        caller.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller.writer.write(head + b"700000\r\n" + bytes(7 << 20) + b"\r\n")
        await caller.writer.drain()
        (connection,) = server._connections
        await eventually(lambda: len(connection._chunks) == 7 << 20, "read")
        began = time.process_time()
        for count in range(1, 1001):
            caller.writer.write(b"1\r\nx\r\n")
            while len(connection._chunks) < (7 << 20) + count:  # noqa: ASYNC110 -- at once
                await asyncio.sleep(0)
        # Copying 7 MiB a thousand times takes longer.
        assert time.process_time() - began < 0.35
        caller.writer.write(b"0\r\n\r\n")
        assert b" 200 " in await caller.reader.readline()


async def test_a_place_that_a_handler_yields_goes_to_a_newcomer():
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def handle(request: Request) -> Response:
        if request.path != "/":
            request.yield_place()
            if request.path == "/known":
                request.keep_place()
            begun.release()
            await may_end.wait()
        return Response(body=b"hello")

    async with serving(PATIENT_OF_2, handle) as server, contextlib.AsyncExitStack() as stack:
        wires = [GET.replace(b"/ ", path) + b"\r\n" for path in (b"/known ", b"/unknown ")]
        known, unknown = [await stack.enter_async_context(calling(server, one)) for one in wires]
        for _ in wires:
            await begun.acquire()
        assert await get(server) == (200, "hello")
        await unknown.ends()
        may_end.set()
        assert (await known.reader.readline()).startswith(b"HTTP/1.1 200")


async def test_requests_of_clients_that_left_are_bounded_and_make_room(
    caplog: pytest.LogCaptureFixture,
):
    begun = asyncio.Semaphore(0)

    async def slow(request: Request) -> Response:
        if request.path == "/":
            return Response(body=b"hello")
        begun.release()
        await asyncio.sleep(0.3)
        return Response(body=b"late")

    async with serving(PATIENT_OF_2, slow) as server:
        for _ in range(20):
            async with calling(server, GET.replace(b"/ ", b"/slow ") + b"\r\n") as caller:
                await begun.acquire()
                caller.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            await eventually(lambda: len(server._waiting) == len(server), "noticed")
            assert len(server.tasks) <= 3
        assert await get(server) == (200, "hello")
        await until_left(server, 0)
        # A task that has ended is forgotten a turn of the loop later.
        await eventually(lambda: not server.tasks, "no task is left")
        assert not server._waiting
    assert not caplog.records


async def test_hundreds_of_silent_connections_stay_within_the_bound():
    limits = ConnectionLimits(head=600.0, connections=32)
    async with serving(limits) as server, contextlib.AsyncExitStack() as stack:
        callers: list[Caller] = []
        for _ in range(8):
            callers = [await stack.enter_async_context(calling(server)) for _ in range(50)]
            assert len(server) <= 32
            assert await get(server) == (200, "hello")
        assert not callers[-1].reader.at_eof()


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_handler_that_takes_too_long_is_cancelled(*, leaves: bool):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(_request: Request) -> Response:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    async with serving(ConnectionLimits(answer=0.2), endless) as server:
        async with calling(server, GET + b"\r\n") as caller:
            await begun.wait()
            if not leaves:
                await caller.ends()
        await asyncio.wait_for(ended.wait(), 10)
        await until_left(server, 0)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: ", 431),
    ],
)
async def test_a_client_that_still_sends_gets_its_refusal(head: bytes, status: int):
    async with serving(PATIENT, echo) as server, calling(server, head) as caller:
        for _ in range(80):
            caller.writer.write(bytes(100_000).replace(b"\0", b"a"))
            await caller.writer.drain()
        assert (await caller.reader.read()).startswith(b"HTTP/1.1 %d " % status)


async def test_a_refused_client_that_never_stops_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kubeloop.http.server._LINGER", 0.2)
    async with serving(PATIENT, echo) as server, calling(server, b"no\r\n\r\n") as caller:
        with contextlib.suppress(ConnectionError):
            while True:
                caller.writer.write(bytes(10_000))
                await caller.writer.drain()
                await asyncio.sleep(0)
        await until_left(server, 0)


async def test_a_client_that_closed_its_own_direction_gets_every_answer():
    async with serving(PATIENT, echo) as server, calling(server) as caller:
        caller.writer.write(GET + b"\r\n" + GET.replace(b"/ ", b"/two ") + b"\r\n")
        caller.writer.write_eof()
        answer = await asyncio.wait_for(caller.reader.read(), 10)
        assert [part in answer for part in (b"GET /:", b"GET /two:")] == [True, True]
        await until_left(server, 0)


async def test_little_is_read_ahead_of_a_request_that_is_being_handled():
    begun = asyncio.Event()

    async def endless(_request: Request) -> Response:
        begun.set()
        return await asyncio.get_running_loop().create_future()

    async with serving(PATIENT, endless) as server, calling(server, GET + b"\r\n") as caller:
        await begun.wait()
        caller.writer.write(bytes(16 << 20))
        await asyncio.sleep(0.2)
        (connection,) = server._connections
        assert len(connection._buffer) <= 48 * 1024
        caller.writer.transport.abort()


@pytest.mark.parametrize("expect", [b"100-Continue", b"100-continue"])
async def test_a_body_is_asked_for(expect: bytes):
    head = b"POST / HTTP/1.%d\r\nHost: x\r\nExpect: " + expect + b"\r\nContent-Length: 2\r\n"
    async with serving(PATIENT, echo) as server:
        answer = await said(server, head % 1 + b"Connection: close\r\n\r\nab")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
        # HTTP/1.0 knows no interim answer.
        assert (await said(server, head % 0 + b"\r\nab")).startswith(b"HTTP/1.1 200 ")
