"""The components' identities: a client certificate each, and a client that presents it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.auth.authorizer import NODE_PREFIX, NODES
from elasti.devcluster.auth.bootstrap import CONTROLLER_MANAGER, SERVICE_PROXY
from kubeloop.client.certificates import PemSource
from kubeloop.client.composed_credentials import ComposedCredentials, PemCertificate
from kubeloop.client.config import ClientConfig
from kubeloop.client.endpoint import Endpoint
from kubeloop.client.tls import TlsContexts
from kubeloop.client.tokens import FixedHeaders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.devcluster.apiserver.server import ApiServer


def controller_manager(server: ApiServer) -> ClientConfig:
    """Return the identity of the controllers."""
    return config(server, CONTROLLER_MANAGER)


def service_proxy(server: ApiServer) -> ClientConfig:
    """Return the identity of the service proxy."""
    return config(server, SERVICE_PROXY)


def node(server: ApiServer, name: str) -> ClientConfig:
    """Return the identity of a node's kubelet."""
    return config(server, f"{NODE_PREFIX}{name}", [NODES])


def config(server: ApiServer, user: str, groups: Sequence[str] = ()) -> ClientConfig:
    """Return how to be somebody at a server."""
    pair = server.client_certificate(user, groups)
    return ClientConfig(
        endpoint=Endpoint.parse(server.url),
        credentials=ComposedCredentials(
            headers=FixedHeaders({}),
            certificates=PemCertificate(
                certificate=PemSource(origin=user, data=pair.certificate),
                key=PemSource(origin=user, data=pair.key),
            ),
            tls=TlsContexts(authority=PemSource(origin="dev cluster", data=server.ca_pem)),
        ),
        source=f"dev cluster, as {user}",
    )
