"""A connection whose reader is slower than its peer, over TLS, on both loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading

import pytest
import uvloop
from tests.certs import make_authority, server_context

from kubeloop.http.connection import Connection

SIZE = 3 << 20


def _send_all_and_leave(listener: socket.socket, tls: ssl.SSLContext, size: int) -> None:
    """Answer as Go does: the socket is closed behind the last byte, whether that was read or not."""
    accepted, _ = listener.accept()
    with tls.wrap_socket(accepted, server_side=True) as peer:
        peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(size))


async def _read_slowly(size: int, *, late: float = 0.0) -> int:
    authority = make_authority()
    tls = ssl.create_default_context(cadata=authority.pem.decode())
    tls.check_hostname = False
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = server_context(authority.server())
        server = threading.Thread(target=_send_all_and_leave, args=(listener, context, size))
        server.start()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(queue_limit=1024), *listener.getsockname(), ssl=tls
        )
        connection.established()
        await connection.head()
        await asyncio.sleep(late)
        got = 0
        while data := await connection.read():
            got += len(data)
            await asyncio.sleep(0.005)
        await connection.close()
        server.join()
    return got


LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_what_came_before_the_end_is_read_however_slow_the_reader(make_loop):
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert [runner.run(_read_slowly(SIZE)) for _ in range(3)] == [SIZE] * 3


@LOOPS
@pytest.mark.parametrize("size", [50_000, 200_000])
def test_what_waits_when_the_connection_is_lost_is_read(make_loop, size):
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(_read_slowly(size, late=0.3)) == size


async def test_the_buffer_grows_for_a_busy_peer_and_is_small_again_after_a_lull():
    here, there = socket.socketpair()
    here.setblocking(False)
    with there:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, sock=here)
        connection.established()
        small = len(connection.get_buffer(-1))
        there.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n" + bytes(100_000))
        await connection.head()
        got = 0
        while got < 100_000:
            got += len(await connection.read())
        assert len(connection.get_buffer(-1)) > 4 * small
        await asyncio.sleep(1.1)
        there.sendall(b"x")
        assert await connection.read() == b"x"
        assert len(connection.get_buffer(-1)) == small
        await connection.close()
