"""Single requests: what is kept, what is sent again, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kubeloop.http.client import AnswerTooLong, ConnectFailed, HttpClient
from kubeloop.http.framing import FramingError

Serve = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """A server that a test scripts, connection by connection."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.accepted = 0
        self.requests: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Peer]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._serve(self.accepted, reader, writer)
        writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        return self.requests[-1]


async def get(http: HttpClient, peer: Peer, method: str = "GET") -> bytes:
    body = None if method == "GET" else b"{}"
    async with http.request(method, peer.url, timeout=5, body=body) as answer:
        return await answer.body(limit=1 << 20)


def answering(*answers: bytes) -> Serve:
    """Answer each request of each connection, in turn; then close."""

    async def serve(
        _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    return serve


async def test_a_connection_is_kept_for_the_next_request():
    async with Peer(answering(OK, OK, OK)).running() as peer, HttpClient() as http:
        for _ in range(3):
            assert await get(http, peer) == b"ok"
        assert peer.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
    ],
)
async def test_a_connection_that_ends_or_says_more_than_it_was_asked_is_not_kept(answer: bytes):
    async with Peer(answering(answer, OK)).running() as peer, HttpClient() as http:
        assert await get(http, peer) == b"ok"
        assert await get(http, peer) == b"ok"
        assert peer.accepted == 2


async def test_unasked_bytes_on_a_kept_connection_do_not_answer_the_next_request():
    said = asyncio.Event()

    async def serve(
        number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        if number == 1:
            await said.wait()
            writer.write(OK.replace(b"ok", b"no"))
        await reader.read()

    async with Peer(serve).running() as peer, HttpClient() as http:
        assert await get(http, peer) == b"ok"
        said.set()
        await asyncio.sleep(0.05)
        assert await get(http, peer) == b"ok"
        assert peer.accepted == 2


async def test_an_answer_that_was_not_read_is_not_part_of_the_next():
    async with Peer(answering(OK, OK)).running() as peer, HttpClient() as http:
        async with http.request("GET", peer.url, timeout=5) as answer:
            await asyncio.sleep(0.05)
            assert answer.status == 200
        assert await get(http, peer) == b"ok"


def dying_when_kept(peer: list[Peer], *, says: bytes = b"") -> Serve:
    """The first connection takes a second request, and closes without an answer to it."""

    async def serve(
        number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await peer[0].request(reader)
        writer.write(OK)
        await peer[0].request(reader)
        writer.write(says if number == 1 else OK)
        if number > 1:
            await reader.read()

    return serve


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_write_on_a_kept_connection_that_dies_is_never_sent_again(method: str):
    found: list[Peer] = []
    async with Peer(dying_when_kept(found)).running() as peer, HttpClient() as http:
        found.append(peer)
        await get(http, peer)
        with pytest.raises(ConnectionError):
            await get(http, peer, method)
        assert [request.split(b" ")[0] for request in peer.requests] == [b"GET", method.encode()]


async def test_a_read_on_a_kept_connection_that_dies_is_sent_again_once():
    found: list[Peer] = []
    async with Peer(dying_when_kept(found)).running() as peer, HttpClient() as http:
        found.append(peer)
        await get(http, peer)
        assert await get(http, peer) == b"ok"
        assert (peer.accepted, len(peer.requests)) == (2, 3)


async def test_a_read_whose_answer_had_begun_is_not_sent_again():
    found: list[Peer] = []
    serve = dying_when_kept(found, says=b"HTTP/1.1 200 OK\r\nConte")
    async with Peer(serve).running() as peer, HttpClient() as http:
        found.append(peer)
        await get(http, peer)
        with pytest.raises(ConnectionError):
            await get(http, peer)
        assert len(peer.requests) == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_is_sent_again_on_a_new_connection(method: str):
    async with Peer(answering(b"")).running() as peer, HttpClient() as http:
        with pytest.raises(ConnectionError):
            await get(http, peer, method)
        assert peer.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\xa0\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
    ],
)
async def test_what_is_not_one_answer_is_refused(answer: bytes):
    async with Peer(answering(answer)).running() as peer, HttpClient() as http:
        with pytest.raises(FramingError):
            await get(http, peer)


async def test_half_an_answer_and_a_long_one_are_errors():
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf"
    async with Peer(answering(half)).running() as peer, HttpClient() as http:
        with pytest.raises(ConnectionError):
            await get(http, peer)
        with pytest.raises(AnswerTooLong):
            async with http.request("GET", peer.url, timeout=5) as answer:
                await answer.body(limit=3)


async def test_a_failure_to_connect_has_its_cause():
    def check(host: str, _port: int) -> None:
        raise PermissionError(host)

    async with Peer(answering(OK)).running() as peer, HttpClient(check=check) as http:
        with pytest.raises(ConnectFailed) as denied:
            await get(http, peer)
        assert isinstance(denied.value.cause, PermissionError)
        assert peer.accepted == 0
    async with HttpClient() as http:
        with pytest.raises(ConnectFailed) as refused:
            await get(http, peer)
        assert isinstance(refused.value.cause, ConnectionRefusedError)


@pytest.mark.parametrize("headers", [{"A": "b\r\nC: d"}, {"A\r\nB": "c"}, {"A": "b\0"}])
async def test_a_header_that_would_be_two_is_not_sent(headers: dict[str, str]):
    async with HttpClient() as http:
        with pytest.raises(ValueError, match="line break"):
            http.request("GET", "http://127.0.0.1:1/", timeout=1, headers=headers)


async def test_idle_connections_are_closed_and_no_timer_stays():
    left = asyncio.Event()

    async def serve(
        _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()
        left.set()

    async with Peer(serve).running() as peer, HttpClient(keep=0.05) as http:
        await get(http, peer)
        await asyncio.wait_for(left.wait(), 10)
        assert http._sweeper is None


async def test_few_connections_are_kept_however_many_servers_are_asked():
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(most_idle=2))
        served = [Peer(answering(OK, OK)).running() for _ in range(4)]
        peers = [await stack.enter_async_context(one) for one in served]
        for peer in [*peers, *peers]:
            assert await get(http, peer) == b"ok"
        assert [peer.accepted for peer in peers] == [1, 1, 2, 2]


async def test_an_answer_to_head_has_no_body_whatever_it_says():
    async with Peer(answering(OK[:-2], OK)).running() as peer, HttpClient() as http:
        async with http.request("HEAD", peer.url, timeout=5) as answer:
            assert await answer.body(limit=10) == b""
        assert await get(http, peer) == b"ok"
        assert peer.accepted == 1


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_a_status_without_a_body_leaves_the_connection_for_the_next(status: bytes):
    bodiless = b"HTTP/1.1 " + status + b"\r\nContent-Length: 9\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"
    async with Peer(answering(bodiless, interim + OK)).running() as peer, HttpClient() as http:
        assert await get(http, peer) == b""
        assert await get(http, peer) == b"ok"
        assert peer.accepted == 1


async def test_a_server_that_talks_on_without_being_asked_is_left():
    async def serve(
        _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        try:
            while True:
                writer.write(bytes(10_000))
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            left.set()

    left = asyncio.Event()
    async with Peer(serve).running() as peer, HttpClient() as http:
        assert await get(http, peer) == b"ok"
        await asyncio.wait_for(left.wait(), 10)


async def test_a_request_that_is_cancelled_takes_its_connection_along():
    async with Peer(answering(b"", b"")).running() as peer, HttpClient() as http:
        for _ in range(3):
            asking = asyncio.create_task(get(http, peer))
            await asyncio.sleep(0.02)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await asking
        assert (http._busy, http._idle) == (set(), {})


async def test_a_server_that_never_reads_costs_no_more_than_the_timeout():
    over = asyncio.Event()

    async def serve(*_: object) -> None:
        await over.wait()

    async with Peer(serve).running() as peer, HttpClient() as http:
        with pytest.raises(TimeoutError):
            async with http.request("PUT", peer.url, timeout=0.3, body=bytes(32 << 20)):
                pass
        assert http._busy == set()
        over.set()


async def test_a_read_is_not_sent_again_when_the_client_closes():
    found: list[Peer] = []

    async def serve(
        _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await found[0].request(reader)
        writer.write(OK)
        await found[0].request(reader)
        asked.set()
        await reader.read()

    asked = asyncio.Event()
    async with Peer(serve).running() as peer, HttpClient() as http:
        found.append(peer)
        await get(http, peer)
        again = asyncio.create_task(get(http, peer))
        await asked.wait()
        await http.aclose()
        with pytest.raises(ConnectionError):
            await again
        assert peer.accepted == 1


async def test_a_server_that_does_not_speak_tls_is_a_failure_to_connect():
    async def serve(_number: int, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with Peer(serve).running() as peer, HttpClient() as http:
        url = peer.url.replace("http:", "https:")
        with pytest.raises(ConnectFailed):
            async with http.request("GET", url, timeout=5):
                pass
        assert http._busy == set()
