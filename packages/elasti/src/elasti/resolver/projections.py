"""Slim structs of the objects that the resolver reads, and pod addresses from EndpointSlices. Pure.

Only used fields are decoded. Trigger metadata, and any credential in it, never enters this process.

A slice lists a pod's address as soon as the pod has one, ready or not, so the prober can probe it long before
the kubelet reports Ready. Terminating pods are left out: they may still pass every probe, but they are going
away.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from elasti.api.types import ProbeResponse, ResolverPort, WakeSpec
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from kubeloop.objects.core import SERVICE_LABEL, EndpointConditions, EndpointPort, ServicePort
from kubeloop.objects.meta import LabeledMeta, SlimMeta


class ServiceKey(NamedTuple):
    """A Service that has an ElastiService."""

    namespace: str
    service: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}"


class PodName(NamedTuple):
    """A pod. The uid distinguishes it from an earlier pod of the same name."""

    namespace: str
    name: str
    uid: str


class CreatedMeta(SlimMeta, rename="camel", gc=False):
    """Metadata with the age, which decides between claims to one port."""

    creation_timestamp: str = ""


class ElastiSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The part of a spec that the resolver uses."""

    service: str = ""
    probe_response: tuple[ProbeResponse, ...] = ()
    wake: WakeSpec = WakeSpec()


class ElastiStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The part of a status that the resolver uses."""

    resolver_ports: tuple[ResolverPort, ...] = ()


class ElastiView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An ElastiService as the resolver sees it."""

    metadata: CreatedMeta
    spec: ElastiSpec = ElastiSpec()
    status: ElastiStatus = ElastiStatus()

    @classmethod
    def salvaged(cls, data: bytes, _error: str) -> ElastiView:
        """Return the object without the unreadable part of its spec; its ports and pods stay in service."""
        loose = msgspec.json.decode(data, type=_LooseView)
        return cls(loose.metadata, ElastiSpec(loose.spec.service), loose.status)

    @property
    def key(self) -> ServiceKey:
        """Its Service."""
        return ServiceKey(self.metadata.namespace, self.spec.service)

    @property
    def age(self) -> tuple[str, str]:
        """A sort key: older objects first, then by uid."""
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
    """A private Service. It has the public Service's ports."""

    metadata: SlimMeta
    spec: _ServiceSpec = _ServiceSpec()

    @property
    def ports(self) -> tuple[ServicePort, ...]:
        """The ports that a resolver can serve."""
        return tuple(port for port in self.spec.ports or () if port.protocol == "TCP")


class TargetRefView(msgspec.Struct, frozen=True, gc=False):
    """The object behind an endpoint."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class EndpointView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One endpoint of a slice. It takes a third of the library's memory, and there is one for every pod."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    target_ref: TargetRefView | None = None


class SliceView(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An EndpointSlice: of a private Service, or one that lists resolvers."""

    metadata: LabeledMeta
    endpoints: tuple[EndpointView, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def owner(self) -> ServiceKey:
        """The Service, private or public, that the slice belongs to."""
        labels = self.metadata.labels or {}
        return ServiceKey(self.metadata.namespace, labels.get(SERVICE_LABEL, ""))


class DatabaseKind(enum.Enum):
    """A database protocol that can report readiness, with its usual names and port."""

    POSTGRESQL = (frozenset(("postgresql", "postgres", "pgsql", "pg")), 5432)
    MYSQL = (frozenset(("mysql", "mariadb")), 3306)
    REDIS = (frozenset(("redis", "valkey")), 6379)

    @classmethod
    def of_port(
        cls, *, app_protocol: str | None, name: str | None, port: int
    ) -> DatabaseKind | None:
        """Decide by `appProtocol`, else by the name up to its first dash, else by the pod's port."""
        declared = ((app_protocol or "").lower() or (name or "").lower()).partition("-")[0]
        known = [database for database in cls if declared in database.value[0]]
        return next(
            iter(known or [database for database in cls if port == database.value[1]]), None
        )


class ListedEndpoint(NamedTuple):
    """One pod on one port: whether Kubernetes reports it ready, and its database protocol."""

    ready: bool
    pod: PodName
    database: DatabaseKind | None = None


def endpoints_of(slices: Iterable[SliceView]) -> dict[str, dict[UpstreamAddress, ListedEndpoint]]:
    """Return the pods by port name. An address in several slices is ready if one slice says so.

    A missing `ready` counts as not ready. Endpoints that do not name a pod of the slice's namespace are left
    out.
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
