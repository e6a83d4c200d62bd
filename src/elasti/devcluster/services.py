"""What a start does to stored Services: they must have addresses that this cluster can listen on."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.storage import Store
    from kubeloop.objects.meta import JsonObject

_SERVICES = "/services"
_ADDRESS = "spec.clusterIP"
_API_SERVER = "default/kubernetes"


def move(store: Store, *, network: str) -> None:
    """Give Services whose address is of another range the same place in this one.

    A cluster's ranges may be taken when it starts again, or it starts in another kind of network.
    """
    here = ipaddress.IPv4Network(network)
    services = store.collection(_SERVICES)
    addresses = {record.key: record.fields.get(_ADDRESS, "") for record in services.scan()}
    taken = {address for address in addresses.values() if _is_in(address, here)}
    for key, address in addresses.items():
        record = services.get(key)
        if record is None or address in ("", "None") or ":" in address or _is_in(address, here):
            continue
        found = _place(address, here, taken)
        taken.add(found)
        service = record.decode()
        _set_address(service, found)
        store.put(services, key, service, fields={**record.fields, _ADDRESS: found})


def make_reachable(store: Store, *, port: int) -> None:
    """Let the API server's Service have its own port where the usual one takes a privilege."""
    services = store.collection(_SERVICES)
    record = services.get(_API_SERVER)
    if record is None:
        return
    service = record.decode()
    spec = service["spec"]
    if not may_listen(spec["clusterIP"], spec["ports"][0]["port"]):
        spec["ports"][0]["port"] = port
        store.put(services, _API_SERVER, service, fields=record.fields)


def may_listen(address: str, port: int) -> bool:
    """Whether this process may bind a port; that somebody else has it is another matter."""
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except PermissionError:
            return False
        except OSError:
            return True
    return True


def _is_in(address: str, network: ipaddress.IPv4Network) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False


def _place(address: str, network: ipaddress.IPv4Network, taken: set[str]) -> str:
    """Return the address at the same distance from the network's beginning, or the next free one."""
    size = network.num_addresses
    first = int(ipaddress.IPv4Address(address)) % size
    for step in range(size):
        found = str(network[(first + step) % size])
        if found not in taken:
            return found
    raise ValueError(f"more Services than addresses in {network}")


def _set_address(service: JsonObject, address: str) -> None:
    spec = service["spec"]
    spec["clusterIP"] = address
    others = [other for other in spec.get("clusterIPs") or () if ":" in other]
    spec["clusterIPs"] = [address, *others]
