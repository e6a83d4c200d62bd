"""Two small apps to put to sleep, slow to start: one speaks HTTP, the other greets and echoes over TCP.

    POD_IP=127.0.0.1 PORT=8080 START_SECONDS=1 python -m elasti.cli.demo.sample_apps http
    POD_IP=127.0.0.1 PORT=7000 METRICS_PORT=7001 python -m elasti.cli.demo.sample_apps tcp

They listen only after START_SECONDS, as real apps do. `/metrics` has the counter that the `pods` trigger
reads; scraping it is not use, and is not counted. After SIGTERM they go on serving for LINGER_SECONDS,
because clients learn of a pod's end later than the pod does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

from aiohttp import web


class SampleApp:
    """Answers with its name and how many requests it has answered."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._answered = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any path; the body says who answered, and what was asked."""
        self._answered += 1
        body = {"pod": self._name, "path": request.path, "answered": self._answered}
        return web.json_response(body)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Serve how often it was used."""
        text = (
            "# HELP http_requests_total Requests answered.\n"
            "# TYPE http_requests_total counter\n"
            f"http_requests_total {self._answered}\n"
        )
        return web.Response(text=text)

    async def healthy(self, _request: web.Request) -> web.Response:
        """Say that it serves."""
        return web.Response(text="ok")

    def routes(self) -> web.Application:
        """Return the application; every path but two is use."""
        application = web.Application()
        application.router.add_get("/metrics", self.metrics)
        application.router.add_get("/healthz", self.healthy)
        application.router.add_route("*", "/{path:.*}", self.answer)
        return application


class SampleEcho:
    """Speaks first, as mail and database servers do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connections = 0

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet, then say every line back."""
        self._connections += 1
        writer.write(f"hello from {self._name}\n".encode())
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve how often it was used, over HTTP."""
        await reader.readuntil(b"\r\n\r\n")
        body = f"# TYPE tcp_connections_total counter\ntcp_connections_total {self._connections}\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        writer.close()


@contextlib.asynccontextmanager
async def _serving_http(name: str, host: str) -> AsyncIterator[None]:
    port = int(os.environ.get("PORT", "8080"))
    runner = web.AppRunner(SampleApp(name).routes())
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    print(f"serving on {host}:{port}", flush=True)
    yield
    await runner.cleanup()


@contextlib.asynccontextmanager
async def _serving_tcp(name: str, host: str) -> AsyncIterator[None]:
    echo = SampleEcho(name)
    port, metrics = int(os.environ.get("PORT", "7000")), int(os.environ.get("METRICS_PORT", "7001"))
    async with (
        await asyncio.start_server(echo.converse, host, port),
        await asyncio.start_server(echo.metrics, host, metrics),
    ):
        yield


async def main(kind: str) -> None:
    """Start late, serve until SIGTERM, linger, end."""
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    await asyncio.sleep(float(os.environ.get("START_SECONDS", "1")))
    serving = _serving_http if kind == "http" else _serving_tcp
    name, host = os.environ.get("POD_NAME", "sample"), os.environ.get("POD_IP", "127.0.0.1")
    async with serving(name, host):
        await stop.wait()
        await asyncio.sleep(float(os.environ.get("LINGER_SECONDS", "5")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
