"""Volumes: where their files come from."""

from __future__ import annotations

import msgspec

from elasti.devcluster.kubelet.objects.containers import FieldSelector, ResourceSelector

_MODE = 0o644


class KeyToPath(msgspec.Struct, frozen=True, gc=False):
    """Where one key's file goes."""

    key: str
    path: str
    mode: int | None = None


class ConfigMapVolume(msgspec.Struct, rename="camel", frozen=True):
    """Files from a ConfigMap."""

    name: str = ""
    items: tuple[KeyToPath, ...] | None = None
    default_mode: int = _MODE
    optional: bool | None = None


class SecretVolume(msgspec.Struct, rename="camel", frozen=True):
    """Files from a Secret."""

    secret_name: str = ""
    items: tuple[KeyToPath, ...] | None = None
    default_mode: int = _MODE
    optional: bool | None = None


class DownwardItem(msgspec.Struct, rename="camel", frozen=True):
    """A file with one field of the pod."""

    path: str
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None
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


class SecretProjection(msgspec.Struct, frozen=True):
    """Files from a Secret, among others."""

    name: str = ""
    items: tuple[KeyToPath, ...] | None = None
    optional: bool | None = None


class Projection(msgspec.Struct, rename="camel", frozen=True):
    """One source of a projected volume."""

    config_map: SecretProjection | None = None
    secret: SecretProjection | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: TokenProjection | None = None


class ProjectedVolume(msgspec.Struct, rename="camel", frozen=True):
    """Files from several sources."""

    sources: tuple[Projection, ...] = ()
    default_mode: int = _MODE


class HostPath(msgspec.Struct, frozen=True, gc=False):
    """A directory or file of the machine."""

    path: str
    type: str = ""


class EmptyDir(msgspec.Struct, frozen=True, gc=False):
    """A directory that lives as long as the pod."""

    medium: str = ""


class Volume(msgspec.Struct, rename="camel", frozen=True):
    """One volume of a pod; without any known source it is of a kind that is not supported."""

    name: str
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    empty_dir: EmptyDir | None = None
    host_path: HostPath | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None
