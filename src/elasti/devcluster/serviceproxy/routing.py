"""Where a connection to a Service's port may go: pure, from its slices.

kube-proxy's rules: the ready endpoints of all of the Service's slices, each with its own slice's
port; where none is ready, those that are terminating but still serve; where there are none of either,
nothing, and the connection is refused.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elasti.devcluster.serviceproxy.objects import (
        Endpoint,
        EndpointSlice,
        Service,
        ServicePort,
    )


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
    if service.spec.type == "ExternalName":
        return
    for address in service.spec.cluster_i_ps:
        if address in {"", "None"}:
            continue
        for port in service.spec.ports:
            if port.protocol == "TCP":
                yield Frontend(address, port.port), port


def backends(
    service: Service, port: ServicePort, slices: Iterable[EndpointSlice], *, family: int, node: str
) -> list[Backend]:
    """Return where a connection to that port may go, in a stable order, without duplicates."""
    local = node if service.spec.internal_traffic_policy == "Local" else ""
    found = [
        (endpoint, Backend(endpoint.addresses[0], number))
        for piece in slices
        if piece.address_type == f"IPv{family}"
        for number in _ports(piece, port.name)
        for endpoint in piece.endpoints or ()
        if endpoint.addresses and _reachable(endpoint, local)
    ]
    ready = {backend: None for endpoint, backend in found if endpoint.conditions.is_ready}
    if ready:
        return sorted(ready)
    return sorted({backend for endpoint, backend in found if endpoint.conditions.is_last_resort})


def family_of(address: str) -> int:
    """Return 4 or 6."""
    return ipaddress.ip_address(address).version


def _ports(piece: EndpointSlice, name: str) -> list[int]:
    wanted = [port for port in piece.ports or () if (port.name or "") == name]
    return [port.port for port in wanted if port.port and (port.protocol or "TCP") == "TCP"]


def _reachable(endpoint: Endpoint, local: str) -> bool:
    return not local or endpoint.node_name == local
