"""The Service `kubernetes` where low ports take a privilege that this process does not have."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.storage import Store

_KEY = "default/kubernetes"


def make_reachable(store: Store, *, port: int) -> None:
    """Let the Service have the API server's own port where its usual one cannot be bound."""
    services = store.collection("/services")
    record = services.get(_KEY)
    if record is None:
        return
    service = record.decode()
    spec = service["spec"]
    if not may_listen(spec["clusterIP"], spec["ports"][0]["port"]):
        spec["ports"][0]["port"] = port
        store.put(services, _KEY, service, fields=record.fields)


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
