"""From a Service and its pods to changes of its EndpointSlices. Pure.

Endpoints with the same ports are in slices of at most a hundred, in the order of their addresses.
If one slice would be deleted and another created, the first is changed instead. There is always one
slice, empty if need be, so that "nothing yet" differs from "not reconciled yet". All addresses
are of one family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from devkube.controllers.objects import SlimPod
from kubeloop.objects.core import (
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    Service,
    ServiceEndpoint,
    ServicePort,
)
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.owners import ObjectReference

SERVICES = GroupVersionResource("", "v1", "services")
SERVICE = GroupVersionKind("", "v1", "Service")
SLICES = GroupVersionResource("discovery.k8s.io", "v1", "endpointslices")

HEADLESS = "service.kubernetes.io/headless"
_ZONE = "topology.kubernetes.io/zone"

Ports: TypeAlias = tuple[EndpointPort, ...]
NodeLabels: TypeAlias = "Mapping[str, dict[str, str] | None]"
CONTROLLER = "endpointslice-controller.k8s.io"
MAX_ENDPOINTS = 100
FAMILY = "IPv4"
_RESERVED = (SERVICE_LABEL, MANAGED_BY_LABEL, HEADLESS)


def listed(service: Service, pods: Iterable[SlimPod], nodes: NodeLabels) -> list[SlimPod]:
    """Return the pods that have a place among the endpoints, ready or not.

    Pods that ended and pods on a deleted node are left out, unless the Service publishes
    everything.
    """
    everything = service.spec.publish_not_ready_addresses
    return [
        pod
        for pod in pods
        if not pod.is_terminal and pod.addresses and (everything or pod.spec.node_name in nodes)
    ]


def endpoint_of(service: Service, pod: SlimPod, nodes: NodeLabels) -> ServiceEndpoint:
    """Return a pod as an endpoint."""
    meta, spec = pod.metadata, pod.spec
    serving, terminating = pod.is_ready, pod.is_deleting
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    named = bool(spec.hostname) and spec.subdomain == service.metadata.name
    return ServiceEndpoint(
        addresses=pod.addresses[:1],
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=terminating),
        hostname=spec.hostname if named else None,
        target_ref=ObjectReference(
            kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid
        ),
        node_name=spec.node_name or None,
        zone=(nodes.get(spec.node_name) or {}).get(_ZONE) or None,
    )


def ports_of(service: Service, pod: SlimPod) -> Ports:
    """Return the Service's ports as numbers of this pod; names that it lacks are left out."""
    found = ((port, number_of(port, pod)) for port in service.spec.ports or ())
    return tuple(
        EndpointPort(
            name=port.name, port=number, protocol=port.protocol, app_protocol=port.app_protocol
        )
        for port, number in found
        if number is not None
    )


def number_of(port: ServicePort, pod: SlimPod) -> int | None:
    """Return the number that a Service's port means for a pod."""
    target = port.target
    if isinstance(target, int):
        return target
    for container in pod.spec.containers:
        for candidate in container.ports or ():
            if (candidate.name, candidate.protocol) == (target, port.protocol):
                return candidate.container_port
    return None


@dataclasses.dataclass(slots=True, kw_only=True)
class SliceDraft:
    """A slice as it should be; `present` is the one to change, None for one to create."""

    ports: Ports
    endpoints: list[ServiceEndpoint]
    present: EndpointSlice | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """The slices to write."""

    create: tuple[SliceDraft, ...] = ()
    update: tuple[SliceDraft, ...] = ()
    delete: tuple[EndpointSlice, ...] = ()


def labels_for(service: Service) -> dict[str, str]:
    """Return a slice's labels: the Service's own and the three that say what it is."""
    own = service.metadata.labels or {}
    labels = {name: text for name, text in own.items() if name not in _RESERVED}
    if service.is_headless:
        labels[HEADLESS] = ""
    return {**labels, SERVICE_LABEL: service.metadata.name, MANAGED_BY_LABEL: CONTROLLER}


def plan_slices(
    service: Service,
    pods: Collection[SlimPod],
    existing: Sequence[EndpointSlice],
    nodes: NodeLabels,
) -> SlicePlan:
    """Compare. `existing` are this controller's slices of the Service; `nodes` those that exist."""
    drafts = _drafts(service, pods, nodes) or [SliceDraft(ports=(), endpoints=[])]
    spare = [item for item in existing if _is_usable(item, service)]
    delete = [item for item in existing if item not in spare]
    for same_ports in (True, False):
        for draft in drafts:
            fitting = [s for s in spare if not same_ports or (s.ports or ()) == draft.ports]
            if draft.present is None and fitting:
                draft.present = fitting[0]
                spare.remove(fitting[0])
    labels = labels_for(service)
    return SlicePlan(
        create=tuple(d for d in drafts if d.present is None),
        update=tuple(d for d in drafts if d.present is not None and _differs(d, labels)),
        delete=(*delete, *spare),
    )


def _drafts(service: Service, pods: Collection[SlimPod], nodes: NodeLabels) -> list[SliceDraft]:
    """Return the slices that a Service should have: endpoints with the same ports, by address."""
    groups: dict[Ports, list[ServiceEndpoint]] = {}
    for pod in listed(service, pods, nodes):
        groups.setdefault(ports_of(service, pod), []).append(endpoint_of(service, pod, nodes))
    drafts = []
    for ports, endpoints in groups.items():
        endpoints.sort(key=lambda endpoint: endpoint.addresses)
        drafts += [
            SliceDraft(ports=ports, endpoints=endpoints[first : first + MAX_ENDPOINTS])
            for first in range(0, len(endpoints), MAX_ENDPOINTS)
        ]
    return drafts


def _is_usable(item: EndpointSlice, service: Service) -> bool:
    owners = item.metadata.owner_references or ()
    return item.address_type == FAMILY and any(o.uid == service.metadata.uid for o in owners)


def _differs(draft: SliceDraft, labels: dict[str, str]) -> bool:
    item = draft.present
    return item is None or (item.endpoints or (), item.ports or (), item.metadata.labels) != (
        tuple(draft.endpoints),
        draft.ports,
        labels,
    )
