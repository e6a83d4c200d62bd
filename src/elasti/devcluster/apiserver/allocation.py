"""Addresses and node ports of Services, handed out as they are written.

What is taken is read off the stored Services each time: one truth, nothing to repair after a crash.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.admission import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.admission import Review
    from elasti.devcluster.apiserver.storage import Store
    from kubeloop.objects.meta import JsonObject

_SERVICES = "/services"
_NODE_PORTS = range(30000, 32768)
_WITH_NODE_PORTS = ("NodePort", "LoadBalancer")


class ServiceAddresses:
    """Gives Services their cluster addresses and node ports."""

    def __init__(self, store: Store, *, network: str) -> None:
        self._store = store
        self._network = ipaddress.ip_network(network)
        self._next = 1

    def admit(self, review: Review) -> None:
        """Fill in what a Service leaves to the server."""
        if review.resource.stored_in != _SERVICES or review.subresource == "status":
            return
        if review.operation is Operation.DELETE:
            return
        spec = review.obj.setdefault("spec", {})
        if not isinstance(spec, dict) or spec.get("type") == "ExternalName":
            return
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        self._address(review, spec)
        if spec.get("type") in _WITH_NODE_PORTS:
            self._node_ports(review, spec)

    def _address(self, review: Review, spec: JsonObject) -> None:
        old = (review.old or {}).get("spec") or {}
        if old.get("clusterIP"):
            return
        wanted = spec.get("clusterIP") or ""
        if wanted == "None":
            spec["clusterIPs"] = ["None"]
            spec.setdefault("ipFamilies", ["IPv4"])
            return
        taken = set(self._taken())
        if wanted:
            self._claim(review, wanted, taken)
        else:
            wanted = self._free(taken)
        spec["clusterIP"] = wanted
        spec["clusterIPs"] = [wanted]
        spec.setdefault("ipFamilies", ["IPv6" if ":" in wanted else "IPv4"])

    def _claim(self, review: Review, wanted: str, taken: set[str]) -> None:
        name = review.obj["metadata"].get("name", "")
        try:
            inside = ipaddress.ip_address(wanted) in self._network
        except ValueError:
            return  # validation says what an address looks like
        why = ""
        if not inside:
            why = (
                f"failed to allocate IP {wanted}: the provided network does not match the current"
                f" range {self._network}"
            )
        elif wanted in taken:
            why = f"failed to allocate IP {wanted}: provided IP is already allocated"
        if why:
            error = status.invalid("spec.clusterIPs", [wanted], why)
            raise review.resource.invalid(name, [error])

    def _taken(self) -> Iterator[str]:
        for record in self._store.collection(_SERVICES).scan():
            address = record.fields.get("spec.clusterIP")
            if address:
                yield address

    def _free(self, taken: set[str]) -> str:
        size = self._network.num_addresses
        for step in range(size):
            index = (self._next + step) % size
            address = str(self._network[index])
            if 0 < index < size - 1 and address not in taken:
                self._next = index + 1
                return address
        raise status.failure(500, "InternalError", "failed to allocate a serviceIP: range is full")

    def _node_ports(self, review: Review, spec: JsonObject) -> None:
        if spec.get("allocateLoadBalancerNodePorts") is False:
            return
        old = (review.old or {}).get("spec") or {}
        mine = {port.get("nodePort") for port in old.get("ports") or []}
        taken = self._taken_ports() - mine
        known = {
            (p.get("port"), p.get("protocol", "TCP")): p.get("nodePort")
            for p in old.get("ports") or []
        }
        for index, port in enumerate(spec.get("ports") or []):
            wanted = port.get("nodePort") or known.get(
                (port.get("port"), port.get("protocol", "TCP"))
            )
            if wanted and (why := _unusable(wanted, taken)):
                error = status.invalid(f"spec.ports[{index}].nodePort", wanted, why)
                raise review.resource.invalid(review.obj["metadata"].get("name", ""), [error])
            port["nodePort"] = wanted or next(free for free in _NODE_PORTS if free not in taken)
            taken.add(port["nodePort"])

    def _taken_ports(self) -> set[int]:
        taken = set()
        for record in self._store.collection(_SERVICES).scan():
            if record.fields.get("spec.type") in _WITH_NODE_PORTS:
                ports = (record.decode().get("spec") or {}).get("ports") or []
                taken |= {port["nodePort"] for port in ports if port.get("nodePort")}
        return taken


def _unusable(port: int, taken: set[int]) -> str:
    """Say what keeps a node port from being used; nothing where it is free."""
    if port not in _NODE_PORTS:
        return (
            "provided port is not in the valid range. The range of valid ports is"
            f" {_NODE_PORTS[0]}-{_NODE_PORTS[-1]}"
        )
    return "provided port is already allocated" if port in taken else ""
