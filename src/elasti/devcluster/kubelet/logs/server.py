"""The kubelet's own HTTPS server: what an API server asks of a node.

Callers show a certificate that the cluster's authority signed, and the API server itself says
whether that user may read logs of this node (a SubjectAccessReview), as for any kubelet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from elasti.devcluster.certificates import Authority
from elasti.devcluster.kubelet.logs.queries import LogError, read_options
from elasti.devcluster.kubelet.logs.streaming import stream
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.devcluster.kubelet.logs.service import LogSource
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_CLOSING = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where to listen, and whose callers to believe (PEM)."""

    client_ca: bytes
    port: int = 0


class KubeletServer:
    """Answers `/containerLogs/NAMESPACE/POD/CONTAINER` and `/healthz`."""

    def __init__(
        self, settings: ServerSettings, *, client: Client, node: str, logs: LogSource, clock: Clock
    ) -> None:
        self._settings = settings
        self._reviews = client.resource("authorization.k8s.io/v1/subjectaccessreviews")
        self._node = node
        self._logs = logs
        self._clock = clock

    @contextlib.asynccontextmanager
    async def listening(self, address: str) -> AsyncIterator[int]:
        """Serve during a block; gives the port."""
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._container_logs)
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSING
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, address, self._settings.port, ssl_context=self._tls(address))
            await site.start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    def _tls(self, address: str) -> ssl.SSLContext:
        # Nobody checks a kubelet's own certificate unless told to; it has an authority to itself.
        now = self._clock.now()
        pair = Authority.create(now=now, name=f"{self._node}-ca").issue_server([address], now=now)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self._settings.client_ca.decode())
        with tempfile.TemporaryDirectory() as directory:
            # OpenSSL reads keys from files only; these live no longer than the call.
            certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.touch(mode=0o600)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
        return context

    async def _container_logs(self, request: web.Request) -> web.StreamResponse:
        refusal = await self._refuse(request)
        if refusal is not None:
            return refusal
        where = request.match_info
        try:
            options = read_options(request.query, now=self._clock.now())
            pieces = self._logs.open(where["namespace"], where["pod"], where["container"], options)
        except LogError as error:
            return web.Response(text=str(error), status=error.code)
        return await stream(request, pieces)

    async def _refuse(self, request: web.Request) -> web.Response | None:
        """Ask whether the caller may read logs here; the response that says no."""
        user, groups = _identity(request)
        spec = {
            "user": user,
            "groups": groups,
            "resourceAttributes": {
                "verb": "get",
                "resource": "nodes",
                "subresource": "proxy",
                "name": self._node,
            },
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        try:
            answer = await self._reviews.create(review)
        except KubeError as error:
            return web.Response(text=f"Authorization error: {error}", status=500)
        if answer.get("status", {}).get("allowed"):
            return None
        text = f"Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[proxy])"
        return web.Response(text=text, status=403)


def _identity(request: web.Request) -> tuple[str, list[str]]:
    """Return the user and groups that the caller's certificate names."""
    transport = request.transport
    certificate: dict[str, Any] = {}
    if transport is not None:
        certificate = transport.get_extra_info("peercert") or {}
    parts = [pair for name in certificate.get("subject", ()) for pair in name]
    names = [value for key, value in parts if key == "commonName"]
    groups = [value for key, value in parts if key == "organizationName"]
    return (names[0] if names else "system:anonymous"), [*groups, "system:authenticated"]


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok")
