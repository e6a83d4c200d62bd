"""Asking pods over the network: connections, HTTP and gRPC probes."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from concurrent import futures

import grpc
import pytest
from tests.resolver.support import free_port

from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.readiness.checks import NetworkChecks, Reachability
from elasti.resolver.readiness.plan import PlannedProbe
from kubeloop.objects.core import GrpcAction, HttpGetAction, HttpProbeHeader, TcpSocketAction

CHECKS = NetworkChecks()


@contextlib.asynccontextmanager
async def answering(answer, seen=None):
    async def serve(reader, writer):
        with contextlib.suppress(OSError, EOFError):
            head = await reader.readuntil(b"\r\n\r\n")
            if seen is not None:
                seen.append(head)
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def http(port, timeout=1.0, **action):
    return await CHECKS.ask("127.0.0.1", PlannedProbe(HttpGetAction(port, **action), port, timeout))


async def test_a_connection_is_accepted_refused_or_nothing():
    async with answering(b"") as port:
        assert (
            await CHECKS.connect(UpstreamAddress("127.0.0.1", port), timeout=1)
            is Reachability.ACCEPTED
        )
    closed = free_port()
    assert (
        await CHECKS.connect(UpstreamAddress("127.0.0.1", closed), timeout=1)
        is Reachability.REFUSED
    )


async def test_silence_is_unreachable():
    with contextlib.ExitStack() as stack:
        # A full queue answers no client, as a policy that drops packets.
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        silent = UpstreamAddress(*server.getsockname())
        assert await CHECKS.connect(silent, timeout=0.2) is Reachability.UNREACHABLE


@pytest.mark.parametrize(
    ("status", "passes"),
    [(200, True), (204, True), (302, True), (399, True), (400, False), (503, False)],
)
async def test_an_http_probe_passes_with_2xx_and_3xx(status, passes):
    async with answering(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()) as port:
        assert await http(port) is passes


async def test_an_http_probe_sends_what_the_pod_asked_for():
    seen: list[bytes] = []
    async with answering(b"HTTP/1.0 200\r\n\r\n", seen) as port:
        headers = (HttpProbeHeader("X-Probe", "yes"), HttpProbeHeader("Host", "web"))
        assert await http(port, path="/ready?full=1", http_headers=headers)
    head = seen[0].decode()
    assert head.startswith("GET /ready?full=1 HTTP/1.1\r\n")
    assert "\r\nHost: web\r\n" in head
    assert "\r\nX-Probe: yes\r\n" in head
    assert head.count("Host:") == 1


@pytest.mark.parametrize("bad", ["/a\r\nX: y", "/a b", "/\x00"])
async def test_a_path_that_would_be_another_request_is_never_sent(bad):
    seen: list[bytes] = []
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", seen) as port:
        assert not await http(port, path=bad)
    assert not seen


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n", b"HTTP/2 200\r\n\r\n", b"x" * 100_000])
async def test_what_is_not_http_does_not_pass(answer):
    async with answering(answer) as port:
        assert not await http(port)


async def test_a_silent_pod_does_not_pass_after_the_timeout():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        assert not await http(server.sockets[0].getsockname()[1], timeout=0.1)


async def test_a_tcp_probe_needs_a_connection():
    async with answering(b"") as port:
        assert await CHECKS.ask("127.0.0.1", PlannedProbe(TcpSocketAction(port), port))
    assert not await CHECKS.ask("127.0.0.1", PlannedProbe(TcpSocketAction(port), port))


def _health(status):
    def check(request, context):
        if request == b"\x0a\x04down":
            return b"\x08\x02"
        return status

    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health",
        {"Check": grpc.unary_unary_rpc_method_handler(check)},
    )


@pytest.mark.allow_leaks("threads")
@pytest.mark.parametrize(
    ("status", "passes"), [(b"\x08\x01", True), (b"\x08\x02", False), (b"", False)]
)
async def test_a_grpc_probe_passes_when_the_server_is_serving(status, passes):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((_health(status),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert await CHECKS.ask("127.0.0.1", PlannedProbe(GrpcAction(port), port, 5.0)) is passes
        assert not await CHECKS.ask("127.0.0.1", PlannedProbe(GrpcAction(port, "down"), port, 5.0))
    finally:
        await asyncio.to_thread(server.stop(0).wait)


async def test_a_server_without_grpc_does_not_pass():
    async with answering(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") as port:
        assert not await CHECKS.ask("127.0.0.1", PlannedProbe(GrpcAction(port), port))


@pytest.mark.parametrize(
    "flood",
    [b"\x00\x40\x00\x06\x00" + bytes(4 + 0x4000), b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"],
)
async def test_a_pod_that_floods_a_grpc_probe_costs_no_memory_and_little_time(flood):
    """A pod is a tenant's: it sends PINGs or HEADERS without end, and never reads the answers."""

    async def serve(_reader, writer):
        with contextlib.suppress(OSError):
            for _ in range(2000):
                writer.write(flood * max(1, 0x10000 // len(flood)))
                await writer.drain()
        writer.close()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = time.process_time()
        assert not await CHECKS.ask("127.0.0.1", PlannedProbe(GrpcAction(port), port, 20.0))
    assert time.process_time() - began < 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
