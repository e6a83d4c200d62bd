"""The elasti server: where resolvers ask for wake-ups. Every replica has one, leader or not.

| path | answer |
|---|---|
| `POST /informer/incoming-request` | what was done: 202, 404, or 503 with Retry-After |
| `GET /crd-cache` | the ElastiServices by Service, without headers' values |
| `GET /metrics`, `/healthz`, `/readyz` | for those who watch; open |

Connections that say nothing, or too slowly, keep no wake-up out (`kubeloop.http.server`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
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
from kubeloop.http.health import HealthChecks, HealthServer
from kubeloop.metrics.text import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.wake import TargetWaker
    from elasti.operator.watch.directory import Directory
    from kubeloop.http.server import ConnectionLimits

_LONGEST_CLIENT = 300
_RETRY_AFTER = {"Retry-After": "1"}


class Server(HealthServer):
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
        super().__init__(
            healthz=healthz,
            readyz=readyz,
            host=host,
            port=port,
            limits=limits,
            shutdown_timeout=5.0,
        )
        self._waker = waker
        self._directory = directory
        self._authenticator = authenticator
        self._operator_metrics = metrics
        self._is_synced = is_synced

    async def run(self) -> None:
        """Serve until cancelled."""
        # Requests under way are answered before what they started is cancelled.
        async with self._waker:
            await super().run()

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_post(INCOMING_PATH, self._guarded(self._incoming))
        app.router.add_get(CRD_CACHE_PATH, self._guarded(self._crd_cache))
        app.router.add_get("/metrics", self._serve_metrics)
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
        client = printable(message.client)[:_LONGEST_CLIENT]
        reply = await self._waker.wake(message.namespace, message.svc, client)
        return _reply(reply)

    async def _crd_cache(self, _request: web.Request) -> web.Response:
        if not self._is_synced():
            return _json(503, {"message": "the operator is starting"}, _RETRY_AFTER)
        return _json(200, {"services": self._directory.shown()})

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        pieces, budget = [], TimeBudget()
        for piece in self._operator_metrics.pieces():
            pieces.append(piece)
            if budget.spent():
                await budget.rest()
        body = "".join(pieces).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def printable(text: str) -> str:
    """Return text without control characters: it goes to logs, events and terminals."""
    return "".join(char if char.isprintable() else "?" for char in text)


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
