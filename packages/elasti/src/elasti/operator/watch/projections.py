"""Slim shapes of what the operator reads and writes: only the fields that decisions look at.

The same Structs serve informers (unknown fields are skipped while decoding) and writes (defaults are
left out), so "does it differ from what should be" is a comparison of values.
"""

from __future__ import annotations

import msgspec

from kubeloop.objects.meta import LabeledMeta, ObjectMeta
from kubeloop.objects.owners import ObjectReference

SERVICES = "v1/services"
SLICES = "discovery.k8s.io/v1/endpointslices"
SERVICE_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"


class ServicePort(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One port of a Service."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    target_port: int | str | None = None


class ServiceSpec(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """What matters of a Service."""

    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None
    ip_families: tuple[str, ...] | None = None
    internal_traffic_policy: str = ""
    publish_not_ready_addresses: bool = False


class Service(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A core/v1 Service."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ServiceSpec = ServiceSpec()
    api_version: str = "v1"
    kind: str = "Service"

    @property
    def tcp_ports(self) -> tuple[ServicePort, ...]:
        """The ports that a resolver can serve."""
        return tuple(port for port in self.spec.ports or () if port.protocol == "TCP")


class EndpointConditions(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """Whether an endpoint takes traffic. None means that nobody said."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ServiceEndpoint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One endpoint of a slice; clients use its first address."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None

    @property
    def is_ready(self) -> bool:
        """Whether somebody said that it is ready; silence is not taken for it."""
        return self.conditions.ready is True and bool(self.addresses)

    @property
    def identity(self) -> str:
        """What makes it the same endpoint over time: its pod, else its address."""
        reference = self.target_ref
        return (reference.uid if reference else "") or (self.addresses or ("",))[0]

    @property
    def place(self) -> str:
        """What answers for itself: a pod, at one of its addresses."""
        return f"{self.identity} {(self.addresses or ('',))[0]}"


class SlicePort(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One port of a slice; `name` is the Service port's."""

    port: int | None = None
    name: str = ""
    protocol: str | None = None
    app_protocol: str | None = None


class EndpointSlice(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A discovery.k8s.io/v1 EndpointSlice."""

    address_type: str
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    endpoints: tuple[ServiceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None
    api_version: str = "discovery.k8s.io/v1"
    kind: str = "EndpointSlice"

    @property
    def service(self) -> str:
        """The Service that the slice belongs to."""
        return (self.metadata.labels or {}).get(SERVICE_LABEL, "")

    @property
    def ready_endpoints(self) -> tuple[ServiceEndpoint, ...]:
        """The endpoints that are ready."""
        return tuple(endpoint for endpoint in self.endpoints or () if endpoint.is_ready)


class _Present(msgspec.Struct, gc=False):
    """Something that is there; what is in it does not matter."""


class _Container(msgspec.Struct, rename="camel", gc=False):
    readiness_probe: _Present | None = None


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    containers: tuple[_Container, ...] = ()


class _TemplateMeta(msgspec.Struct, gc=False):
    labels: dict[str, str] | None = None


class _Template(msgspec.Struct, gc=False):
    metadata: _TemplateMeta = msgspec.field(default_factory=_TemplateMeta)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _WorkloadSpec(msgspec.Struct, gc=False):
    replicas: int | None = None
    selector: dict[str, object] | None = None
    template: _Template | None = None


class _WorkloadStatus(msgspec.Struct, rename="camel", gc=False):
    replicas: int = 0


class Workload(msgspec.Struct, rename="camel", gc=False):
    """A Deployment, StatefulSet, ReplicaSet, Rollout: replicas where all of these have them."""

    metadata: LabeledMeta
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)
    status: _WorkloadStatus = msgspec.field(default_factory=_WorkloadStatus)

    @property
    def replicas(self) -> int:
        """What is asked for; one where nobody said, as Kubernetes defaults it."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def template_labels(self) -> dict[str, str]:
        """The labels that its pods get."""
        template = self.spec.template
        return (template.metadata.labels if template else None) or {}

    @property
    def has_readiness_probe(self) -> bool:
        """Whether any container says when it is ready."""
        containers = self.spec.template.spec.containers if self.spec.template else ()
        return any(container.readiness_probe is not None for container in containers)
