"""The admin port: read-only.

    /metrics  /healthz  /readyz                     open, as probes and Prometheus need them
    /queue-status?namespace=&service=               1 while connections are held (KubeElasti's)
    /activity?namespace=&service=                   for the operator; needs its token, and TLS if that is required
                                 &hold=1            also sends nothing to the present pods, for a while

Any client in the cluster may connect, so the server is hardened: it may use a bounded number of the descriptors
that are reserved for the resolver itself, and silent connections make room for new ones.

A failing /readyz takes the resolver out of rotation but never restarts it: /healthz only shows that the event
loop runs.
"""

from __future__ import annotations

import msgspec

from elasti.api.wire import ACTIVITY_PATH
from elasti.authn.authenticator import AccessDenied, CallerAuthenticator
from elasti.authn.tls import PeerTls
from elasti.resolver.metrics import AdminView
from elasti.resolver.projections import ServiceKey
from elasti.resolver.workers import WorkerUnreachable
from kubeloop.http.server import ConnectionLimits, HttpError, HttpServer, Request, Response, Router
from kubeloop.metrics.text import CONTENT_TYPE

# Probes, Prometheus and two operators need a few; `limits.py` reserves 96 for everything but data.
CONNECTIONS = 32
_SHUTDOWN = 1.0


class AdminServer:
    """Serves an `AdminView`. Without `callers`, any client may read activity."""

    def __init__(
        self, view: AdminView, *, callers: CallerAuthenticator | None, tls: PeerTls | None = None
    ) -> None:
        self._tls = tls or PeerTls()
        self._view = view
        self._callers = callers
        routes = Router(
            {
                "GET /metrics": self._metrics,
                "GET /healthz": self._healthz,
                "GET /readyz": self._readyz,
                "GET /queue-status": self._queue_status,
                f"GET {ACTIVITY_PATH}": self._activity,
            },
            yields=True,
        )

        async def answer(request: Request) -> Response:
            try:
                return await routes(request)
            except WorkerUnreachable as error:
                return _json({"error": f"worker unreachable: {error}"}, status=503)

        limits = ConnectionLimits(connections=CONNECTIONS)
        self._http_server = HttpServer(answer, limits, max_body=1024, shutdown_timeout=_SHUTDOWN)

    @property
    def port(self) -> int:
        """The port it listens on; known once started."""
        return self._http_server.port

    async def start(self, *, host: str | None = None, port: int = 0, path: str = "") -> None:
        """Listen on a port, or on a Unix socket for the supervisor."""
        await self._http_server.open(host, port, path=path, optional_tls=self._tls.server_context)

    async def aclose(self) -> None:
        """Stop."""
        await self._http_server.close()

    async def _healthz(self, _: Request) -> Response:
        return Response(body=b"ok")

    async def _readyz(self, _: Request) -> Response:
        found = await self._view.readiness()
        return Response(200 if found.ok else 503, found.text.encode())

    async def _metrics(self, _: Request) -> Response:
        return Response(body=await self._view.metrics(), content_type=CONTENT_TYPE)

    async def _queue_status(self, request: Request) -> Response:
        report = await self._view.activity(_key(request))
        return _json({"queueStatus": int(report is not None and report.held > 0)})

    async def _activity(self, request: Request) -> Response:
        if self._callers is not None:
            try:
                self._tls.admit(is_secure=request.is_secure)
                await self._callers.admit(request.header("authorization") or "")
            except AccessDenied as denied:
                return _json({"error": str(denied)}, status=denied.status)
        request.keep_place()
        key, hold = _key(request), {"1": True, "0": False}.get(request.parameter("hold"))
        report = await self._view.activity(key, hold=hold)
        if report is None:
            return _json({"error": f"{key} has no ElastiService here"}, status=404)
        return _json(report)


def _key(request: Request) -> ServiceKey:
    namespace, service = request.parameter("namespace"), request.parameter("service")
    if not namespace or not service:
        raise HttpError(400, "add ?namespace=NAMESPACE&service=SERVICE")
    return ServiceKey(namespace, service)


def _json(content: object, *, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(content), "application/json")
