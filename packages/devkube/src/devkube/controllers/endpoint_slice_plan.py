"""From a Service and its pods to changes of its EndpointSlices. Pure.

Endpoints stay in the slice where they are. New ones go first into slices that change anyway, then
into one that takes them all, then into new slices of at most a hundred. A slice that would go and
one that would come become a change of the former. There is always one slice for each family, empty
if need be, so that "nothing yet" can be told from "not reconciled yet".
"""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import TYPE_CHECKING, TypeAlias

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

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from devkube.controllers.objects import SlimPod


SERVICES = GroupVersionResource("", "v1", "services")
SERVICE = GroupVersionKind("", "v1", "Service")
SLICES = GroupVersionResource("discovery.k8s.io", "v1", "endpointslices")

HEADLESS = "service.kubernetes.io/headless"
_ZONE = "topology.kubernetes.io/zone"

Ports: TypeAlias = tuple[EndpointPort, ...]
NodeLabels: TypeAlias = "Mapping[str, dict[str, str] | None]"
CONTROLLER = "endpointslice-controller.k8s.io"
MAX_ENDPOINTS = 100
_RESERVED = (SERVICE_LABEL, MANAGED_BY_LABEL, HEADLESS)


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


def listed(service: Service, pods: Iterable[SlimPod], nodes: NodeLabels) -> list[SlimPod]:
    """Return the pods that have a place among the endpoints, ready or not.

    Those that ended have none, nor those on a node that is gone, unless the Service publishes
    everything.
    """
    everything = service.spec.publish_not_ready_addresses
    return [
        pod
        for pod in pods
        if not pod.is_terminal and pod.addresses and (everything or pod.spec.node_name in nodes)
    ]


def endpoint_of(
    service: Service, pod: SlimPod, family: str, nodes: NodeLabels
) -> ServiceEndpoint | None:
    """Return a pod as an endpoint of one family; None where it has no such address."""
    addresses = tuple(a for a in pod.addresses if family_of(a) == family)
    if not addresses:
        return None
    meta, spec = pod.metadata, pod.spec
    serving, terminating = pod.is_ready, pod.is_deleting
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    named = bool(spec.hostname) and spec.subdomain == service.metadata.name
    return ServiceEndpoint(
        addresses=addresses,
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
    sidecars = [c for c in pod.spec.init_containers or () if c.is_sidecar]
    for container in (*pod.spec.containers, *sidecars):
        for candidate in container.ports or ():
            if (candidate.name, candidate.protocol) == (target, port.protocol):
                return candidate.container_port
    return None


def grouped(
    service: Service, pods: Collection[SlimPod], family: str, nodes: NodeLabels
) -> dict[Ports, list[ServiceEndpoint]]:
    """Return the endpoints of one family by the ports that they have in common.

    A pod that has none of the ports is listed under no port at all, unless it is of a Service that
    needs none.
    """
    groups: dict[Ports, list[ServiceEndpoint]] = {}
    for pod in listed(service, pods, nodes):
        endpoint = endpoint_of(service, pod, family, nodes)
        if endpoint is not None:
            groups.setdefault(ports_of(service, pod), []).append(endpoint)
    return groups


@dataclasses.dataclass(slots=True, kw_only=True)
class SliceDraft:
    """A slice as it should be; `present` is the one to change, None for one to create."""

    family: str
    ports: Ports
    endpoints: list[ServiceEndpoint]
    present: EndpointSlice | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """What to write."""

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
    families = families_of(service)
    create: list[SliceDraft] = []
    update: list[SliceDraft] = []
    delete = [item for item in existing if not _is_usable(item, service, families)]
    for family in families:
        present = [
            item
            for item in existing
            if item.address_type == family and _is_usable(item, service, families)
        ]
        wanted = grouped(service, pods, family, nodes)
        part = _plan_family(service, family, wanted, present)
        create += part.create
        update += part.update
        delete += part.delete
    return SlicePlan(create=tuple(create), update=tuple(update), delete=tuple(delete))


def _is_usable(item: EndpointSlice, service: Service, families: Collection[str]) -> bool:
    owners = item.metadata.owner_references or ()
    owned = any(owner.uid == service.metadata.uid for owner in owners)
    return owned and item.address_type in families


def _plan_family(
    service: Service,
    family: str,
    wanted: dict[Ports, list[ServiceEndpoint]],
    present: Sequence[EndpointSlice],
) -> SlicePlan:
    spare: list[EndpointSlice] = []
    drafts: list[SliceDraft] = []
    by_ports: dict[Ports, list[EndpointSlice]] = {}
    for item in present:
        by_ports.setdefault(item.ports or (), []).append(item)
    for ports, slices in by_ports.items():
        if ports not in wanted:
            spare += slices
    for ports, endpoints in wanted.items():
        packed = pack_slices(family, ports, endpoints, by_ports.get(ports, ()))
        spare += [d.present for d in packed if not d.endpoints and d.present is not None]
        drafts += [draft for draft in packed if draft.endpoints]
    if not drafts:
        drafts = [_placeholder(family, spare)]
    return _recycled(service, drafts, spare)


def pack_slices(
    family: str, ports: Ports, wanted: list[ServiceEndpoint], present: Sequence[EndpointSlice]
) -> list[SliceDraft]:
    """Put endpoints with the same ports into slices; a draft without endpoints is to go."""
    left = {_identity(endpoint): endpoint for endpoint in wanted}
    drafts: list[SliceDraft] = []
    changed: list[SliceDraft] = []
    for item in present:
        before = item.endpoints or ()
        kept = [left.pop(key) for key in map(_identity, before) if key in left]
        draft = SliceDraft(family=family, ports=ports, endpoints=kept, present=item)
        drafts.append(draft)
        if kept and tuple(kept) != before:
            changed.append(draft)
    rest = list(left.values())
    for draft in sorted(changed, key=lambda d: -len(d.endpoints)):
        rest = _fill(draft, rest)
    whole = [d for d in drafts if d.endpoints and len(d.endpoints) + len(rest) <= MAX_ENDPOINTS]
    if rest and whole:
        rest = _fill(max(whole, key=lambda d: len(d.endpoints)), rest)
    while rest:
        draft = SliceDraft(family=family, ports=ports, endpoints=[])
        rest = _fill(draft, rest)
        drafts.append(draft)
    return drafts


def _identity(endpoint: ServiceEndpoint) -> tuple[str, ...]:
    """Return what stays the same while the conditions change."""
    return (endpoint.target_ref.uid if endpoint.target_ref is not None else "", *endpoint.addresses)


def _fill(draft: SliceDraft, rest: list[ServiceEndpoint]) -> list[ServiceEndpoint]:
    room = MAX_ENDPOINTS - len(draft.endpoints)
    draft.endpoints += rest[:room]
    return rest[room:]


def _placeholder(family: str, spare: list[EndpointSlice]) -> SliceDraft:
    """Return the empty slice; one that is already so is kept."""
    empty = next((s for s in spare if not s.endpoints and not s.ports), None)
    if empty is not None:
        spare.remove(empty)
    return SliceDraft(family=family, ports=(), endpoints=[], present=empty)


def _recycled(service: Service, drafts: list[SliceDraft], spare: list[EndpointSlice]) -> SlicePlan:
    for draft in drafts:
        if draft.present is None and spare:
            draft.present = spare.pop()
    labels = labels_for(service)
    return SlicePlan(
        create=tuple(d for d in drafts if d.present is None),
        update=tuple(d for d in drafts if d.present is not None and _differs(d, labels)),
        delete=tuple(spare),
    )


def _differs(draft: SliceDraft, labels: dict[str, str]) -> bool:
    item = draft.present
    return item is None or (item.endpoints or (), item.ports or (), item.metadata.labels) != (
        tuple(draft.endpoints),
        draft.ports,
        labels,
    )
