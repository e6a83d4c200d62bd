"""The API server as a thing to start: TLS, certificates, a port, an administrator.

async with ApiServer(port=0) as server:
    server.url, server.ca_pem, server.admin_kubeconfig()
"""

from __future__ import annotations

import base64
import contextlib
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import yaml
from aiohttp import web

from elasti.devcluster.apiserver.auth import (
    ADMIN_GROUP,
    AdminAuthorizer,
    CertificateAuthenticator,
    TokenAuthenticator,
)
from elasti.devcluster.apiserver.bootstrap import populate, server_names
from elasti.devcluster.apiserver.core import Core
from elasti.devcluster.apiserver.http import Handler, make_request
from elasti.devcluster.apiserver.journal import Journal
from elasti.devcluster.apiserver.storage import Store
from elasti.devcluster.certificates import Authority, KeyPair
from kubeloop.aio.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.eventlog import Window
    from kubeloop.aio.clock import Clock
    from kubeloop.objects.meta import JsonObject


class ApiServer:
    """An embedded Kubernetes API server. Running between `__aenter__` and `__aexit__`."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Sequence[str] = ("localhost",),
        data_dir: Path | None = None,
        authority: Authority | None = None,
        tokens: Mapping[str, User] | None = None,
        clock: Clock | None = None,
        window: Window | None = None,
        service_network: str = "127.96.0.0/16",
    ) -> None:
        self.host = host
        self.port = port
        self._hosts = hosts
        self._data_dir = data_dir
        self._service_network = service_network
        self._clock = clock or SystemClock()
        self.authority = authority or self._own_authority()
        self.core = Core(
            store=Store(window=window),
            clock=self._clock,
            authenticators=[CertificateAuthenticator(), TokenAuthenticator(tokens or {})],
            authorizers=[AdminAuthorizer()],
            service_network=service_network,
        )
        self._resources = contextlib.AsyncExitStack()

    def _own_authority(self) -> Authority:
        now = self._clock.now()
        if self._data_dir is None:
            return Authority.create(now=now)
        return Authority.kept_in(self._data_dir, now=now)

    @property
    def url(self) -> str:
        """Where the server listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"

    @property
    def ca_pem(self) -> bytes:
        """The certificate that clients must trust."""
        return self.authority.pem

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._data_dir is not None:
                journal = Journal(self._data_dir)
                journal.recover(self.core.store)
                await stack.enter_async_context(journal)
                self.core.definitions.restore()
            runner = web.ServerRunner(
                web.Server(
                    Handler(self.core).handle,
                    request_factory=make_request,
                    handler_cancellation=True,
                    access_log=None,
                ),
                shutdown_timeout=1.0,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, self.host, self.port, ssl_context=self._tls())
            await site.start()
            self.port = _bound_port(runner)
            populate(
                self.core.store,
                self.core.stamps,
                host=self.host,
                port=self.port,
                service_network=self._service_network,
            )
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.core.faults.clear()
        self.core.faults.drop_watches()
        await self._resources.aclose()

    def client_certificate(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issue a client certificate."""
        return self.authority.issue_client(user, groups, now=self._clock.now())

    def admin_kubeconfig(self) -> str:
        """Return a kubeconfig (YAML) whose user may do everything."""
        pair = self.client_certificate("dev-admin", [ADMIN_GROUP])
        return self.kubeconfig(
            {
                "client-certificate-data": _text(pair.certificate),
                "client-key-data": _text(pair.key),
            }
        )

    def kubeconfig(self, user: JsonObject, *, name: str = "elasti-dev") -> str:
        """Return a kubeconfig (YAML) for a user's credentials."""
        cluster = {"server": self.url, "certificate-authority-data": _text(self.ca_pem)}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": cluster}],
                "users": [{"name": name, "user": user}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            }
        )

    def _tls(self) -> ssl.SSLContext:
        hosts = [self.host, *self._hosts, *server_names(self._service_network)]
        pair = self.authority.issue_server(hosts, now=self._clock.now())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.ca_pem.decode())
        with tempfile.TemporaryDirectory() as directory:
            # OpenSSL reads keys from files only; these live no longer than the call.
            certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.touch(mode=0o600)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
        return context


def _bound_port(runner: web.ServerRunner) -> int:
    (address, *_) = runner.addresses
    return int(address[1])


def _text(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
