"""Every connection to the API server notices a peer that is gone without a word."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.testing.scripted_answers import reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client import request as requests
from kubeloop.client.auth.identity import AuthContext
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.wire.streams import open_watch
from kubeloop.client.wire.transport import HttpTransport
from kubeloop.objects.codec import codec_for

PODS = "/api/v1/pods"


def connections_to(port: int) -> Iterator[socket.socket]:
    """Yield this process's TCP connections to a port, each a copy."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copied = os.dup(int(entry.name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(copied).st_mode):
            os.close(copied)
            continue
        with socket.socket(fileno=copied) as sock:
            try:
                peer = sock.getpeername()
            except OSError:
                continue
            if isinstance(peer, tuple) and peer[1] == port:
                yield sock


def seconds_to_notice(sock: socket.socket) -> tuple[int, ...]:
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    return *found, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) // 1000


async def test_a_request_and_a_watch_notice_silence_within_45_seconds():
    async with ScriptedServer() as server:
        transport = HttpTransport(Endpoint.parse(server.url))
        server.serve("GET", f"{PODS}/a", reply({}))
        await transport.send(
            requests.get(f"{PODS}/a"), AuthContext(authorization={}, ssl_context=None), timeout=30
        )
        assert [*map(seconds_to_notice, connections_to(server.port))] == [(30, 5, 3, 45)]

        server.expect_watch(PODS)
        stream = await open_watch(
            endpoint=Endpoint.parse(server.url),
            ssl_context=None,
            headers=(),
            target=f"{PODS}?watch=true",
            codec=codec_for(dict),
            connect_timeout=30.0,
            idle_timeout=30.0,
        )
        assert [*map(seconds_to_notice, connections_to(server.port))] == [(30, 5, 3, 45)] * 2
        await stream.close()
        await transport.aclose()
