"""The Structs that benchmarks decode pods into."""

from __future__ import annotations

import msgspec

from kubeloop.objects.meta import ObjectMeta, SlimMeta


class SlimCondition(msgspec.Struct, gc=False):
    """Type and status of a condition."""

    type: str
    status: str


class SlimSpec(msgspec.Struct, rename="camel", gc=False):
    """Where a pod runs."""

    node_name: str = ""


class SlimStatus(msgspec.Struct, rename="camel", gc=False):
    """What a pod does."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[SlimCondition, ...] | None = None


class SlimPod(msgspec.Struct, gc=False):
    """A pod as a controller of endpoints would want it."""

    metadata: SlimMeta
    spec: SlimSpec = msgspec.field(default_factory=SlimSpec)
    status: SlimStatus = msgspec.field(default_factory=SlimStatus)


class FullPort(msgspec.Struct, rename="camel", gc=False):
    """A container's port."""

    container_port: int
    name: str = ""
    protocol: str = ""


class FullEnv(msgspec.Struct, rename="camel", gc=False):
    """A variable."""

    name: str
    value: str = ""


class FullMount(msgspec.Struct, rename="camel", gc=False):
    """Where a volume is mounted."""

    name: str
    mount_path: str
    read_only: bool = False


class FullHttpGet(msgspec.Struct, rename="camel", gc=False):
    """A probe's request."""

    path: str = ""
    port: int | str = 0
    scheme: str = ""


class FullProbe(msgspec.Struct, rename="camel", gc=False):
    """A probe."""

    http_get: FullHttpGet | None = None
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0


class FullResources(msgspec.Struct, gc=False):
    """Requests and limits."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class FullContainer(msgspec.Struct, rename="camel", gc=False):
    """A container."""

    name: str
    image: str = ""
    args: tuple[str, ...] = ()
    ports: tuple[FullPort, ...] = ()
    env: tuple[FullEnv, ...] = ()
    resources: FullResources | None = None
    volume_mounts: tuple[FullMount, ...] = ()
    readiness_probe: FullProbe | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""


class FullToleration(msgspec.Struct, rename="camel", gc=False):
    """A toleration."""

    key: str = ""
    operator: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class FullSpec(msgspec.Struct, rename="camel", gc=False):
    """Everything that the generated pods specify, but volumes' sources."""

    containers: tuple[FullContainer, ...] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    dns_policy: str = ""
    service_account_name: str = ""
    node_name: str = ""
    scheduler_name: str = ""
    tolerations: tuple[FullToleration, ...] = ()
    priority: int | None = None
    enable_service_links: bool | None = None
    preemption_policy: str = ""


class FullCondition(msgspec.Struct, rename="camel", gc=False):
    """A condition."""

    type: str
    status: str
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class FullContainerStatus(msgspec.Struct, rename="camel", gc=False):
    """What a container does."""

    name: str
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None


class FullStatus(msgspec.Struct, rename="camel", gc=False):
    """What a pod does."""

    phase: str = ""
    conditions: tuple[FullCondition, ...] = ()
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str | None = None
    container_statuses: tuple[FullContainerStatus, ...] = ()
    qos_class: str = ""


class FullPod(msgspec.Struct, rename="camel", gc=False):
    """A pod with nearly everything that is in it."""

    metadata: ObjectMeta
    api_version: str = ""
    kind: str = ""
    spec: FullSpec = msgspec.field(default_factory=FullSpec)
    status: FullStatus = msgspec.field(default_factory=FullStatus)
