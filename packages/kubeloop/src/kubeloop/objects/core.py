"""Slim Structs of Services, EndpointSlices and Pods: the fields that controllers and proxies read.

The same Structs serve informers (unknown fields are skipped while decoding) and writes (defaults are left
out), so "does it differ from what should be" is a comparison of values. A program that needs more
subclasses them; one that holds very many objects and needs less declares its own.
"""

from __future__ import annotations

import msgspec

from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.owners import ObjectReference

SERVICES = "v1/services"
SLICES = "discovery.k8s.io/v1/endpointslices"
PODS = "v1/pods"

SERVICE_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"


class ServicePort(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
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


class ServiceSpec(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """The part of a Service's spec that decides about its endpoints."""

    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None
    ip_families: tuple[str, ...] | None = None
    internal_traffic_policy: str = ""
    external_traffic_policy: str = ""
    session_affinity: str = ""
    publish_not_ready_addresses: bool = False


class Service(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A core/v1 Service."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: ServiceSpec = ServiceSpec()
    api_version: str = "v1"
    kind: str = "Service"

    @property
    def is_headless(self) -> bool:
        """Whether it has no address of its own."""
        return self.spec.cluster_ip in ("", "None")

    @property
    def has_endpoints(self) -> bool:
        """Whether the cluster's controllers keep its endpoints."""
        return self.spec.type != "ExternalName" and self.spec.selector is not None

    def selects(self, labels: dict[str, str] | None) -> bool:
        """Whether a pod with these labels belongs to it; an empty selector takes all pods."""
        return (self.spec.selector or {}).items() <= (labels or {}).items()

    @property
    def tcp_ports(self) -> tuple[ServicePort, ...]:
        """The ports that a TCP proxy can serve."""
        return tuple(port for port in self.spec.ports or () if port.protocol == "TCP")


class EndpointConditions(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """Whether an endpoint takes traffic. None means that the condition is not set."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ServiceEndpoint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One endpoint of a slice; clients use its first address."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its condition says that it is ready; a condition that is not set does not."""
        return self.conditions.ready is True and bool(self.addresses)

    @property
    def identity(self) -> str:
        """The identity of the endpoint over time: its pod, else its address."""
        reference = self.target_ref
        return (reference.uid if reference else "") or (self.addresses or ("",))[0]

    @property
    def place(self) -> str:
        """Its identity at its address: a pod that comes back elsewhere is another place."""
        return f"{self.identity} {(self.addresses or ('',))[0]}"


class EndpointPort(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One port of all endpoints of a slice; `name` is the Service port's."""

    port: int | None = None
    name: str | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class EndpointSlice(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A discovery.k8s.io/v1 EndpointSlice."""

    address_type: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    endpoints: tuple[ServiceEndpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None
    api_version: str = "discovery.k8s.io/v1"
    kind: str = "EndpointSlice"

    @property
    def service(self) -> str:
        """The name of the Service that the slice belongs to; empty if it belongs to none."""
        return (self.metadata.labels or {}).get(SERVICE_LABEL, "")

    @property
    def ready_endpoints(self) -> tuple[ServiceEndpoint, ...]:
        """The endpoints that are ready."""
        return tuple(endpoint for endpoint in self.endpoints or () if endpoint.is_ready)


class HttpProbeHeader(msgspec.Struct, frozen=True, gc=False):
    """A header of an HTTP probe."""

    name: str
    value: str = ""


class HttpGetAction(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A GET that must be answered with 2xx or 3xx."""

    port: int | str
    path: str = "/"
    scheme: str = "HTTP"
    host: str = ""
    http_headers: tuple[HttpProbeHeader, ...] = ()


class TcpSocketAction(msgspec.Struct, frozen=True, gc=False):
    """A connection that must be accepted."""

    port: int | str
    host: str = ""


class GrpcAction(msgspec.Struct, frozen=True, gc=False):
    """A `grpc.health.v1` check that must answer SERVING."""

    port: int
    service: str | None = None


class ExecAction(msgspec.Struct, frozen=True, gc=False):
    """A command that must exit with 0."""

    command: tuple[str, ...] = ()


class Probe(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How and how often a container is checked."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    grpc: GrpcAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class ContainerPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A port that a container names."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A container: its ports, its probes, and whether an init container goes on running."""

    name: str = ""
    ports: tuple[ContainerPort, ...] | None = None
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    restart_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        """Whether, as an init container, it goes on running beside the others."""
        return self.restart_policy == "Always"

    def port_number(self, port: int | str) -> int | None:
        """Return the number of a port given as number or name; None if there is no such port."""
        if isinstance(port, str):
            named = {item.name: item.container_port for item in self.ports or () if item.name}
            port = named.get(port, int(port) if port.isdecimal() else 0)
        return port if 0 < port < 65536 else None


class ReadinessGate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A condition that another controller must set before a pod is ready."""

    condition_type: str = ""


class PodSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Where a pod runs, and its containers."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    host_network: bool = False
    readiness_gates: tuple[ReadinessGate, ...] | None = None


class PodCondition(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One condition of a pod."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0

    @property
    def is_true(self) -> bool:
        """Whether it holds."""
        return self.status == "True"


class PodIP(msgspec.Struct, frozen=True, gc=False):
    """One address of a pod or a host."""

    ip: str = ""


class PodStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod's phase, addresses and conditions."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(default=None, name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")
    conditions: tuple[PodCondition, ...] | None = None


class Pod(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A core/v1 Pod."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion has begun."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_terminal(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_ready(self) -> bool:
        """Whether its Ready condition is true."""
        found = self.condition("Ready")
        return found is not None and found.is_true

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses."""
        listed = tuple(entry.ip for entry in self.status.pod_ips or () if entry.ip)
        return listed or ((self.status.pod_ip,) if self.status.pod_ip else ())

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of a type."""
        return next((c for c in self.status.conditions or () if c.type == kind), None)
