"""Slim structs of what the resolver reads, and the addresses of pods from slices. Pure.

Only the fields that are used are ever decoded. Trigger metadata, and with it any credential in it, never
enters this process.

A slice lists a pod's address as soon as it has one, ready or not: that is what lets the prober ask a pod
long before the kubelet reports Ready. Terminating pods are left out altogether: they may still pass every
probe and are about to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from elasti.api.names import GROUP, PLURAL, VERSION
from elasti.api.types import ProbeResponse, ResolverPort, WakeSpec
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.readiness.plan import DatabaseKind
from kubeloop.objects.core import SERVICE_LABEL, EndpointConditions, EndpointPort, ServicePort
from kubeloop.objects.meta import LabeledMeta, SlimMeta

ELASTI_SERVICES = f"{GROUP}/{VERSION}/{PLURAL}"


class ServiceKey(NamedTuple):
    """A Service that has an ElastiService."""

    namespace: str
    service: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}"


class PodName(NamedTuple):
    """A pod; the uid tells it from an earlier one of the same name."""

    namespace: str
    name: str
    uid: str


class CreatedMeta(SlimMeta, rename="camel", gc=False):
    """Metadata with the age, which decides between claims of one port."""

    creation_timestamp: str = ""


class ElastiSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What the resolver needs of a spec."""

    service: str = ""
    probe_response: tuple[ProbeResponse, ...] = ()
    wake: WakeSpec = WakeSpec()


class ElastiStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What the resolver needs of a status."""

    resolver_ports: tuple[ResolverPort, ...] = ()


class ElastiView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An ElastiService as the resolver sees it."""

    metadata: CreatedMeta
    spec: ElastiSpec = ElastiSpec()
    status: ElastiStatus = ElastiStatus()

    @classmethod
    def salvaged(cls, data: bytes, _error: str) -> ElastiView:
        """Return one without the part of its spec that cannot be read; its ports and pods are served on."""
        loose = msgspec.json.decode(data, type=_LooseView)
        return cls(loose.metadata, ElastiSpec(loose.spec.service), loose.status)

    @property
    def key(self) -> ServiceKey:
        """The Service it is for."""
        return ServiceKey(self.metadata.namespace, self.spec.service)

    @property
    def age(self) -> tuple[str, str]:
        """Sorts older objects first; the uid decides between twins."""
        return (self.metadata.creation_timestamp, self.metadata.uid)


class _LooseSpec(msgspec.Struct, gc=False):
    service: str = ""


class _LooseView(msgspec.Struct, gc=False):
    metadata: CreatedMeta
    spec: _LooseSpec = msgspec.field(default_factory=_LooseSpec)
    status: ElastiStatus = ElastiStatus()


class _ServiceSpec(msgspec.Struct, frozen=True, gc=False):
    ports: tuple[ServicePort, ...] | None = None


class ServiceView(msgspec.Struct, frozen=True, gc=False):
    """A private Service: its ports are the public one's."""

    metadata: SlimMeta
    spec: _ServiceSpec = _ServiceSpec()

    @property
    def ports(self) -> tuple[ServicePort, ...]:
        """The ports that a resolver can serve."""
        return tuple(port for port in self.spec.ports or () if port.protocol == "TCP")


class TargetRefView(msgspec.Struct, frozen=True, gc=False):
    """What is behind an endpoint."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class EndpointView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One endpoint of a slice: a third of the library's, which every pod of every Service would pay."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    target_ref: TargetRefView | None = None


class SliceView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An EndpointSlice: a private Service's, or one that points at resolvers."""

    metadata: LabeledMeta
    endpoints: tuple[EndpointView, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def owner(self) -> ServiceKey:
        """The Service, private or public, that the slice belongs to."""
        labels = self.metadata.labels or {}
        return ServiceKey(self.metadata.namespace, labels.get(SERVICE_LABEL, ""))


class ListedEndpoint(NamedTuple):
    """One pod on one port: whether Kubernetes calls it ready, and what it speaks."""

    ready: bool
    pod: PodName
    database: DatabaseKind | None = None


def endpoints_of(slices: Iterable[SliceView]) -> dict[str, dict[UpstreamAddress, ListedEndpoint]]:
    """Return the pods by port name; an address that several slices list is ready if one says so.

    Ready must be said: silence is not taken for it. What names no pod of the slice's own namespace is
    left out.
    """
    by_port: dict[str, dict[UpstreamAddress, ListedEndpoint]] = {}
    for endpoint_slice in slices:
        for port in endpoint_slice.ports or ():
            if not port.port or (port.protocol or "TCP") != "TCP":
                continue
            found = by_port.setdefault(port.name or "", {})
            for endpoint in endpoint_slice.endpoints or ():
                _add(found, endpoint, port, endpoint_slice.metadata.namespace)
    return by_port


def _add(
    found: dict[UpstreamAddress, ListedEndpoint],
    endpoint: EndpointView,
    port: EndpointPort,
    namespace: str,
) -> None:
    reference = endpoint.target_ref
    if reference is None or reference.kind != "Pod" or reference.namespace != namespace:
        return
    number = port.port
    if endpoint.conditions.terminating or not endpoint.addresses or not number:
        return
    address = UpstreamAddress(endpoint.addresses[0], number)
    ready = endpoint.conditions.ready is True
    known = found.get(address)
    if known is None or (ready and not known.ready):
        database = DatabaseKind.of_port(app_protocol=port.app_protocol, name=port.name, port=number)
        pod = PodName(namespace, reference.name, reference.uid)
        found[address] = ListedEndpoint(ready, pod, database)
