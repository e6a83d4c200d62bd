"""The app behind the cases' Services: a small httpbin, and the same over gRPC.

    POD_IP=127.0.0.1 python -m tests.e2e.cases.httpbin

PORT (8080), GRPC_PORT (none): where it listens. START_SECONDS (0): how long it takes to start.
`/healthz` and `/metrics` are not use; every other request counts in `http_requests_total`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import grpc
from aiohttp import web
from tests.resolver.proxy.grpc_pod import Echo

LINE = '{"id": %d, "url": "/stream"}\n'


def some_bytes(count: int) -> bytes:
    """So many bytes, the same every time."""
    return bytes(index * 7 % 251 for index in range(min(count, 251))) * (count // 251 + 1)


class HttpBin:
    """Answers, and counts."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._used = 0

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._count])
        app.router.add_get("/bytes/{count}", self._bytes)
        app.router.add_get("/drip", self._drip)
        app.router.add_get("/stream/{count}", self._stream)
        app.router.add_get("/ws", self._websocket)
        app.router.add_get("/ip", self._ip)
        app.router.add_get("/headers", self._headers)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _count(self, request: web.Request, handler) -> web.StreamResponse:
        if request.path not in ("/healthz", "/metrics"):
            self._used += 1
        return await handler(request)

    async def _bytes(self, request: web.Request) -> web.Response:
        count = int(request.match_info["count"])
        return web.Response(body=some_bytes(count)[:count])

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        """Send ten bytes over a second, with a length that is known before."""
        response = web.StreamResponse(headers={"Content-Length": "10"})
        await response.prepare(request)
        for _ in range(10):
            await response.write(b"*")
            await asyncio.sleep(0.1)
        await response.write_eof()
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send lines without a length."""
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for number in range(int(request.match_info["count"])):
            await response.write((LINE % number).encode())
        await response.write_eof()
        return response

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    async def _ip(self, request: web.Request) -> web.Response:
        return web.json_response({"origin": request.remote, "pod": self._pod})

    async def _headers(self, request: web.Request) -> web.Response:
        return web.json_response({"headers": dict(request.headers)})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=f"http_requests_total {self._used}\n")


@contextlib.asynccontextmanager
async def grpc_server(host: str, port: str) -> AsyncIterator[None]:
    """Serve gRPC too, where a port is given."""
    if not port:
        yield
        return
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(f"{host}:{port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(1.0)


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    host = os.environ["POD_IP"]
    await asyncio.sleep(float(os.environ.get("START_SECONDS", "0")))
    async with grpc_server(host, os.environ.get("GRPC_PORT", "")):
        runner = web.AppRunner(HttpBin(os.environ.get("POD_NAME", "")).application())
        await runner.setup()
        await web.TCPSite(runner, host, int(os.environ.get("PORT", "8080"))).start()
        await stop.wait()
        # Nodes send on for a moment after they were told to stop.
        await asyncio.sleep(2.0)
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
