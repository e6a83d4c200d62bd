"""An HTTP server for probes and metrics: `/healthz`, `/readyz`, `/metrics`.

aiohttp's server is loaded when one is started, not when this module is imported.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kubeloop.controller.doorway import Doorway

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from kubeloop.controller.doorway import DoorLimits
    from kubeloop.controller.health import HealthAnswer, HealthChecks

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer:
    """A runnable for `Group.SERVERS`; ready when it listens.

    `metrics` returns the present metrics in Prometheus' text format. Port 0 takes any free one;
    `port` tells which. `limits` hold callers to sending something.
    """

    def __init__(
        self,
        *,
        healthz: HealthChecks | None = None,
        readyz: HealthChecks | None = None,
        metrics: Callable[[], bytes] | None = None,
        host: str | None = None,
        port: int = 8081,
        limits: DoorLimits | None = None,
    ) -> None:
        self._checks = {"healthz": healthz, "readyz": readyz}
        self._metrics = metrics
        self._host = host
        self._wanted_port = port
        self._listening = asyncio.Event()
        self._doorway = Doorway(limits)

    @property
    def port(self) -> int:
        """The port that it listens on; known when ready."""
        return self._doorway.port

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await self._doorway.open(self._application(), self._host, self._wanted_port)
            self._listening.set()
            await asyncio.get_running_loop().create_future()
        finally:
            await self._doorway.close()

    async def wait_until_ready(self) -> None:
        """Wait until it listens."""
        await self._listening.wait()

    def _application(self) -> web.Application:
        from aiohttp import web  # noqa: PLC0415 -- costs 100 ms, which not every program needs

        app = web.Application()
        for name, checks in self._checks.items():
            if checks is not None:
                _add_checks(app, name, checks)
        if self._metrics is not None:
            _add_metrics(app, self._metrics)
        return app


def _add_checks(app: web.Application, name: str, checks: HealthChecks) -> None:
    async def all_of_them(request: web.Request) -> web.Response:
        exclude = request.query.getall("exclude", [])
        return _response(await checks.run(exclude=exclude, verbose="verbose" in request.query))

    async def one(request: web.Request) -> web.Response:
        return _response(await checks.run_one(request.match_info["check"]))

    app.router.add_get(f"/{name}", all_of_them)
    app.router.add_get(f"/{name}/", all_of_them)
    app.router.add_get(f"/{name}/{{check}}", one)


def _add_metrics(app: web.Application, metrics: Callable[[], bytes]) -> None:
    from aiohttp import web  # noqa: PLC0415 -- as above

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": _METRICS_TYPE})

    app.router.add_get("/metrics", serve)


def _response(answer: HealthAnswer | None) -> web.Response:
    from aiohttp import web  # noqa: PLC0415 -- as above

    if answer is None:
        return web.Response(status=404, text="no such check\n")
    return web.Response(
        status=200 if answer.ok else 500,
        text=answer.text,
        headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
    )
