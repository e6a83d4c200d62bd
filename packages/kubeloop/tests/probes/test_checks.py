"""HTTP and TCP checks against real servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from kubeloop.objects.core import HttpGetAction
from kubeloop.probes.checks import ProbeOutcome, http_get, tcp_connect

HOST = "127.20.255.1"


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
    return await http_get(action, HOST, port, timeout=timeout, agent="kube-probe/1.36")


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
        assert await tcp_connect(HOST, port, timeout=1) == ProbeOutcome(healthy=True)
    refused = await tcp_connect(HOST, port, timeout=1)
    assert refused.message == f"dial tcp {HOST}:{port}: connect: connection refused"
