"""Where a connection to a Service's port may go: pure, from its slices.

kube-proxy's rules: the ready endpoints of all of the Service's slices, each with its own slice's
port; where none is ready, those that are terminating but still serve; where there are none of either,
nothing, and the connection is refused.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kubeloop.objects.meta import LabeledMeta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Backend(NamedTuple):
    """An address that a connection may be sent to."""

    host: str
    port: int


class Frontend(NamedTuple):
    """An address that clients of a Service connect to."""

    host: str
    port: int


def frontends(service: ProxiedService) -> Iterator[tuple[Frontend, ProxiedServicePort]]:
    """Yield every address of a Service that listens; headless and external Services have none."""
    if service.spec.type == "ExternalName":
        return
    for address in service.spec.cluster_i_ps:
        if address in {"", "None"}:
            continue
        for port in service.spec.ports:
            if port.protocol == "TCP":
                yield Frontend(address, port.port), port


def backends(
    service: ProxiedService,
    port: ProxiedServicePort,
    slices: Iterable[ProxyEndpointSlice],
    *,
    family: int,
    node: str,
) -> list[Backend]:
    """Return where a connection to that port may go, in a stable order, without duplicates."""
    local = node if service.spec.internal_traffic_policy == "Local" else ""
    found = [
        (endpoint, Backend(endpoint.addresses[0], number))
        for endpoint_slice in slices
        if endpoint_slice.address_type == f"IPv{family}"
        for number in _ports(endpoint_slice, port.name)
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.addresses and _reachable(endpoint, local)
    ]
    ready = {backend: None for endpoint, backend in found if endpoint.conditions.is_ready}
    if ready:
        return sorted(ready)
    return sorted({backend for endpoint, backend in found if endpoint.conditions.is_last_resort})


def family_of(address: str) -> int:
    """Return 4 or 6."""
    return ipaddress.ip_address(address).version


def _ports(endpoint_slice: ProxyEndpointSlice, name: str) -> list[int]:
    wanted = [port for port in endpoint_slice.ports or () if (port.name or "") == name]
    return [port.port for port in wanted if port.port and (port.protocol or "TCP") == "TCP"]


def _reachable(endpoint: ProxyEndpoint, local: str) -> bool:
    return not local or endpoint.node_name == local


SERVICE_NAME_LABEL = "kubernetes.io/service-name"


class ProxiedServicePort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One port of a Service."""

    port: int
    name: str = ""
    protocol: str = "TCP"


class ClientIPConfig(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How long a client stays with its endpoint."""

    timeout_seconds: int = 10_800


class SessionAffinityConfig(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The settings of session affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ProxiedServiceSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a proxy reads of a Service's spec."""

    type: str = "ClusterIP"
    cluster_i_ps: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    ports: tuple[ProxiedServicePort, ...] = ()
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None
    internal_traffic_policy: str = "Cluster"


class ProxiedService(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Service."""

    metadata: LabeledMeta
    spec: ProxiedServiceSpec = ProxiedServiceSpec()


class ProxyEndpointConditions(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Whether an endpoint takes traffic; what is left out has the API's meaning."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def is_ready(self) -> bool:
        """Whether new connections should come here."""
        return self.ready is not False

    @property
    def is_last_resort(self) -> bool:
        """Whether it is going away but still serves."""
        return bool(self.terminating) and bool(self.serving)


class ProxyEndpoint(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One endpoint of a slice."""

    addresses: tuple[str, ...] = ()
    conditions: ProxyEndpointConditions = ProxyEndpointConditions()
    node_name: str | None = None


class ProxyEndpointPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One port of a slice; it holds for all its endpoints."""

    name: str | None = ""
    port: int | None = None
    protocol: str | None = "TCP"


class ProxyEndpointSlice(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An EndpointSlice."""

    metadata: LabeledMeta
    address_type: str = "IPv4"
    endpoints: tuple[ProxyEndpoint, ...] | None = None
    ports: tuple[ProxyEndpointPort, ...] | None = None

    @property
    def service_key(self) -> str:
        """`namespace/name` of the Service that the slice belongs to; empty where it has none."""
        name = (self.metadata.labels or {}).get(SERVICE_NAME_LABEL)
        return f"{self.metadata.namespace}/{name}" if name else ""
