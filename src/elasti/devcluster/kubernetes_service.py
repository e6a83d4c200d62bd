"""The Service `kubernetes`: how pods find the API server by its usual name."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.core import Core
    from kubeloop.objects.meta import JsonObject

_NAME = "kubernetes"
_KEY = f"default/{_NAME}"
_USUAL_PORT = 443


def publish(core: Core, *, address: str, host: str, port: int) -> None:
    """Write the Service and its endpoint: the address, and where the API server really is."""
    shown = _USUAL_PORT if may_listen(address, _USUAL_PORT) else port
    spec = {
        "clusterIP": address,
        "clusterIPs": [address],
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "ports": [{"name": "https", "protocol": "TCP", "port": shown, "targetPort": port}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    fields = {"spec.clusterIP": address, "spec.type": "ClusterIP"}
    labels = {"component": "apiserver", "provider": _NAME}
    service = _object("v1", "Service", labels, {"spec": spec, "status": {"loadBalancer": {}}})
    _put(core, "/services", service, fields)
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    ready = {"addresses": [host], "conditions": {"ready": True}}
    body: JsonObject = {"addressType": "IPv4", "endpoints": [ready], "ports": ports}
    labels = {"kubernetes.io/service-name": _NAME}
    _put(
        core,
        "discovery.k8s.io/endpointslices",
        _object("discovery.k8s.io/v1", "EndpointSlice", labels, body),
    )


def may_listen(address: str, port: int) -> bool:
    """Whether this process may bind a port there; low ones take a privilege."""
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except PermissionError:
            return False
        except OSError:
            return True
    return True


def _object(version: str, kind: str, labels: dict[str, str], body: JsonObject) -> JsonObject:
    metadata = {"name": _NAME, "namespace": "default", "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def _put(
    core: Core, collection: str, obj: JsonObject, fields: dict[str, str] | None = None
) -> None:
    where = core.store.collection(collection)
    before = where.get(_KEY)
    kept = before.decode()["metadata"] if before is not None else _born(core)
    obj["metadata"] |= {"uid": kept["uid"], "creationTimestamp": kept["creationTimestamp"]}
    core.store.put(where, _KEY, obj, fields=fields or {})


def _born(core: Core) -> JsonObject:
    return {"uid": core.stamps.uid(), "creationTimestamp": core.stamps.now()}
