"""Pods, their containers, volumes and status, as much of them as a kubelet reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from kubeloop.objects.core import (
    Container,
    ExecAction,
    HttpGetAction,
    PodCondition,
    PodIP,
    PodSpec,
    Probe,
    ReadinessGate,
)
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.owners import ObjectReference

PODS = GroupVersionResource("", "v1", "pods")
TERMINAL = ("Succeeded", "Failed")
_MODE = 0o644
R = TypeVar("R")


def named_objects(config_map: R | None, secret: R | None) -> Iterator[tuple[str, R]]:
    """Yield the kind of every object that is referred to, with the reference."""
    for kind, reference in (("ConfigMap", config_map), ("Secret", secret)):
        if reference is not None:
            yield kind, reference


class KeySelector(msgspec.Struct, frozen=True, gc=False):
    """One key of a ConfigMap or a Secret."""

    name: str = ""
    key: str = ""
    optional: bool | None = None


class ObjectFieldSelector(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A field of the pod itself."""

    field_path: str
    api_version: str = "v1"


class EnvVarSource(msgspec.Struct, rename="camel", frozen=True):
    """Where a variable's value comes from."""

    field_ref: ObjectFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(msgspec.Struct, rename="camel", frozen=True):
    """One environment variable."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class NamedSource(msgspec.Struct, frozen=True, gc=False):
    """A whole ConfigMap or Secret."""

    name: str = ""
    optional: bool | None = None


class EnvFromSource(msgspec.Struct, rename="camel", frozen=True):
    """Variables from all keys of an object."""

    prefix: str = ""
    config_map_ref: NamedSource | None = None
    secret_ref: NamedSource | None = None


class SleepAction(msgspec.Struct, frozen=True, gc=False):
    """A pause."""

    seconds: int = 0


class LifecycleHandler(msgspec.Struct, rename="camel", frozen=True):
    """A hook that runs before a stop."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(msgspec.Struct, rename="camel", frozen=True):
    """A container's hooks."""

    pre_stop: LifecycleHandler | None = None


class VolumeMount(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Where a volume appears."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""


class ContainerSpec(Container, rename="camel", frozen=True):
    """One container."""

    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()


class KeyToPath(msgspec.Struct, frozen=True, gc=False):
    """Where one key's file goes."""

    key: str
    path: str
    mode: int | None = None


class ObjectFiles(msgspec.Struct, rename="camel", frozen=True):
    """Files from a ConfigMap or a Secret."""

    name: str = ""
    items: tuple[KeyToPath, ...] | None = None
    default_mode: int = _MODE
    optional: bool | None = None


class SecretVolume(ObjectFiles, rename="camel", frozen=True):
    """Files from a Secret; its name is under another field."""

    name: str = msgspec.field(default="", name="secretName")


class DownwardItem(msgspec.Struct, rename="camel", frozen=True):
    """A file with one field of the pod."""

    path: str
    field_ref: ObjectFieldSelector | None = None
    mode: int | None = None


class DownwardVolume(msgspec.Struct, rename="camel", frozen=True):
    """Files with fields of the pod."""

    items: tuple[DownwardItem, ...] = ()
    default_mode: int = _MODE


class TokenProjection(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A file with a ServiceAccount token."""

    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class Projection(msgspec.Struct, rename="camel", frozen=True):
    """One source of a projected volume."""

    config_map: ObjectFiles | None = None
    secret: ObjectFiles | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: TokenProjection | None = None


class ProjectedVolume(msgspec.Struct, rename="camel", frozen=True):
    """Files from several sources."""

    sources: tuple[Projection, ...] = ()
    default_mode: int = _MODE


class HostPath(msgspec.Struct, frozen=True, gc=False):
    """A directory or file of the machine."""

    path: str


class EmptyDir(msgspec.Struct, frozen=True, gc=False):
    """A directory that lives as long as the pod."""


class Volume(msgspec.Struct, rename="camel", frozen=True):
    """One volume of a pod; without any known source it is of a kind that is not supported."""

    name: str
    config_map: ObjectFiles | None = None
    secret: SecretVolume | None = None
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None


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


class KubeletPodStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The status of a pod."""

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


class KubeletPodSpec(PodSpec, rename="camel", frozen=True):
    """The spec of a pod."""

    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()
    volumes: tuple[Volume, ...] = ()
    service_account_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    readiness_gates: tuple[ReadinessGate, ...] = ()


class KubeletPod(msgspec.Struct, rename="camel", frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: KubeletPodSpec = KubeletPodSpec()
    status: KubeletPodStatus = KubeletPodStatus()

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
        """The pod's hostname."""
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
