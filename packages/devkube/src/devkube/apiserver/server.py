"""The API server as a thing to start: TLS, certificates, a port, an administrator.

async with ApiServer(port=0) as server:
    server.url, server.ca_pem, server.admin_kubeconfig()

An empty store is given what every cluster has: its namespaces, and the Service of the API server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import yaml
from aiohttp import web

from devkube.apiserver.auth import ADMIN_GROUP, AdminAuthorizer, CertificateAuthenticator
from devkube.apiserver.core import Core
from devkube.apiserver.database import Database
from devkube.apiserver.http import RequestHandler, make_request
from devkube.apiserver.storage import HistoryWindow, ObjectStore
from devkube.apiserver.validation.names import Stamps
from devkube.certificates import CertificateAuthority, PemKeyPair
from devkube.kubeconfig import ClusterAccess
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.client.auth.credentials import ComposedCredentials, FixedHeaders, PemCertificate
from kubeloop.client.auth.tls import PemSource, TlsContexts
from kubeloop.client.config.client_config import ClientConfig
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.names import url_host

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_PORT = 443
CONTEXT = "devkube"


def server_names(service_network: str) -> list[str]:
    """Return the names and the address under which pods find the API server."""
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    return [*names, "kubernetes.default.svc.cluster.local", service_address(service_network)]


def service_address(service_network: str) -> str:
    """Return the API server's own Service address: the first of the range."""
    return str(ipaddress.ip_network(service_network)[1])


def populate(
    store: ObjectStore, stamps: Stamps, *, host: str, port: int, service_network: str
) -> None:
    """Make what is missing, and let the Service's endpoints be where the server listens now."""
    for name in _NAMESPACES:
        if store.collection("/namespaces").get(name) is None:
            store.put(store.collection("/namespaces"), name, _namespace(stamps, name))
    services = store.collection("/services")
    if services.get("default/kubernetes") is None:
        address = service_address(service_network)
        fields = {"spec.clusterIP": address, "spec.type": "ClusterIP"}
        store.put(services, "default/kubernetes", _service(stamps, address), fields=fields)
    slices = store.collection("discovery.k8s.io/endpointslices")
    store.put(slices, "default/kubernetes", _slice(stamps, host, port))


def _metadata(stamps: Stamps, name: str, namespace: str = "", **labels: str) -> JsonObject:
    metadata: JsonObject = {
        "name": name,
        "uid": stamps.uid(),
        "creationTimestamp": stamps.now(),
        "labels": labels,
    }
    return {**metadata, "namespace": namespace} if namespace else metadata


def _namespace(stamps: Stamps, name: str) -> JsonObject:
    metadata = _metadata(stamps, name, **{"kubernetes.io/metadata.name": name})
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": metadata,
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _service(stamps: Stamps, address: str) -> JsonObject:
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(stamps, "kubernetes", "default", **labels),
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv6" if ":" in address else "IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": _PORT, "protocol": "TCP", "targetPort": _PORT}],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    }


def _slice(stamps: Stamps, host: str, port: int) -> JsonObject:
    labels = {"kubernetes.io/service-name": "kubernetes"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _metadata(stamps, "kubernetes", "default", **labels) | {"generation": 1},
        "addressType": "IPv6" if ":" in host else "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


class ApiServer:
    """An embedded Kubernetes API server. Running between `__aenter__` and `__aexit__`."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Sequence[str] = ("localhost",),
        data_dir: Path | None = None,
        authority: CertificateAuthority | None = None,
        clock: Clock | None = None,
        window: HistoryWindow | None = None,
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
            store=ObjectStore(window=window),
            clock=self._clock,
            authenticators=[CertificateAuthenticator()],
            authorizers=[AdminAuthorizer()],
            service_network=service_network,
        )
        self._resources = contextlib.AsyncExitStack()

    def _own_authority(self) -> CertificateAuthority:
        now = self._clock.now()
        if self._data_dir is None:
            return CertificateAuthority.create(now=now)
        return CertificateAuthority.kept_in(self._data_dir, now=now)

    @property
    def url(self) -> str:
        """Where the server listens."""
        host = url_host(self.host)
        return f"https://{host}:{self.port}"

    @property
    def ca_pem(self) -> bytes:
        """The certificate that clients must trust."""
        return self.authority.pem

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._data_dir is not None:
                database = Database(self._data_dir)
                database.recover(self.core.store)
                await stack.enter_async_context(database)
                self.core.definitions.restore()
            runner = web.ServerRunner(
                web.Server(
                    RequestHandler(self.core).handle,
                    request_factory=make_request,
                    handler_cancellation=True,
                    access_log=None,
                ),
                shutdown_timeout=1.0,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            hosts = [self.host, *self._hosts, *server_names(self._service_network)]
            site = web.TCPSite(runner, self.host, self.port, ssl_context=self.server_tls(hosts))
            await site.start()
            (address, *_) = runner.addresses
            self.port = int(address[1])
            populate(
                self.core.store,
                self.core.stamps,
                host=self.host,
                port=self.port,
                service_network=self._service_network,
            )
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.core.faults.clear()
        self.core.faults.drop_watches()
        await self._resources.aclose()

    def client_certificate(self, user: str, groups: Sequence[str] = ()) -> PemKeyPair:
        """Issue a client certificate."""
        return self.authority.issue_client(user, groups, now=self._clock.now())

    def client_config(self, user: str, groups: Sequence[str] = ()) -> ClientConfig:
        """Return the configuration of a client with a certificate of its own."""
        pair = self.client_certificate(user, groups)
        return ClientConfig(
            endpoint=Endpoint.parse(self.url),
            credentials=ComposedCredentials(
                headers=FixedHeaders({}),
                certificates=PemCertificate(
                    certificate=PemSource(origin=user, data=pair.certificate),
                    key=PemSource(origin=user, data=pair.key),
                ),
                tls=TlsContexts(authority=PemSource(origin="dev cluster", data=self.ca_pem)),
            ),
            source=f"dev cluster, as {user}",
        )

    def access(
        self, user: str = "dev-admin", groups: Sequence[str] = (ADMIN_GROUP,)
    ) -> ClusterAccess:
        """Return what a kubeconfig needs, for an administrator or any other user."""
        identity = self.client_certificate(user, groups)
        return ClusterAccess(
            name=CONTEXT, server=self.url, authority=self.ca_pem, identity=identity
        )

    def admin_kubeconfig(self, user: str = "dev-admin") -> str:
        """Return a kubeconfig (YAML) whose user may do everything."""
        return yaml.safe_dump(self.access(user).document())

    def server_tls(self, hosts: Sequence[str]) -> ssl.SSLContext:
        """Return the context of a server with a certificate of the cluster's CA."""
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
