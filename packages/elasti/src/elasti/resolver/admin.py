"""The admin port: read-only.

    /metrics  /healthz  /readyz                     open, as probes and Prometheus need them
    /queue-status?namespace=&service=               1 while connections are held (KubeElasti's)
    /activity?namespace=&service=                   for the operator; needs its token
                                 &hold=1            and nothing more goes to the pods of now, for a while

Any client in the cluster may connect, so the server is hardened: it has a bounded part of the descriptors
that are left for ourselves, and connections that stay silent make room for others.

A failing /readyz takes the resolver out of rotation and never restarts it: /healthz only says that the
event loop still runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from elasti.api.wire import ACTIVITY_PATH
from elasti.authn.authenticator import AccessDenied, CallerAuthenticator
from elasti.resolver.projections import ServiceKey
from elasti.resolver.workers import WorkerUnreachable
from kubeloop.http.server import ConnectionLimits, HardenedServer
from kubeloop.metrics.text import CONTENT_TYPE

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from elasti.resolver.metrics import AdminView


# Probes, Prometheus and two operators take a few; `limits.py` leaves 96 for all that is not data.
CONNECTIONS = 32
_SHUTDOWN = 1.0


class AdminServer:
    """Serves a view. Without `callers` any client may ask for activity."""

    def __init__(self, view: AdminView, *, callers: CallerAuthenticator | None) -> None:
        self._view = view
        self._callers = callers
        self._http_server = HardenedServer(ConnectionLimits(connections=CONNECTIONS))
        self._local: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port that it listens on; known after the start."""
        return self._http_server.port

    async def start(self, *, host: str | None = None, port: int = 0, path: str = "") -> None:
        """Listen on a port, or on a Unix socket, which only our own process finds."""
        app = self._application()
        if not path:
            await self._http_server.open(app, host, port, shutdown_timeout=_SHUTDOWN)
            return
        self._local = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN)
        await self._local.setup()
        await web.UnixSite(self._local, path).start()

    async def aclose(self) -> None:
        """Stop."""
        await self._http_server.close()
        if self._local is not None:
            await self._local.cleanup()

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=1024, middlewares=[_report_unreachable_worker])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/queue-status", self._queue_status)
        app.router.add_get(ACTIVITY_PATH, self._activity)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        found = await self._view.readiness()
        return web.Response(text=found.text, status=200 if found.ok else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._view.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _queue_status(self, request: web.Request) -> web.Response:
        report = await self._view.activity(_key(request))
        return _json({"queueStatus": int(report is not None and report.held > 0)})

    async def _activity(self, request: web.Request) -> web.Response:
        if self._callers is not None:
            try:
                await self._callers.admit(request.headers.get("Authorization", ""))
            except AccessDenied as denied:
                return _json({"error": str(denied)}, status=denied.status)
        key, hold = _key(request), {"1": True, "0": False}.get(request.query.get("hold", ""))
        report = await self._view.activity(key, hold=hold)
        if report is None:
            return _json({"error": f"{key} has no ElastiService here"}, status=404)
        return _json(report)


@web.middleware
async def _report_unreachable_worker(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except WorkerUnreachable as error:
        return _json({"error": f"a worker does not answer: {error}"}, status=503)


def _key(request: web.Request) -> ServiceKey:
    namespace, service = request.query.get("namespace", ""), request.query.get("service", "")
    if not namespace or not service:
        raise web.HTTPBadRequest(text="name the Service: ?namespace=NAMESPACE&service=SERVICE")
    return ServiceKey(namespace, service)


def _json(content: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type="application/json"
    )
