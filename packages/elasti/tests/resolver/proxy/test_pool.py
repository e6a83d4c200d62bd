"""Connections to a pod that has just begun to serve: a few at first, and more as they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.resolver.proxy.rig import Rig

from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.upstream.interface import PortProtocol, UpstreamAddress
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD = 100
# Of socketserver, and so of many a small server.
BACKLOG = 5


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class KeptAnswer(Answer):
    protocol_version = "HTTP/1.1"


@contextlib.contextmanager
def small_server(kind: type, answer: type) -> Iterator[UpstreamAddress]:
    """A server of the standard library that listens and does not accept before it is entered."""
    with kind(("127.0.0.1", 0), answer) as server:
        assert server.request_queue_size == BACKLOG
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield UpstreamAddress(*server.server_address)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (http.server.HTTPServer, Answer),
        (http.server.ThreadingHTTPServer, Answer),
        (http.server.ThreadingHTTPServer, KeptAnswer),
    ],
)
async def test_the_last_of_many_held_is_answered_soon_by_a_short_backlog(kind, answer):
    async with Rig() as rig:
        clients = [await rig.connect() for _ in range(HELD)]
        for client in clients:
            client.get()
        await eventually(lambda: len(rig.upstream.waiting) == HELD, timeout=30)
        answered = []

        async def answer_of(client) -> None:
            status, _, _ = await client.response()
            answered.append((time.monotonic(), status))

        with small_server(kind, answer) as pod:
            rig.upstream.release(pod)
            await asyncio.gather(*map(answer_of, clients))
        assert {status for _, status in answered} == {200}
        assert answered[-1][0] - answered[0][0] <= 0.5


async def test_streams_that_are_never_answered_are_connected_all_the_same():
    async def silent(pod, reader, writer):
        await reader.read()

    async with Rig(protocol=PortProtocol.TCP) as rig:
        clients = [await rig.connect() for _ in range(HELD)]
        for client in clients:
            client.send(b"x")
        await eventually(lambda: len(rig.upstream.waiting) == HELD, timeout=30)
        pod = await rig.pod(silent)
        began = time.monotonic()
        rig.upstream.release(pod.address)
        await eventually(lambda: pod.connections == 3, timeout=30, every=0.001)
        await eventually(lambda: pod.connections == HELD, timeout=30, every=0.005)
        assert time.monotonic() - began < 2.0


async def test_a_lone_request_to_a_known_pod_never_waits_its_turn():
    async def answers(pod, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

    async with Rig(limits=Limits(first_connects=1)) as rig:
        pod = await rig.pod(answers)
        rig.upstream.pods = [pod.address]
        for _ in range(10):
            client = await rig.connect()
            client.get()
            assert (await client.response())[0] == 200
        (known,) = rig.path.pool._pod_pools.values()
        assert known.pacing is None
