"""The elasti server: where resolvers ask for wake-ups. Every replica has one, leader or not.

| path | answer |
|---|---|
| `POST /informer/incoming-request` | what was done: 202, 404, or 503 with Retry-After |
| `GET /crd-cache` | the ElastiServices by Service, without headers' values |
| `GET /metrics`, `/healthz`, `/readyz` | for those who watch; open |

Connections that say nothing, or too slowly, keep no wake-up out (`kubeloop.http.server`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from aiohttp import web

from elasti.api.defaults import OPERATOR_PORT
from elasti.api.wire import (
    CRD_CACHE_PATH,
    INCOMING_PATH,
    IncomingReply,
    IncomingRequest,
    WakeOutcome,
)
from elasti.authn.authenticator import AccessDenied, CallerAuthenticator
from kubeloop.aio.tasks import TimeBudget
from kubeloop.http.server import ConnectionLimits, HardenedServer
from kubeloop.metrics.text import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.wake import TargetWaker
    from elasti.operator.watch.directory import Directory
    from kubeloop.http.health import HealthChecks

_MAX_BYTES = 64 * 1024
_RETRY_AFTER = {"Retry-After": "1"}

_log = structlog.get_logger(__name__)


class Server:
    """A runnable for `Group.SERVERS`; ready when it listens. Port 0 takes any free one.

    Without an `authenticator` every client may call.
    """

    def __init__(
        self,
        *,
        waker: TargetWaker,
        directory: Directory,
        authenticator: CallerAuthenticator | None,
        metrics: OperatorMetrics,
        healthz: HealthChecks,
        readyz: HealthChecks,
        is_synced: Callable[[], bool],
        host: str | None = None,
        port: int = OPERATOR_PORT,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._waker = waker
        self._directory = directory
        self._authenticator = authenticator
        self._metrics = metrics
        self._checks = {"/healthz": healthz, "/readyz": readyz}
        self._is_synced = is_synced
        self._host = host
        self._wanted_port = port
        self._listening = asyncio.Event()
        self._http_server = HardenedServer(limits)

    @property
    def port(self) -> int:
        """The port that it listens on; known when ready."""
        return self._http_server.port

    async def run(self) -> None:
        """Serve until cancelled."""
        async with self._waker:
            try:
                await self._http_server.open(
                    self._application(), self._host, self._wanted_port, shutdown_timeout=5.0
                )
                self._listening.set()
                await asyncio.get_running_loop().create_future()
            finally:
                # Requests under way are answered before what they started is cancelled.
                await self._http_server.close()

    async def wait_until_ready(self) -> None:
        """Wait until it listens."""
        await self._listening.wait()

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_post(INCOMING_PATH, self._guarded(self._incoming))
        app.router.add_get(CRD_CACHE_PATH, self._guarded(self._crd_cache))
        app.router.add_get("/metrics", self._serve_metrics)
        for path in self._checks:
            app.router.add_get(path, self._health)
        return app

    def _guarded(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def guarded(request: web.Request) -> web.Response:
            if self._authenticator is not None:
                try:
                    await self._authenticator.admit(request.headers.get("Authorization", ""))
                except AccessDenied as denied:
                    headers = _RETRY_AFTER if denied.status == 503 else None
                    return _json(denied.status, {"message": str(denied)}, headers)
            return await handler(request)

        return guarded

    async def _incoming(self, request: web.Request) -> web.Response:
        try:
            message = msgspec.json.decode(await request.read(), type=IncomingRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _json(400, {"message": f"the body is no wake request: {error}"})
        reply = await self._waker.wake(message.namespace, message.svc)
        return _reply(reply)

    async def _crd_cache(self, _request: web.Request) -> web.Response:
        if not self._is_synced():
            return _json(503, {"message": "the operator is starting"}, _RETRY_AFTER)
        return _json(200, {"services": self._directory.shown()})

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        pieces, budget = [], TimeBudget()
        for piece in self._metrics.pieces():
            pieces.append(piece)
            if budget.spent():
                await budget.rest()
        body = "".join(pieces).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.Response:
        answer = await self._checks[request.path].run(verbose="verbose" in request.query)
        return web.Response(status=200 if answer.ok else 500, text=answer.text)


def _reply(reply: IncomingReply) -> web.Response:
    unavailable = reply.outcome is WakeOutcome.UNAVAILABLE
    return _json(reply.outcome.code, reply, _RETRY_AFTER if unavailable else None)


def _json(code: int, body: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=code,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )
