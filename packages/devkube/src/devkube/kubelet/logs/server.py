"""Logs over HTTP: the kubelet's own HTTPS server, and `pods/log` of the embedded API server.

Clients of the kubelet show a certificate that the cluster's authority signed, and the API server itself
says whether that user may read logs of this node (a SubjectAccessReview), as for any kubelet. `pods/log`
finds out which container is meant, and which node has its log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from devkube.certificates import CertificateAuthority
from devkube.kubelet.logs.reading import LogError, read_log_options
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from devkube.kubelet.logs.reading import LogSource
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject


async def stream_log(request: web.BaseRequest, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log as it comes; ends with it, or when the reader goes."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with contextlib.aclosing(pieces) as opened:  # type: ignore[type-var]  # generators, all of them
        async for piece in opened:
            if piece:
                await response.write(piece)
    await response.write_eof()
    return response


_CLOSING = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KubeletServerSettings:
    """Where to listen, and whose callers to believe (PEM)."""

    client_ca: bytes
    port: int = 0


class KubeletServer:
    """Answers `/containerLogs/NAMESPACE/POD/CONTAINER` and `/healthz`."""

    def __init__(
        self,
        settings: KubeletServerSettings,
        *,
        client: Client,
        node: str,
        logs: LogSource,
        clock: Clock,
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
        pair = CertificateAuthority.create(now=now, name=f"{self._node}-ca").issue_server(
            [address], now=now
        )
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
            options = read_log_options(request.query, now=self._clock.now())
            pieces = self._logs.open(where["namespace"], where["pod"], where["container"], options)
        except LogError as error:
            return web.Response(text=str(error), status=error.code)
        return await stream_log(request, pieces)

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


_REASONS = {400: "BadRequest", 404: "NotFound"}


class LogCall(Protocol):
    """A request for a pod's log, as the API server hands it on."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""

    @property
    def name(self) -> str:
        """The pod's name."""

    @property
    def query(self) -> Mapping[str, str]:
        """The request's parameters."""


class PodLogs:
    """Answers requests for logs: `core.streams["pods", "log"] = PodLogs(...).answer`."""

    def __init__(
        self,
        *,
        find_pod: Callable[[str, str], JsonObject | None],
        node: Callable[[str], LogSource | None],
        clock: Clock,
    ) -> None:
        self._find_pod = find_pod
        self._node = node
        self._clock = clock

    async def answer(self, call: LogCall, request: web.BaseRequest) -> web.StreamResponse:
        """Send the log, or a Status that says why not."""
        try:
            pieces = self._open(call)
        except LogError as error:
            return _refusal(error)
        if pieces is None:
            return web.Response(body=b"", content_type="text/plain")
        return await stream_log(request, pieces)

    def _open(self, call: LogCall) -> AsyncIterator[bytes] | None:
        """Return the log; None for a pod that has no node yet. Raises LogError."""
        options = read_log_options(call.query, now=self._clock.now())
        pod = self._find_pod(call.namespace, call.name)
        if pod is None:
            raise LogError(f'pods "{call.name}" not found', code=404)
        container = choose_container(pod, call.query.get("container", ""))
        source = self._node((pod.get("spec") or {}).get("nodeName", ""))
        if source is None:
            return None
        return source.open(call.namespace, call.name, container, options)


def choose_container(pod: JsonObject, wanted: str) -> str:
    """Return the container that is meant. Raises LogError."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    names = [c["name"] for c in spec.get("containers") or ()]
    init = [c["name"] for c in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in (*names, *init):
            raise LogError(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(names) == 1:
        return str(names[0])
    choice = f"choose one of: [{' '.join(names)}]"
    if init:
        choice += f" or one of the init containers: [{' '.join(init)}]"
    raise LogError(f"a container name must be specified for pod {name}, {choice}")


def _refusal(error: LogError) -> web.Response:
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": _REASONS.get(error.code, "InternalError"),
        "code": error.code,
    }
    return web.json_response(document, status=error.code)
