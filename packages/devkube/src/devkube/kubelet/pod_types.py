"""Pods and their status, as a kubelet reads and writes them."""

from __future__ import annotations

import msgspec

from devkube.kubelet.container_types import ContainerSpec, Volume
from kubeloop.objects.core import PodCondition, PodIP, ReadinessGate
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.owners import ObjectReference

PODS = GroupVersionResource("", "v1", "pods")
TERMINAL = ("Succeeded", "Failed")


class ContainerStateWaiting(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Not started yet, or not again."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(
    msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False
):
    """Started."""

    started_at: str | None = None


class ContainerStateTerminated(
    msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False
):
    """Ended."""

    exit_code: int
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of three."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel", frozen=True):
    """One container's status."""

    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None


class PodStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """What became of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="hostIPs")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    start_time: str | None = None
    observed_generation: int = 0
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def container(self, name: str) -> ContainerStatus | None:
        """Return a container's status by its name."""
        every = (*self.init_container_statuses, *self.container_statuses)
        return next((item for item in every if item.name == name), None)

    def condition(self, kind: str) -> PodCondition | None:
        """Return a condition by its type."""
        return next((item for item in self.conditions if item.type == kind), None)


class PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """What a pod should be."""

    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    service_account_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    readiness_gates: tuple[ReadinessGate, ...] = ()
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""


class KubeletPod(msgspec.Struct, rename="camel", frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def uid(self) -> str:
        """The pod's identity."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def title(self) -> str:
        """The pod as messages name it."""
        return f"{self.metadata.name}_{self.metadata.namespace}({self.metadata.uid})"

    @property
    def is_deleted(self) -> bool:
        """Whether it was asked to go."""
        return self.metadata.deletion_timestamp is not None

    @property
    def hostname(self) -> str:
        """What the pod calls its machine."""
        return (self.spec.hostname or self.metadata.name)[:63].rstrip("-.")

    def container(self, name: str) -> ContainerSpec:
        """Return a container by its name. Raises KeyError."""
        for container in (*self.spec.init_containers, *self.spec.containers):
            if container.name == name:
                return container
        raise KeyError(name)

    def reference(self, container: str = "") -> ObjectReference:
        """Refer to the pod, or to one container in it, as events do."""
        return ObjectReference(
            api_version="v1",
            kind="Pod",
            namespace=self.metadata.namespace,
            name=self.metadata.name,
            uid=self.metadata.uid,
            resource_version=self.metadata.resource_version,
            field_path=self._field_path(container) if container else "",
        )

    def _field_path(self, container: str) -> str:
        group = "containers"
        if any(item.name == container for item in self.spec.init_containers):
            group = "initContainers"
        return f"spec.{group}{{{container}}}"
