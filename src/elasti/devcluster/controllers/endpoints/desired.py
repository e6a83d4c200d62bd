"""What a Service's endpoints should be, from its pods. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, TypeAlias

from elasti.devcluster.controllers.endpoints.objects import (
    Conditions,
    Endpoint,
    EndpointPort,
    TargetRef,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from elasti.devcluster.controllers.endpoints.objects import Service, ServicePort
    from elasti.devcluster.controllers.pods import Pod

_ZONE = "topology.kubernetes.io/zone"

Ports: TypeAlias = tuple[EndpointPort, ...]
NodeLabels: TypeAlias = "Mapping[str, dict[str, str] | None]"


def families_of(service: Service) -> tuple[str, ...]:
    """Return the address types of a Service's slices."""
    if service.spec.ip_families:
        return service.spec.ip_families
    if service.is_headless:
        return ("IPv4", "IPv6")
    return (family_of(service.spec.cluster_ip),)


def family_of(address: str) -> str:
    """Return `IPv4` or `IPv6`."""
    return f"IPv{ipaddress.ip_address(address).version}"


def addresses_of(pod: Pod) -> tuple[str, ...]:
    """Return all addresses of a pod."""
    listed = tuple(entry.ip for entry in pod.status.pod_ips or () if entry.ip)
    return listed or ((pod.status.pod_ip,) if pod.status.pod_ip else ())


def listed(service: Service, pods: Iterable[Pod], nodes: NodeLabels) -> list[Pod]:
    """Return the pods that have a place among the endpoints, ready or not.

    Those that ended have none, nor those on a node that is gone, unless the Service publishes
    everything.
    """
    everything = service.spec.publish_not_ready_addresses
    return [
        pod
        for pod in pods
        if not pod.is_terminal and addresses_of(pod) and (everything or pod.spec.node_name in nodes)
    ]


def endpoint_of(service: Service, pod: Pod, family: str, nodes: NodeLabels) -> Endpoint | None:
    """Return a pod as an endpoint of one family; None where it has no such address."""
    addresses = tuple(a for a in addresses_of(pod) if family_of(a) == family)
    if not addresses:
        return None
    meta, spec = pod.metadata, pod.spec
    serving, terminating = pod.is_ready, pod.is_deleting
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    named = bool(spec.hostname) and spec.subdomain == service.metadata.name
    return Endpoint(
        addresses=addresses,
        conditions=Conditions(ready=ready, serving=serving, terminating=terminating),
        hostname=spec.hostname if named else None,
        target_ref=TargetRef(kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid),
        node_name=spec.node_name or None,
        zone=(nodes.get(spec.node_name) or {}).get(_ZONE) or None,
    )


def ports_of(service: Service, pod: Pod) -> Ports:
    """Return the Service's ports as numbers of this pod; names that it lacks are left out."""
    found = ((port, number_of(port, pod)) for port in service.spec.ports or ())
    return tuple(
        EndpointPort(
            name=port.name, port=number, protocol=port.protocol, app_protocol=port.app_protocol
        )
        for port, number in found
        if number is not None
    )


def number_of(port: ServicePort, pod: Pod) -> int | None:
    """Return the number that a Service's port means for a pod."""
    target = port.target
    if isinstance(target, int):
        return target
    sidecars = [c for c in pod.spec.init_containers or () if c.restart_policy == "Always"]
    for container in (*pod.spec.containers, *sidecars):
        for candidate in container.ports or ():
            if (candidate.name, candidate.protocol) == (target, port.protocol):
                return candidate.container_port
    return None


def grouped(
    service: Service, pods: Collection[Pod], family: str, nodes: NodeLabels
) -> dict[Ports, list[Endpoint]]:
    """Return the endpoints of one family by the ports that they have in common.

    A pod that has none of the ports is listed under no port at all, unless it is of a Service that
    needs none.
    """
    groups: dict[Ports, list[Endpoint]] = {}
    for pod in listed(service, pods, nodes):
        endpoint = endpoint_of(service, pod, family, nodes)
        if endpoint is not None:
            groups.setdefault(ports_of(service, pod), []).append(endpoint)
    return groups
