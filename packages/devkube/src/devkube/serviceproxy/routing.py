"""Where a connection to a Service's port may go: pure, from its slices.

kube-proxy's rules: the ready endpoints of all of the Service's slices, each with its own slice's
port; where none is ready, those that are terminating but still serve; where there are none of either,
nothing, and the connection is refused.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kubeloop.objects.core import Service, ServiceSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kubeloop.objects.core import EndpointSlice, ServiceEndpoint, ServicePort


class Backend(NamedTuple):
    """An address that a connection may be sent to."""

    host: str
    port: int


class Frontend(NamedTuple):
    """An address that clients of a Service connect to."""

    host: str
    port: int


def frontends(service: ProxiedService) -> Iterator[tuple[Frontend, ServicePort]]:
    """Yield every address of a Service that listens; headless and external Services have none."""
    if service.spec.type == "ExternalName":
        return
    for address in service.spec.cluster_ips:
        if address in {"", "None"}:
            continue
        for port in service.tcp_ports:
            yield Frontend(address, port.port), port


def backends(
    service: ProxiedService,
    port: ServicePort,
    slices: Iterable[EndpointSlice],
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
    ready = {backend: None for endpoint, backend in found if endpoint.conditions.ready is not False}
    if ready:
        return sorted(ready)
    return sorted({backend for endpoint, backend in found if _is_last_resort(endpoint)})


def family_of(address: str) -> int:
    """Return 4 or 6."""
    return ipaddress.ip_address(address).version


def _ports(endpoint_slice: EndpointSlice, name: str) -> list[int]:
    wanted = [port for port in endpoint_slice.ports or () if (port.name or "") == name]
    return [port.port for port in wanted if port.port and (port.protocol or "TCP") == "TCP"]


def _is_last_resort(endpoint: ServiceEndpoint) -> bool:
    """Whether it is going away but still serves."""
    return bool(endpoint.conditions.terminating and endpoint.conditions.serving)


def _reachable(endpoint: ServiceEndpoint, local: str) -> bool:
    return not local or endpoint.node_name == local


class ClientIPConfig(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How long a client stays with its endpoint."""

    timeout_seconds: int = 10_800


class SessionAffinityConfig(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The settings of session affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ProxiedServiceSpec(ServiceSpec, rename="camel", frozen=True, gc=False):
    """What a proxy reads of a Service's spec."""

    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None


class ProxiedService(Service, rename="camel", frozen=True, gc=False):
    """A Service with all its addresses."""

    spec: ProxiedServiceSpec = ProxiedServiceSpec()
