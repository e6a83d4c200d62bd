"""Pods."""

from __future__ import annotations

import msgspec

from elasti.devcluster.kubelet.objects.containers import Container
from elasti.devcluster.kubelet.objects.status import PodStatus
from elasti.devcluster.kubelet.objects.volumes import Volume
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.references import ObjectReference

PODS = GroupVersionResource("", "v1", "pods")
POD = GroupVersionKind("", "v1", "Pod")
TERMINAL = ("Succeeded", "Failed")


class ReadinessGate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A condition that somebody else must set before the pod is ready."""

    condition_type: str


class HostAlias(msgspec.Struct, frozen=True):
    """A line of the hosts file."""

    ip: str
    hostnames: tuple[str, ...] = ()


class PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """What a pod should be."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    readiness_gates: tuple[ReadinessGate, ...] = ()
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""
    host_aliases: tuple[HostAlias, ...] = ()


class Pod(msgspec.Struct, rename="camel", frozen=True):
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

    def container(self, name: str) -> Container:
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
