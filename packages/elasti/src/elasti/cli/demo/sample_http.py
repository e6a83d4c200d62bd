"""A small HTTP app to put to sleep: slow to start, counts its requests, and leaves politely.

    POD_IP=127.0.0.1 PORT=8080 START_SECONDS=1 python -m elasti.cli.demo.sample_http

It listens only after START_SECONDS, as real apps do. `/metrics` has the counter that the `pods`
trigger reads; scraping it is not use, and is not counted. After SIGTERM it goes on serving for
LINGER_SECONDS, because clients learn of its end later than it does.
"""

from __future__ import annotations

import asyncio
import os
import signal

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
        """Tell how often it was used."""
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


async def main() -> None:
    """Start late, serve until SIGTERM, linger, end."""
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    await asyncio.sleep(float(os.environ.get("START_SECONDS", "1")))
    runner = web.AppRunner(SampleApp(os.environ.get("POD_NAME", "sample")).routes())
    await runner.setup()
    host, port = os.environ.get("POD_IP", "127.0.0.1"), int(os.environ.get("PORT", "8080"))
    await web.TCPSite(runner, host, port).start()
    print(f"serving on {host}:{port}", flush=True)
    await stop.wait()
    await asyncio.sleep(float(os.environ.get("LINGER_SECONDS", "5")))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
