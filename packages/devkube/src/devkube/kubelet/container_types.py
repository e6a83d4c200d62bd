"""Containers, probes, hooks and volumes, as much of them as a kubelet reads."""

from __future__ import annotations

import msgspec

from kubeloop.objects.core import Container, ExecAction, HttpGetAction, Probe

_MODE = 0o644


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
    """What to do before a stop."""

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
