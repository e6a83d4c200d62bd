"""Two connections joined: what one says the other hears, to the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
import uvloop

from kubeloop.aio.relay import RelayEnd, is_reset, reset
from tests.waiting import eventually


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def relayed(handler):
    """A relay before a server with that handler; yields a client's streams and the relay's ends."""
    loop = asyncio.get_running_loop()
    handlers: set[asyncio.Task[None]] = set()
    ends: list[RelayEnd] = []

    async def serve(reader, writer):
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        with contextlib.suppress(ConnectionError):
            await handler(reader, writer)
        await end(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    accepted: asyncio.Queue[RelayEnd] = asyncio.Queue()

    def accept() -> RelayEnd:
        joined = RelayEnd()
        ends.append(joined)
        accepted.put_nowait(joined)
        return joined

    relay = await loop.create_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname())
    near = await accepted.get()
    _, far = await loop.create_connection(RelayEnd, *server.sockets[0].getsockname())
    ends.append(far)
    near.join(far)
    try:
        yield reader, writer, near, far
    finally:
        await end(writer)
        for listener in (relay, server):
            listener.close()
        for joined in ends:
            joined.abort()
        await asyncio.gather(*handlers)


async def test_each_side_receives_from_the_other_and_may_stop_first():
    async def upper(reader, writer):
        writer.write((await reader.read()).upper())

    async with relayed(upper) as (reader, writer, *_):
        writer.write(b"hello " * 100_000)
        writer.write_eof()
        assert await reader.read() == b"HELLO " * 100_000


async def test_both_connections_are_closed_once_both_sides_have_sent_all():
    enough = asyncio.Event()

    async def polite(reader, writer):
        await reader.read()
        writer.write(b"bye")
        writer.write_eof()
        await enough.wait()

    async with relayed(polite) as (reader, writer, *ends):
        writer.write_eof()
        assert await reader.read() == b"bye"
        async with asyncio.timeout(30):
            while any(end._transport is not None for end in ends):  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0)
        enough.set()


async def test_a_side_that_breaks_breaks_the_other():
    async def breaks(reader, writer):
        await reader.readexactly(1)
        reset(writer.transport)

    async with relayed(breaks) as (reader, writer, *_):
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_a_slow_reader_stops_the_writer():
    sent = 0

    async def endless(reader, writer):
        nonlocal sent
        while sent < 100_000_000:
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with relayed(endless) as (_, writer, *_):
        last = -1
        async with asyncio.timeout(20):
            while sent != last:
                last = sent
                await asyncio.sleep(0.2)
        assert sent < 50_000_000
        writer.transport.abort()


async def test_a_client_that_closed_is_noticed_by_what_it_is_sent():
    lost = asyncio.Event()

    async def pokes(reader, writer):
        assert await reader.read() == b""
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Nothing more is sent: only a reset tells that the client is gone.
        await eventually(lambda: is_reset(writer.transport))
        lost.set()

    async with relayed(pokes) as (_, writer, _, _):
        writer.close()
        await asyncio.wait_for(lost.wait(), 10)


ANSWER = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


def refuse_early(listener: socket.socket) -> None:
    """Answer as soon as a request begins, and close without reading the rest: the kernel sends a reset."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(ANSWER)


def upload(port: int) -> bytes:
    """Send far more than is read, then return what came back."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(10)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"x" * 50_000)
        with contextlib.suppress(ConnectionError):
            return connection.recv(1000)
    return b""


async def answers_to_uploads(count: int) -> list[bytes]:
    loop = asyncio.get_running_loop()
    joins: set[asyncio.Task[None]] = set()
    with socket.create_server(("127.0.0.1", 0), backlog=count) as pod:

        async def join(near: RelayEnd) -> None:
            _, far = await loop.create_connection(RelayEnd, *pod.getsockname())
            near.join(far)

        class Accepted(RelayEnd):
            __slots__ = ()

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                joins.add(loop.create_task(join(self)))

        relay = await loop.create_server(Accepted, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        answers = []
        for _ in range(count):
            _, answer = await asyncio.gather(
                asyncio.to_thread(refuse_early, pod), asyncio.to_thread(upload, port)
            )
            answers.append(answer)
        relay.close()
        await asyncio.gather(*joins)
        return answers


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_early_answer_to_an_upload_reaches_the_client_before_the_break(factory):
    with asyncio.Runner(loop_factory=factory) as runner:
        answers = runner.run(answers_to_uploads(40))
    assert answers == [ANSWER] * 40
