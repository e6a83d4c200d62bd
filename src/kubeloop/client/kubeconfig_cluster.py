"""A kubeconfig's cluster entry turned into an endpoint and into trust."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from kubeloop.client.certificates import PemSource
from kubeloop.client.endpoint import Endpoint
from kubeloop.client.errors import ConfigError
from kubeloop.client.exec_credential import CLUSTER_EXTENSION, ClusterInfo
from kubeloop.client.tls import TlsContexts

if TYPE_CHECKING:
    from kubeloop.client.kubeconfig import Cluster, Entry, Place


def endpoint_of(entry: Entry[Cluster]) -> Endpoint:
    """Return where the cluster's server is. Raises `ConfigError`."""
    cluster = entry.value
    if not cluster.server:
        raise entry.place.at("server").error(
            "is empty; give the API server's URL, for example https://10.0.0.1:6443"
        )
    try:
        endpoint = Endpoint.parse(cluster.server, server_name=cluster.tls_server_name)
    except ConfigError as error:
        raise entry.place.at("server").error(str(error)) from error
    try:
        return endpoint.through(cluster.proxy_url)
    except ConfigError as error:
        raise entry.place.at("proxy-url").error(str(error)) from error


def tls_of(entry: Entry[Cluster]) -> TlsContexts:
    """Return how the cluster's server is trusted. Raises `ConfigError`."""
    cluster = entry.value
    return TlsContexts(
        authority=pem_source(
            entry.place,
            "certificate-authority",
            data=cluster.certificate_authority_data,
            path=cluster.certificate_authority,
        ),
        insecure=cluster.insecure_skip_tls_verify,
    )


def cluster_info(entry: Entry[Cluster], tls: TlsContexts) -> ClusterInfo:
    """Return what a plugin with `provideClusterInfo` is told about the cluster."""
    cluster = entry.value
    extensions = {item.name: item.extension for item in cluster.extensions}
    return ClusterInfo(
        server=cluster.server,
        server_name=cluster.tls_server_name or None,
        insecure=cluster.insecure_skip_tls_verify,
        authority=tls.authority_pem(),
        proxy=cluster.proxy_url or None,
        config=extensions.get(CLUSTER_EXTENSION),
    )


def pem_source(place: Place, field: str, *, data: str, path: str) -> PemSource | None:
    """Return the source of a field that has a `-data` twin, which wins; None without either."""
    if data:
        inline = place.at(f"{field}-data")
        return PemSource(origin=str(inline), data=_decode(inline, data))
    if path:
        return PemSource(origin=str(place.at(field)), path=place.resolve(path))
    return None


def _decode(place: Place, text: str) -> bytes:
    try:
        # Line breaks are legal in YAML's block scalars and mean nothing.
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        remedy = "it is PEM itself: encode it (base64 -w0)" if "-----BEGIN" in text else str(error)
        raise place.error(f"is not base64; {remedy}") from error
