"""Where pods are, from the private Service's slices. Pure.

A slice lists a pod's address as soon as it has one, ready or not: that is what lets a prober look at
a pod long before the kubelet says Ready. Terminating pods are left out altogether: they may still
pass every probe and are about to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from elasti.resolver.objects import PodName
from elasti.resolver.proxy.target import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.resolver.objects import Endpoint, SliceView


class PodEndpoint(NamedTuple):
    """One pod on one port: whether Kubernetes calls it ready, and its pod where known."""

    ready: bool
    pod: PodName | None


def endpoints_of(slices: Iterable[SliceView]) -> dict[str, dict[Address, PodEndpoint]]:
    """Return the pods by port name; an address that several slices list is ready if one says so.

    Ready must be said: silence is not taken for it.
    """
    by_port: dict[str, dict[Address, PodEndpoint]] = {}
    for piece in slices:
        for port in piece.ports or ():
            if not port.port or (port.protocol or "TCP") != "TCP":
                continue
            found = by_port.setdefault(port.name or "", {})
            for endpoint in piece.endpoints or ():
                _add(found, endpoint, port.port)
    return by_port


def _add(found: dict[Address, PodEndpoint], endpoint: Endpoint, port: int) -> None:
    if endpoint.conditions.terminating or not endpoint.addresses:
        return
    address = Address(endpoint.addresses[0], port)
    ready = endpoint.conditions.ready is True
    known = found.get(address)
    if known is None or (ready and not known.ready):
        found[address] = PodEndpoint(ready, _pod(endpoint))


def _pod(endpoint: Endpoint) -> PodName | None:
    reference = endpoint.target_ref
    if reference is None or reference.kind != "Pod":
        return None
    return PodName(reference.namespace, reference.name, reference.uid)
