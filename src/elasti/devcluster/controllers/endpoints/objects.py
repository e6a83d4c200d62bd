"""Services, EndpointSlices and Endpoints, as much of them as their controllers read and write."""

from __future__ import annotations

import msgspec

from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta

SERVICES = GroupVersionResource("", "v1", "services")
SERVICE = GroupVersionKind("", "v1", "Service")
SLICES = GroupVersionResource("discovery.k8s.io", "v1", "endpointslices")
ENDPOINTS = GroupVersionResource("", "v1", "endpoints")

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
HEADLESS = "service.kubernetes.io/headless"


class ServicePort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One port of a Service; `target_port` is a number or the name of a container's port."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    target_port: int | str | None = None

    @property
    def target(self) -> int | str:
        """Where it leads: the same port unless another is named."""
        return self.port if self.target_port in (None, "", 0) else self.target_port


class ServiceSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What decides about a Service's endpoints."""

    type: str = "ClusterIP"
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    ip_families: tuple[str, ...] | None = None
    publish_not_ready_addresses: bool = False


class Service(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Service."""

    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Whether it has no address of its own."""
        return self.spec.cluster_ip in ("", "None")

    @property
    def has_endpoints(self) -> bool:
        """Whether controllers look after its endpoints."""
        return self.spec.type != "ExternalName" and self.spec.selector is not None

    def selects(self, labels: dict[str, str] | None) -> bool:
        """Whether a pod with these labels belongs to it; an empty selector takes all pods."""
        return (self.spec.selector or {}).items() <= (labels or {}).items()


class Conditions(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """Whether an endpoint takes traffic."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """The pod behind an endpoint."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Endpoint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One endpoint of a slice."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    hostname: str | None = None
    target_ref: TargetRef | None = None
    node_name: str | None = None
    zone: str | None = None

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays the same while the conditions change."""
        return (self.target_ref.uid if self.target_ref is not None else "", *self.addresses)


class EndpointPort(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One port of a slice; it holds for all its endpoints."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class EndpointSlice(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An EndpointSlice."""

    metadata: ObjectMeta
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def service_name(self) -> str:
        """The Service that it belongs to; empty where it belongs to none."""
        return (self.metadata.labels or {}).get(SERVICE_NAME, "")


class Endpoints(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The older form: all endpoints of a Service in one object."""

    metadata: ObjectMeta
    subsets: tuple[JsonObject, ...] | None = None
