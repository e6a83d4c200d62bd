"""Where a connection to a Service's port may go: pure, from its slices.

kube-proxy's rules: the ready endpoints of all of the Service's slices, each with its own slice's
port; where none is ready, those that are terminating but still serve; where there are none of either,
nothing, and the connection is refused. A dev cluster has addresses of one family, and one proxy for all
nodes: a client is not kept with an endpoint, nor with the endpoints of its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kubeloop.objects.core import EndpointSlice, Service, ServiceEndpoint, ServicePort


class Backend(NamedTuple):
    """An address that a connection may be sent to."""

    host: str
    port: int


class Frontend(NamedTuple):
    """An address that clients of a Service connect to."""

    host: str
    port: int


def frontends(service: Service) -> Iterator[tuple[Frontend, ServicePort]]:
    """Yield every address of a Service that listens; headless and external Services have none."""
    if service.spec.type != "ExternalName" and service.spec.cluster_ip not in {"", "None"}:
        for port in service.tcp_ports:
            yield Frontend(service.spec.cluster_ip, port.port), port


def backends(port: ServicePort, slices: Iterable[EndpointSlice]) -> list[Backend]:
    """Return where a connection to that port may go, in a stable order, without duplicates."""
    found = [
        (endpoint, Backend(endpoint.addresses[0], number))
        for endpoint_slice in slices
        if endpoint_slice.address_type == "IPv4"
        for number in _ports(endpoint_slice, port.name)
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.addresses
    ]
    ready = {backend for endpoint, backend in found if endpoint.conditions.ready is not False}
    if ready:
        return sorted(ready)
    return sorted({backend for endpoint, backend in found if _is_last_resort(endpoint)})


def _ports(endpoint_slice: EndpointSlice, name: str) -> list[int]:
    wanted = [port for port in endpoint_slice.ports or () if (port.name or "") == name]
    return [port.port for port in wanted if port.port and (port.protocol or "TCP") == "TCP"]


def _is_last_resort(endpoint: ServiceEndpoint) -> bool:
    """Whether it is going away but still serves."""
    return bool(endpoint.conditions.terminating and endpoint.conditions.serving)
