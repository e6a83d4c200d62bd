"""The bytes that a worker keeps of its clients are bounded, and shared out among Services."""

from __future__ import annotations

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.resolver.proxy.fakes import POD, FakePool, FakeTransport
from tests.resolver.proxy.h2_peers import request_fields
from tests.resolver.proxy.memory_upstream import MemoryUpstream

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.proxy.quota import PAGE, FairQuota
from elasti.resolver.proxy.upstream.interface import PortProtocol

# 256 pages, of which each of two Services has 32 for itself, and 6 are kept aside.
LIMITS = Limits(held_memory=256 * PAGE, reserved_memory=32 * PAGE)
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"


class Service:
    """A Service without pods, and its clients."""

    def __init__(self, path: DataPath, name: str, protocol: PortProtocol) -> None:
        self.upstream = MemoryUpstream()
        self.handler = path.handler(self.upstream, protocol, owner=name)
        self.clients: list[Any] = []

    def send(self, wire: bytes, size: int = 64 * 1024) -> FakeTransport:
        connection: Any = self.handler()
        client: Any = FakeTransport(connection)
        connection.connection_made(client)
        self.clients.append(client)
        for at in range(0, len(wire), size):
            if client.reading:
                client.feed(wire[at : at + size])
        return client

    @property
    def kept(self) -> int:
        """How many bytes the connections of clients keep."""
        return sum(client.protocol.kept() for client in self.clients if not client.closing)

    def end(self) -> None:
        for client in self.clients:
            client.lose()
        assert self.handler.memory.used == 0


@pytest.fixture(params=[PortProtocol.HTTP])
def services(request):
    path = DataPath(limits=LIMITS)
    path.pool = FakePool(limits=path.limits, sweeper=path.sweeper)
    made = [Service(path, name, request.param) for name in ("greedy", "modest")]
    yield made
    for service in made:
        service.end()
    assert path.quotas.memory.used == 0


def test_bodies_of_one_service_leave_another_its_reserve(services):
    greedy, modest = services
    for _ in range(100):
        greedy.send(HEAD + b"x" * 60_000, 4000)
    assert greedy.kept <= 218 * PAGE
    assert greedy.handler.memory.used == 218
    refused = [client for client in greedy.clients if client.written.startswith(b"HTTP/1.1 503 ")]
    assert refused, "a request that there is no memory for is refused"
    for _ in range(2):
        assert modest.send(HEAD + b"x" * 60_000).written == b""
    assert len(modest.upstream.waiting) == 2
    # Memory comes back with a pod.
    waiting = len(greedy.upstream.waiting)
    greedy.upstream.release(POD)
    assert greedy.handler.memory.used == 0
    assert len(greedy.handler.pool.opened) == waiting


@pytest.mark.parametrize("services", list(PortProtocol), indirect=True)
async def test_the_youngest_held_of_the_largest_service_end_for_another(services):
    greedy, modest = services
    wire = HEAD if greedy.handler.protocol is not PortProtocol.TLS else b"\x16\x03"
    for _ in range(300):
        greedy.send(wire)
    held = list(greedy.upstream.waiting)
    assert len(held) == 218
    for _ in range(70):
        modest.send(wire)
    assert modest.handler.memory.used == len(modest.upstream.waiting) == 70
    left = list(greedy.upstream.waiting)
    assert left == held[: len(left)], "the youngest are ended"
    assert 218 - len(left) >= 70 - 32 - 6
    if greedy.handler.protocol is PortProtocol.HTTP:
        assert greedy.handler.statistics.answered(503) == 300 - len(left)


@pytest.mark.parametrize(
    "wire",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 60_000,
        h2.PREFACE + h2.frame(h2.SETTINGS)
        + h2.frame(h2.HEADERS, flags=4, stream=1, payload=hpack.Encoder().encode(request_fields(b"/")))
        + h2.frame(h2.DATA, stream=1, payload=b"x" * 16_000) * 3,
    ],
    ids=["heads", "h2"],
)  # fmt: skip
def test_all_that_is_kept_counts(services, wire):
    greedy, modest = services
    for _ in range(100):
        greedy.send(wire, 8000)
    assert greedy.kept <= 234 * PAGE
    assert greedy.handler.memory.used <= 218
    modest.send(HEAD)
    assert len(modest.upstream.waiting) == 1


def test_pipelined_requests_count(services):
    greedy, _ = services
    greedy.upstream.pods.append(POD)
    for _ in range(100):
        greedy.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b"GET /" + b"x" * 60_000, 8000)
    assert greedy.handler.memory.used == 218
    assert greedy.kept <= 218 * PAGE
    # Where there was no memory for what follows, the answer is the last.
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    greedy.handler.pool.opened[-1].feed(answer)
    assert b"Connection: close\r\n" in greedy.clients[-1].written
    for pod in greedy.handler.pool.opened:
        pod.lose()


@pytest.mark.parametrize("services", [PortProtocol.TCP], indirect=True)
async def test_bytes_of_tcp_clients_count(services):
    greedy, modest = services
    for _ in range(100):
        greedy.send(b"\0" * 60_000, 4000)
    assert greedy.handler.memory.used == 218
    assert modest.send(b"\0" * 60_000).reading


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=200))
def test_what_is_counted_is_what_was_taken(steps):
    quota = FairQuota(capacity=64, reserve=12, aside=4)
    shares = [quota.share() for _ in range(5)]
    pages = [0] * 5
    for who, wanted in steps:
        pages[who] = shares[who].resize(pages[who], wanted * PAGE)
        assert pages[who] in (wanted, shares[who].used)
        assert [share.used for share in shares] == pages
        assert quota.used == sum(pages) <= quota.capacity
        assert quota.contended == sum(max(used - quota.reserve, 0) for used in pages) <= quota.free
