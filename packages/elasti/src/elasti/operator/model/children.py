"""The objects that we make beside a public Service, as values. Pure.

The *private Service* selects the same pods on the same ports, so that its slices tell where pods are
even while the public Service points at the resolver. It gets nothing else of the public one: copied
annotations and types would start load balancers, DNS records and GitOps pruning.

The *resolver slices* put the resolver into the public Service's rotation: one for each address
family, all TCP ports, each with the resolver port that stands for it.

All belong to the public Service and not to the ElastiService, so that deleting the latter in the
foreground cannot remove them before the target is awake.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from elasti.api.names import (
    DRAIN_KEY,
    MANAGED_BY,
    PRIVATE_LABEL,
    private_service_name,
    resolver_slice_name,
)
from kubeloop.objects.core import (
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    Service,
    ServiceEndpoint,
    ServiceSpec,
)
from kubeloop.objects.meta import ObjectMeta, OwnerReference
from kubeloop.objects.patches import MergePatch

APP_MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
FAMILIES = ("IPv4", "IPv6")
_SUFFIX = {"IPv4": "", "IPv6": "-ipv6"}
_IN_ROTATION = EndpointConditions(ready=True, serving=True, terminating=False)


def owner_reference(service: Service) -> OwnerReference:
    """Return the reference that makes the public Service the owner of its companions."""
    return OwnerReference(
        api_version="v1", kind="Service", name=service.metadata.name, uid=service.metadata.uid
    )


def private_service(service: Service) -> Service:
    """Return the private Service that should be beside a public one."""
    meta = ObjectMeta(
        name=private_service_name(service.metadata.name),
        namespace=service.metadata.namespace,
        labels={PRIVATE_LABEL: "true", APP_MANAGED_BY_LABEL: MANAGED_BY},
        owner_references=(owner_reference(service),),
    )
    # The resolver finds the pods by it, also while they are out of the public one's rotation.
    selector = {k: v for k, v in (service.spec.selector or {}).items() if k != DRAIN_KEY}
    return Service(metadata=meta, spec=ServiceSpec(selector=selector, ports=service.spec.ports))


def is_drained(service: Service | None) -> bool:
    """Whether a public Service selects no pod because of our key."""
    return service is not None and DRAIN_KEY in (service.spec.selector or {})


def drain_patch(*, drained: bool) -> MergePatch:
    """Return the write that adds our key to a Service's selector, or removes it; others stay."""
    return MergePatch({"spec": {"selector": {DRAIN_KEY: "true" if drained else None}}})


def private_differs(present: Service, wanted: Service) -> bool:
    """Whether a private Service is not as it should be; KubeElasti's copies are not."""
    here, there = present.metadata, wanted.metadata
    return (
        (here.labels or {}) != there.labels
        or bool(here.annotations)
        or _owners(here) != _owners(there)
        or present.spec.type != wanted.spec.type
        or (present.spec.selector or {}) != (wanted.spec.selector or {})
        or (present.spec.ports or ()) != (wanted.spec.ports or ())
    )


def slice_names(service: str) -> dict[str, str]:
    """Return the names of the resolver slices by address family."""
    return {family: resolver_slice_name(service) + _SUFFIX[family] for family in FAMILIES}


def resolver_slices(
    service: Service, resolvers: Iterable[ServiceEndpoint], ports: Mapping[int, int]
) -> tuple[EndpointSlice, ...]:
    """Return the slices that put these resolvers into a Service's rotation.

    One for each family that both the Service and some resolver has; `ports` gives the resolver port
    of each Service port.
    """
    by_family: dict[str, list[ServiceEndpoint]] = {family: [] for family in families(service)}
    for resolver in resolvers:
        if (family := _family(resolver)) in by_family:
            by_family[family].append(_published(resolver))
    return tuple(
        _slice(service, family, endpoints, ports)
        for family, endpoints in by_family.items()
        if endpoints
    )


def uncovered(service: Service, resolvers: Iterable[ServiceEndpoint]) -> tuple[str, ...]:
    """Return the families of a Service in which none of these would take its traffic."""
    covered = {_family(resolver) for resolver in resolvers}
    return tuple(family for family in families(service) if family not in covered)


def slice_differs(present: EndpointSlice, wanted: EndpointSlice) -> bool:
    """Whether a published slice is not as it should be, whatever the order in it."""
    return (
        (present.metadata.labels or {}) != wanted.metadata.labels
        or _owners(present.metadata) != _owners(wanted.metadata)
        or set(present.endpoints or ()) != set(wanted.endpoints or ())
        or set(present.ports or ()) != set(wanted.ports or ())
    )


def published_ports(slices: Sequence[EndpointSlice], service: Service) -> dict[int, int]:
    """Read which resolver port a published slice gives each Service port, by the port's name."""
    by_name = {port.name: port.port for port in service.tcp_ports}
    return {
        by_name[port.name or ""]: port.port
        for endpoint_slice in slices
        for port in endpoint_slice.ports or ()
        if port.port and (port.name or "") in by_name
    }


def adopted(wanted: EndpointSlice | Service, present: EndpointSlice | Service) -> ObjectMeta:
    """Return the wanted metadata as a write onto the present object."""
    return msgspec.structs.replace(
        wanted.metadata, resource_version=present.metadata.resource_version
    )


def _slice(
    service: Service, family: str, endpoints: Sequence[ServiceEndpoint], ports: Mapping[int, int]
) -> EndpointSlice:
    name = service.metadata.name
    meta = ObjectMeta(
        name=slice_names(name)[family],
        namespace=service.metadata.namespace,
        labels={SERVICE_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY},
        owner_references=(owner_reference(service),),
    )
    slice_ports = tuple(
        EndpointPort(
            port=ports[port.port], name=port.name, protocol="TCP", app_protocol=port.app_protocol
        )
        for port in service.tcp_ports
    )
    ordered = tuple(sorted(endpoints, key=lambda endpoint: endpoint.addresses))
    return EndpointSlice(address_type=family, metadata=meta, endpoints=ordered, ports=slice_ports)


def families(service: Service) -> tuple[str, ...]:
    """Return the address families of a Service."""
    return service.spec.ip_families or ("IPv4",)


def _family(endpoint: ServiceEndpoint) -> str:
    return f"IPv{ipaddress.ip_address(endpoint.addresses[0]).version}"


def _published(resolver: ServiceEndpoint) -> ServiceEndpoint:
    return msgspec.structs.replace(
        resolver, addresses=resolver.addresses[:1], conditions=_IN_ROTATION
    )


def _owners(meta: ObjectMeta) -> list[tuple[str, str, str]]:
    return [(owner.kind, owner.name, owner.uid) for owner in meta.owner_references or ()]
