"""Services and EndpointSlices, as much of them as a proxy reads."""

from __future__ import annotations

import msgspec

from kubeloop.objects.meta import LabeledMeta

SERVICE_NAME_LABEL = "kubernetes.io/service-name"


class ServicePort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One port of a Service."""

    port: int
    name: str = ""
    protocol: str = "TCP"


class ClientIPConfig(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How long a client stays with its endpoint."""

    timeout_seconds: int = 10_800


class SessionAffinityConfig(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The settings of session affinity."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a proxy reads of a Service's spec."""

    type: str = "ClusterIP"
    cluster_i_ps: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")
    ports: tuple[ServicePort, ...] = ()
    session_affinity: str = "None"
    session_affinity_config: SessionAffinityConfig | None = None
    internal_traffic_policy: str = "Cluster"


class Service(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Service."""

    metadata: LabeledMeta
    spec: ServiceSpec = ServiceSpec()


class EndpointConditions(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Whether an endpoint takes traffic; what is left out has the API's meaning."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def is_ready(self) -> bool:
        """Whether new connections should come here."""
        return self.ready is not False

    @property
    def is_last_resort(self) -> bool:
        """Whether it is going away but still serves."""
        return bool(self.terminating) and bool(self.serving)


class Endpoint(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One endpoint of a slice."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    node_name: str | None = None


class EndpointPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One port of a slice; it holds for all its endpoints."""

    name: str | None = ""
    port: int | None = None
    protocol: str | None = "TCP"


class EndpointSlice(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An EndpointSlice."""

    metadata: LabeledMeta
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def service_key(self) -> str:
        """`namespace/name` of the Service that the slice belongs to; empty where it has none."""
        name = (self.metadata.labels or {}).get(SERVICE_NAME_LABEL)
        return f"{self.metadata.namespace}/{name}" if name else ""
