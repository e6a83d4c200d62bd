"""Connections to a pod that has just begun to serve: a few at first, and more as they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.resolver.proxy.fakes import POD
from tests.resolver.proxy.rig import Rig

from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.quota import FairQuota, QuotaShare
from elasti.resolver.proxy.upstream.interface import PortProtocol, UpstreamAddress
from elasti.resolver.proxy.upstream.parallel import ParallelEvidence
from elasti.resolver.proxy.upstream.pod_connection import PodConnection, PodPool
from elasti.resolver.proxy.upstream.pool import UpstreamPool
from kubeloop.testing.virtual_time import VirtualTimeLoop
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
    # Else a server with one thread could not be stopped while a connection is kept.
    timeout = 8
    # An answer in one piece: in two, Nagle's algorithm and delayed acknowledgements take 40 ms for each.
    wbufsize = -1


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
        (http.server.HTTPServer, KeptAnswer),
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
        # A server with one thread accepts the next connection when the one before it is closed.
        is_serial = kind is http.server.HTTPServer and answer is KeptAnswer
        assert answered[-1][0] - answered[0][0] <= (2.0 if is_serial else 0.5)


async def test_a_server_with_one_thread_serves_two_resolvers():
    async with Rig() as one, Rig() as other:
        clients = [await rig.connect() for _ in range(HELD // 2) for rig in (one, other)]
        for client in clients:
            client.get()
        await one.held(HELD // 2)
        await other.held(HELD // 2)
        with small_server(http.server.HTTPServer, KeptAnswer) as pod:
            for rig in (one, other):
                rig.upstream.release(pod)
            began = time.monotonic()
            answers = await asyncio.gather(*(client.response() for client in clients))
            took = time.monotonic() - began
        assert {status for status, _, _ in answers} == {200}
        assert took < 7


async def test_a_server_that_serves_several_connections_keeps_them():
    async with Rig() as rig:
        with small_server(http.server.ThreadingHTTPServer, KeptAnswer) as pod:
            rig.upstream.pods = [pod]
            clients = [await rig.connect() for _ in range(4)]
            for _ in range(5):
                for client in clients:
                    client.get()
                for client in clients:
                    assert (await client.response())[0] == 200
            (known,) = rig.path.pool._pod_pools.values()
            assert known.parallel.proven
            # One that was made and not needed may still be ending.
            await eventually(lambda: known.open == len(known.idle))
            assert 2 <= known.open <= 4


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


class Waiting:
    """A consumer that waits for a connection to its pod."""

    def __init__(self, share) -> None:
        self.pod_share = share

    def connected(self, connection) -> None:
        """Take nothing."""

    def connect_failed(self, address) -> None:
        """Go nowhere."""


async def test_a_connection_that_ends_does_not_visit_every_pod_that_waits():
    pool = UpstreamPool(limits=Limits(), sweeper=DeadlineSweeper())
    quota = FairQuota(capacity=1, reserve=0)
    tried = 0

    class Counted(QuotaShare):
        __slots__ = ()

        def take(self, count: int = 1) -> bool:
            nonlocal tried
            tried += 1
            return super().take(count)

    has, *starve = (Counted(quota, bool) for _ in range(401))
    assert has.take()
    for number, share in enumerate(starve):
        pool.open(UpstreamAddress("192.0.2.1", 1 + number), Waiting(share))
    gone = PodConnection(pool=pool, pod_pool=PodPool(POD, fresh=False, credit=1), share=has)
    tried = 0
    for _ in range(100):
        # Another takes the descriptor before those that wait: they find none.
        gone.pod_pool.open, has.used, quota.used = 1, 1, 2
        pool.lost(gone)
    assert tried <= 200
    # The longest that waited are the first that were tried, and all are tried again after a while.
    tried = 0
    pool.sweep(1)
    assert tried == len(starve)
    await pool.aclose()


class Observed:
    def __init__(self) -> None:
        self.open = True

    def is_open(self) -> bool:
        return self.open


async def test_an_answer_right_after_another_connection_was_closed_proves_nothing():
    evidence, first, second = ParallelEvidence(lambda: 0.0), Observed(), Observed()
    for connection in (first, second):
        evidence.asked(connection)
    evidence.answered(first)
    # The server has closed it, and the loop has not heard of that: both came in one turn.
    first.open = False
    evidence.answered(second)
    assert not evidence.proven
    third = Observed()
    evidence.asked(third)
    evidence.answered(third)
    assert evidence.proven


def test_a_waiting_request_is_judged_by_the_loops_clock():
    async def wait() -> None:
        evidence = ParallelEvidence(asyncio.get_running_loop().time)
        evidence.asked(Observed())
        assert not evidence.is_starving()
        await asyncio.sleep(1)
        assert evidence.is_starving()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(wait())
