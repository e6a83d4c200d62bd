"""The elasti server: where resolvers ask for wake-ups. Every replica has one, leader or not.

| path | answer |
|---|---|
| `POST /informer/incoming-request` | what was done: 202, 404, or 503 with Retry-After |
| `GET /crd-cache` | the ElastiServices by Service, without headers' values |
| `GET /metrics`, `/healthz`, `/readyz` | for those who watch; open |

The first two need a token, which TLS protects on its way; the port answers in the clear, too.
Connections that say nothing, or too slowly, keep no wake-up out (`kubeloop.http.server`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from elasti.api.defaults import OPERATOR_PORT
from elasti.api.wire import (
    CRD_CACHE_PATH,
    INCOMING_PATH,
    IncomingReply,
    IncomingRequest,
    WakeOutcome,
)
from elasti.authn.authenticator import AccessDenied, CallerAuthenticator
from elasti.authn.tls import PeerTls
from elasti.logger import bound, get_logger
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.waking.requests import WakeRequests
from elasti.operator.watch.directory import Directory
from kubeloop.aio.tasks import TimeBudget
from kubeloop.http.health import HealthChecks, HealthServer
from kubeloop.http.server import ConnectionLimits, Handler, Request, Response
from kubeloop.metrics.text import CONTENT_TYPE

_LONGEST_CLIENT = 300
_log = get_logger(__name__)
_RETRY_AFTER = {"Retry-After": "1"}


class Server(HealthServer):
    """A runnable for `Group.SERVERS`; ready when it listens. Port 0 takes any free one.

    Without an `authenticator` every client may call.
    """

    def __init__(
        self,
        *,
        wake_requests: WakeRequests,
        directory: Directory,
        authenticator: CallerAuthenticator | None,
        metrics: OperatorMetrics,
        healthz: HealthChecks,
        readyz: HealthChecks,
        is_synced: Callable[[], bool],
        host: str | None = None,
        port: int = OPERATOR_PORT,
        limits: ConnectionLimits | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self._tls = tls or PeerTls()
        super().__init__(
            healthz=healthz,
            readyz=readyz,
            host=host,
            port=port,
            limits=limits,
            shutdown_timeout=5.0,
            optional_tls=self._tls.server_context,
        )
        self._wake_requests = wake_requests
        self._directory = directory
        self._authenticator = authenticator
        self._operator_metrics = metrics
        self._is_synced = is_synced

    async def run(self) -> None:
        """Serve until cancelled."""
        # Requests under way are answered before what they started is cancelled.
        async with self._wake_requests:
            await super().run()

    def routes(self) -> dict[str, Handler]:
        return super().routes() | {
            f"POST {INCOMING_PATH}": self._guarded(self._incoming),
            f"GET {CRD_CACHE_PATH}": self._guarded(self._crd_cache),
            "GET /metrics": self._serve_metrics,
        }

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if self._authenticator is not None:
                try:
                    self._tls.admit(is_secure=request.is_secure)
                    await self._authenticator.admit(request.header("authorization") or "")
                except AccessDenied as denied:
                    headers = _RETRY_AFTER if denied.status == 503 else None
                    return _json(denied.status, {"message": str(denied)}, headers)
            request.keep_place()
            return await handler(request)

        return guarded

    async def _incoming(self, request: Request) -> Response:
        try:
            message = msgspec.json.decode(request.body, type=IncomingRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _json(400, {"message": f"the body is not a valid wake request: {error}"})
        client = printable(message.client)[:_LONGEST_CLIENT]
        service = printable(f"{message.namespace}/{message.svc}")
        # An operator that shares one wake-up between several requests logs it under the first one's id.
        wake_id = printable(message.wake_id)
        with bound(service=service, wake_id=wake_id):
            reply = await self._wake_requests.wake(message.namespace, message.svc, client, wake_id)
            _log.info("wake request answered", outcome=reply.outcome.value, client=client)
        return _reply(reply)

    async def _crd_cache(self, _request: Request) -> Response:
        if not self._is_synced():
            return _json(503, {"message": "the operator is starting"}, _RETRY_AFTER)
        return _json(200, {"services": self._directory.shown()})

    async def _serve_metrics(self, _request: Request) -> Response:
        pieces, budget = [], TimeBudget()
        for piece in self._operator_metrics.pieces():
            pieces.append(piece)
            if budget.spent():
                await budget.rest()
        return Response(body="".join(pieces).encode(), content_type=CONTENT_TYPE)


def printable(text: str) -> str:
    """Return text without control characters: it goes to logs, events and terminals."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _reply(reply: IncomingReply) -> Response:
    unavailable = reply.outcome is WakeOutcome.UNAVAILABLE
    return _json(reply.outcome.code, reply, _RETRY_AFTER if unavailable else None)


def _json(code: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(code, msgspec.json.encode(body), "application/json", headers or {})
