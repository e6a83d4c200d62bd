"""What a cluster has before anybody made anything: its namespaces, and the Service of the API server."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.identity import Stamps
    from elasti.devcluster.apiserver.storage import Store
    from kubeloop.objects.meta import JsonObject

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_PORT = 443


def server_names(service_network: str) -> list[str]:
    """Return the names and the address under which pods find the API server."""
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    return [*names, "kubernetes.default.svc.cluster.local", service_address(service_network)]


def service_address(service_network: str) -> str:
    """Return the API server's own Service address: the first of the range."""
    return str(ipaddress.ip_network(service_network)[1])


def populate(store: Store, stamps: Stamps, *, host: str, port: int, service_network: str) -> None:
    """Make what is missing, and let the Service's endpoints be where the server listens now."""
    for name in _NAMESPACES:
        if store.collection("/namespaces").get(name) is None:
            store.put(store.collection("/namespaces"), name, _namespace(stamps, name))
    services = store.collection("/services")
    if services.get("default/kubernetes") is None:
        address = service_address(service_network)
        fields = {"spec.clusterIP": address, "spec.type": "ClusterIP"}
        store.put(services, "default/kubernetes", _service(stamps, address), fields=fields)
    slices = store.collection("discovery.k8s.io/endpointslices")
    store.put(slices, "default/kubernetes", _slice(stamps, host, port))


def _metadata(stamps: Stamps, name: str, namespace: str = "", **labels: str) -> JsonObject:
    metadata: JsonObject = {
        "name": name,
        "uid": stamps.uid(),
        "creationTimestamp": stamps.now(),
        "labels": labels,
    }
    return {**metadata, "namespace": namespace} if namespace else metadata


def _namespace(stamps: Stamps, name: str) -> JsonObject:
    metadata = _metadata(stamps, name, **{"kubernetes.io/metadata.name": name})
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": metadata,
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _service(stamps: Stamps, address: str) -> JsonObject:
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(stamps, "kubernetes", "default", **labels),
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv6" if ":" in address else "IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": _PORT, "protocol": "TCP", "targetPort": _PORT}],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    }


def _slice(stamps: Stamps, host: str, port: int) -> JsonObject:
    labels = {"kubernetes.io/service-name": "kubernetes"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _metadata(stamps, "kubernetes", "default", **labels) | {"generation": 1},
        "addressType": "IPv6" if ":" in host else "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
