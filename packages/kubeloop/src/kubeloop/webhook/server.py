"""The server that answers reviews: its certificates, and the configuration that leads to it.

Certificates come from a directory, or from a Secret that all replicas share. Whichever replica finds
that one of them must be renewed writes the Secret; a Conflict means that another replica did. Each pass
first makes the API server trust what the Secret names and only then lets `renewed` go on, which is why
a new authority is trusted before it signs. New handshakes get the newest certificate; connections stay.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from typing import TYPE_CHECKING, NamedTuple

from kubeloop.aio.clock import SystemClock
from kubeloop.client.auth.tls import ClientKeyPair, present_certificate
from kubeloop.client.errors import ConfigError, CredentialError, Forbidden, KubeError, NotFound
from kubeloop.http.server import HttpError, HttpServer
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, pointer
from kubeloop.webhook.certificate_secret import CertificateSecret, CertificateSet

if TYPE_CHECKING:
    from pathlib import Path

    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.client.resource import Resource
    from kubeloop.http.server import ConnectionLimits, Request, Response
    from kubeloop.webhook.admission import Admission

# Two objects as large as etcd takes them, and what is around them; controller-runtime's figure.
_MAX_BODY = 7 * 1024 * 1024
_PATHS = {
    "ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "MutatingWebhookConfiguration": "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
}

_log = logging.getLogger(__name__)


class _Served(NamedTuple):
    """What is presented, and what an API server must trust for it; empty: the system's authorities."""

    pair: ClientKeyPair
    authorities: bytes


class AdmissionServer:
    """A runnable for `Group.WEBHOOKS`, ready when it listens; it runs on every replica.

    Every `period` seconds it looks after certificates and configurations.
    """

    def __init__(
        self,
        admission: Admission,
        client: Client,
        *,
        period: float = 30.0,
        limits: ConnectionLimits | None = None,
        clock: Clock | None = None,
        metrics: LibraryMetrics | None = None,
    ) -> None:
        self._admission = admission
        self._client = client
        self._period = period
        self._clock = clock or SystemClock()
        self._metrics = metrics or LibraryMetrics()
        self._server = HttpServer(self._serve, limits, max_body=_MAX_BODY)
        self._served: _Served | None = None
        self._context: ssl.SSLContext | None = None
        self._listening = asyncio.Event()
        secrets = client.resource("v1/secrets", namespace=client.namespace)
        self._secrets: Resource[JsonObject] = secrets

    @property
    def port(self) -> int:
        """The port that it listens on; known when ready. Raises RuntimeError before."""
        return self._server.port

    async def wait_until_ready(self) -> None:
        """Wait until it listens."""
        await self._listening.wait()

    def check(self) -> None:
        """Raise unless it listens: a health check."""
        if not self._listening.is_set():
            raise RuntimeError("the webhooks do not listen yet")

    async def run(self) -> None:
        """Serve until cancelled. Raises `KubeError` if it cannot begin."""
        admission, front = self._admission, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        front.minimum_version = ssl.TLSVersion.TLSv1_2
        # A context cannot be changed under open connections: each handshake takes the newest.
        front.sni_callback = self._choose_context
        try:
            self._present(await self._find())
            await self._server.open(admission.host, admission.port, tls=front)
            self._listening.set()
            # Nothing is sent here before it listens.
            await self._publish(is_first=True)
            while True:
                await asyncio.sleep(self._period)
                await self._look_after()
        except Forbidden as error:
            error.add_note(
                "allow the webhook get, create and update on secrets, and get, create and patch on"
                " validatingwebhookconfigurations and mutatingwebhookconfigurations; or mount"
                " certificates (certificates=) and install the configurations yourself (install=False)"
            )
            raise
        finally:
            await self._server.close()

    async def _serve(self, request: Request) -> Response:
        clock, code = asyncio.get_running_loop().time, 500
        began = clock()
        try:
            response = await self._admission.serve(request)
            code = response.status
            return response
        except HttpError as error:
            code = error.status
            raise
        finally:
            # A path is a label: only those that the program gave, never what a client sent.
            if request.path in self._admission.paths:
                self._metrics.webhook(request.path).answered(code, clock() - began)

    async def _look_after(self) -> None:
        try:
            # What the Secret names now is trusted before anything is renewed.
            await self._publish()
            self._present(await self._find())
            await self._publish()
        except (KubeError, OSError) as error:
            _log.warning("webhook certificates or configurations were not updated: %s", error)

    def _choose_context(self, handshake: ssl.SSLObject, *_: object) -> None:
        assert self._context is not None
        handshake.context = self._context

    def _present(self, served: _Served) -> None:
        if self._served is None or served.pair != self._served.pair:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            present_certificate(context, served.pair)
            self._context = context
            _log.info("webhook certificate loaded from %s", served.pair.certificate_origin)
        self._served = served

    # Certificates

    async def _find(self) -> _Served:
        directory = self._admission.certificates
        return await self._from_secret() if directory is None else _mounted(directory)

    async def _from_secret(self) -> _Served:
        try:
            from kubeloop.webhook.certificates import renewed  # noqa: PLC0415 -- an extra
        except ImportError as error:
            raise ConfigError(
                "to make certificates, a webhook needs the package cryptography: install"
                " 'kubeloop[webhook]', or mount certificates and name their directory:"
                " Admission(certificates=...)"
            ) from error
        hosts = self._admission.hosts(self._client.namespace)

        async def renew(found: CertificateSet | None) -> CertificateSet:
            return renewed(found, hosts, self._clock.now(), self._admission.lifetimes)

        name = f"{self._admission.name}-webhook"
        wanted = await CertificateSecret(self._secrets, name, renew).current()
        origin = f"Secret {self._client.namespace}/{name}"
        pair = ClientKeyPair(
            certificate=wanted.certificate,
            key=wanted.key,
            certificate_origin=origin,
            key_origin=origin,
        )
        return _Served(pair, wanted.authorities)

    # Configurations

    async def _publish(self, *, is_first: bool = False) -> None:
        """Install the configurations at the start; later, only see that they name our authorities.

        Replicas of two versions would otherwise write over each other's webhooks during an upgrade.
        """
        assert self._served is not None
        admission, trusted = self._admission, self._served.authorities
        for wanted in admission.configurations(self._client.namespace, trusted):
            resource = self._client.resource(_PATHS[wanted["kind"]])
            try:
                found = await resource.get(admission.name)
            except NotFound:
                found = None
            if found is None and not wanted["webhooks"]:
                continue
            if admission.install and (is_first or found is None):
                try:
                    await resource.apply(wanted, field_manager=admission.name, force=True)
                except NotFound as error:
                    raise ConfigError(
                        f"the server has no {wanted['kind']}s: it cannot call webhooks. Give the"
                        " Admission install=False to run it here all the same"
                    ) from error
            elif found is None:
                _log.warning("%s %s does not exist", wanted["kind"], admission.name)
            elif trusted:
                await self._inject(resource, found, wanted)

    async def _inject(
        self, resource: Resource[JsonObject], found: JsonObject, wanted: JsonObject
    ) -> None:
        operations: list[JsonObject] = []
        bundle = base64.b64encode(self._served.authorities).decode() if self._served else ""
        ours = {_way(one) for one in wanted["webhooks"]}
        for number, one in enumerate(found.get("webhooks") or ()):
            if _way(one) in ours and one["clientConfig"].get("caBundle") != bundle:
                entry = ("webhooks", number)
                operations += [
                    {"op": "test", "path": pointer(*entry, "name"), "value": one["name"]},
                    {
                        "op": "add",
                        "path": pointer(*entry, "clientConfig", "caBundle"),
                        "value": bundle,
                    },
                ]
        if operations:
            name = self._admission.name
            await resource.patch(name, JsonPatch(operations), field_manager=name)
            _log.info("certificate authority written to %s %s", wanted["kind"], name)


def _way(webhook: JsonObject) -> tuple[str, ...]:
    """Return where a webhook's requests go."""
    reached = webhook.get("clientConfig") or {}
    service = reached.get("service") or {}
    return (
        reached.get("url", ""),
        *(service.get(key, "") for key in ("namespace", "name", "path")),
    )


def _mounted(directory: Path) -> _Served:
    """Read certificates from files. Raises `CredentialError`."""
    certificate, key, authorities = (directory / n for n in ("tls.crt", "tls.key", "ca.crt"))
    try:
        pair = ClientKeyPair(
            certificate=certificate.read_bytes(),
            key=key.read_bytes(),
            certificate_origin=str(certificate),
            key_origin=str(key),
        )
        return _Served(pair, authorities.read_bytes() if authorities.exists() else b"")
    except OSError as error:
        raise CredentialError(
            f"{error.filename}: {error.strerror}; mount a Secret with tls.crt and tls.key at {directory}"
        ) from error
