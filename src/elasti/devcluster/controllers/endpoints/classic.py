"""The older Endpoints object of a Service: one for each, ready and other addresses apart. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.controllers.endpoints.desired import (
    addresses_of,
    families_of,
    family_of,
    ports_of,
)
from elasti.devcluster.controllers.endpoints.objects import HEADLESS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from elasti.devcluster.controllers.endpoints.desired import Ports
    from elasti.devcluster.controllers.endpoints.objects import Service
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.objects.meta import JsonObject

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
CONTROLLER = "endpoint-controller"
# The object says so itself when there are more; nobody in a dev cluster has as many.
_MOST = 1000


def labels_for(service: Service) -> dict[str, str]:
    """Return the Service's labels and the one that says who made it."""
    labels = {**(service.metadata.labels or {}), MANAGED_BY: CONTROLLER}
    labels.pop(HEADLESS, None)
    return {**labels, HEADLESS: ""} if service.is_headless else labels


def subsets(service: Service, pods: Collection[Pod]) -> list[JsonObject]:
    """Return the addresses of the pods by the ports that they have in common."""
    groups: dict[Ports, dict[str, list[JsonObject]]] = {}
    for pod in sorted(_listed(service, pods), key=addresses_of):
        ports = ports_of(service, pod)
        address = _address(service, pod)
        if address is None or (not ports and (service.spec.ports or not service.is_headless)):
            continue
        ready = service.spec.publish_not_ready_addresses or pod.is_ready
        group = groups.setdefault(ports, {})
        group.setdefault("addresses" if ready else "notReadyAddresses", []).append(address)
    return [_subset(ports, groups[ports]) for ports in sorted(groups, key=str)]


def _listed(service: Service, pods: Iterable[Pod]) -> list[Pod]:
    everything = service.spec.publish_not_ready_addresses
    return [
        pod
        for pod in pods
        if not pod.is_terminal and addresses_of(pod) and (everything or not pod.is_deleting)
    ][:_MOST]


def _address(service: Service, pod: Pod) -> JsonObject | None:
    family = families_of(service)[0]
    address = next((a for a in addresses_of(pod) if family_of(a) == family), None)
    if address is None:
        return None
    meta, spec = pod.metadata, pod.spec
    document: JsonObject = {
        "ip": address,
        "targetRef": {
            "kind": "Pod",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
    }
    if spec.node_name:
        document["nodeName"] = spec.node_name
    if spec.hostname and spec.subdomain == service.metadata.name:
        document["hostname"] = spec.hostname
    return document


def _subset(ports: Ports, group: dict[str, list[JsonObject]]) -> JsonObject:
    if not ports:
        return dict(group)
    return {
        **group,
        "ports": [_port(port.name, port.port, port.protocol, port.app_protocol) for port in ports],
    }


def _port(
    name: str | None, number: int | None, protocol: str | None, app_protocol: str | None
) -> JsonObject:
    document: JsonObject = {"port": number, "protocol": protocol}
    if name:
        document["name"] = name
    if app_protocol:
        document["appProtocol"] = app_protocol
    return document
