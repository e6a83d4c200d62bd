"""Probes against real servers: HTTP, TCP, gRPC, commands."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import hpack
import msgspec
import pytest
from aiohttp import web

from devkube.kubelet import probe_checks
from devkube.kubelet.container_types import (
    ContainerSpec,
    GrpcAction,
    HttpGetAction,
    TcpSocketAction,
)
from devkube.kubelet.probe_checks import ProbeOutcome, http_session

HOST = "127.20.255.1"
CONTAINER = msgspec.convert({"name": "c"}, ContainerSpec)


@contextlib.asynccontextmanager
async def serving(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> AsyncIterator[int]:
    runner = web.ServerRunner(
        web.Server(handle, access_log=None, handler_cancellation=True), shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def get(port: int, *, timeout: float = 5.0, **fields: Any) -> ProbeOutcome:
    action = msgspec.convert({"port": port, **fields}, HttpGetAction)
    async with http_session() as session:
        return await probe_checks.http_get(
            session, action, CONTAINER, address=HOST, timeout=timeout, agent="kube-probe/1.36"
        )


async def test_http_codes_decide():
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=int(request.path[1:]), text="body")

    async with serving(handle) as port:
        assert (await get(port, path="/200")) == ProbeOutcome(healthy=True, message="body")
        assert (await get(port, path="/399")).warning
        for code in (404, 500):
            failed = await get(port, path=f"/{code}")
            assert failed == ProbeOutcome(
                healthy=False, message=f"HTTP probe failed with statuscode: {code}"
            )


async def test_http_headers_are_sent_and_the_probe_names_itself():
    seen: list[Any] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers)
        return web.Response()

    headers = [{"name": "Host", "value": "shop.example"}, {"name": "X-A", "value": "1"}]
    async with serving(handle) as port:
        await get(port, httpHeaders=headers)
        await get(port, httpHeaders=[{"name": "Accept", "value": ""}])
    assert (seen[0]["Host"], seen[0]["X-A"]) == ("shop.example", "1")
    assert (seen[0]["User-Agent"], seen[0]["Accept"]) == ("kube-probe/1.36", "*/*")
    assert seen[1]["Host"] == f"{HOST}:{port}"


async def test_redirects_are_followed_to_the_same_host_only():
    async def handle(request: web.BaseRequest) -> web.Response:
        match request.path:
            case "/a":
                return web.Response(status=302, headers={"Location": "/b"})
            case "/b":
                return web.Response(status=500)
            case "/loop":
                return web.Response(status=302, headers={"Location": "/loop"})
        return web.Response(status=302, headers={"Location": "http://other.example/"})

    async with serving(handle) as port:
        assert "statuscode: 500" in (await get(port, path="/a")).message
        assert (await get(port, path="/elsewhere")).warning
        assert "stopped after 10 redirects" in (await get(port, path="/loop")).message


@pytest.mark.virtual_time
async def test_http_failures_are_worded_as_kubernetes_does():
    async def handle(request: web.BaseRequest) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with serving(handle) as port:
        slow = await get(port, path="/x", timeout=1)
    assert slow.message == (
        f'Get "http://{HOST}:{port}/x": context deadline exceeded'
        " (Client.Timeout exceeded while awaiting headers)"
    )
    refused = await get(port, path="/x")
    assert refused.message == (
        f'Get "http://{HOST}:{port}/x": dial tcp {HOST}:{port}: connect: connection refused'
    )


async def test_tcp_needs_an_accepted_connection():
    server = await asyncio.start_server(lambda _r, w: w.close(), HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await probe_checks.tcp_connect(
            TcpSocketAction(port), CONTAINER, address=HOST, timeout=1
        ) == ProbeOutcome(healthy=True)
    refused = await probe_checks.tcp_connect(
        TcpSocketAction(port), CONTAINER, address=HOST, timeout=1
    )
    assert refused.message == f"dial tcp {HOST}:{port}: connect: connection refused"


# gRPC: a small server that answers one request, independent of the client but for hpack.


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


class HealthServer:
    """Answers health checks with a fixed status, in pieces that a client must put together."""

    def __init__(self, *, status: int = 1, code: int = 0, message: str = "") -> None:
        self.status, self.code, self.message = status, code, message
        self.requests: list[tuple[dict[str, str], bytes]] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        writer.write(frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678"))
        decoder, body = hpack.Decoder(), b""
        headers: dict[str, str] = {}
        pong = settled = False
        while not (pong and settled and body):
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == 1:
                headers = {str(k): str(v) for k, v in decoder.decode(payload)}
            elif kind == 0:
                body = payload
            elif kind == 6:
                assert flags & 1
                assert payload == b"12345678"
                pong = True
            elif kind == 4 and flags & 1:
                settled = True
        self.requests.append((headers, body))
        writer.write(self._answer())
        await reader.read()

    def _answer(self) -> bytes:
        encoder = hpack.Encoder()
        first = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
        message = b"\x08" + bytes([self.status]) if self.status else b""
        data = b"\x00" + struct.pack(">I", len(message)) + message
        trailers = [("grpc-status", str(self.code)), ("grpc-message", self.message)]
        last = encoder.encode(trailers)
        return (
            frame(1, 0, 1, first[:3])
            + frame(9, 4, 1, first[3:])
            + frame(0, 8, 1, b"\x02" + data + b"\x00\x00")
            + frame(1, 5, 1, last)
        )


async def check(port: int, service: str | None = None, *, timeout: float = 5.0) -> ProbeOutcome:
    action = GrpcAction(port, service)
    return await probe_checks.grpc_check(
        action, address=HOST, timeout=timeout, agent="kube-probe/1.36"
    )


async def test_a_grpc_server_that_serves_is_healthy():
    server = HealthServer()
    async with server.listening() as port:
        assert await check(port, "shop") == ProbeOutcome(healthy=True, message="service healthy")
    headers, body = server.requests[0]
    assert headers[":path"] == "/grpc.health.v1.Health/Check"
    assert headers["content-type"] == "application/grpc"
    assert headers["te"] == "trailers"
    assert body == b"\x00\x00\x00\x00\x06\x0a\x04shop"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (HealthServer(status=2), 'service unhealthy (responded with "NOT_SERVING")'),
        (HealthServer(status=0), 'service unhealthy (responded with "UNKNOWN")'),
        (
            HealthServer(code=12, message="no"),
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no",
        ),
        (
            HealthServer(code=5, message="unknown service"),
            "error: health rpc probe failed: rpc error: code = 5 desc = unknown service",
        ),
    ],
)
async def test_other_grpc_answers_are_not(server, message):
    async with server.listening() as port:
        assert await check(port) == ProbeOutcome(healthy=False, message=message)


@pytest.mark.virtual_time
async def test_what_is_no_grpc_server_fails_in_time():
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(mute, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        silent = await check(port, timeout=1)
    assert silent.message == "timeout: health rpc did not complete within 1s"
    assert "connect: connection refused" in (await check(port)).message
    async with await asyncio.start_server(chatty, HOST, 0) as server:
        answer = await check(server.sockets[0].getsockname()[1])
    assert not answer.healthy
