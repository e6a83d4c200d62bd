"""Containers: what to run, how to ask it, what to tell it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Port: TypeAlias = int | str
"""A number, or the name of one of the container's ports."""


class KeySelector(msgspec.Struct, frozen=True, gc=False):
    """One key of a ConfigMap or a Secret."""

    name: str = ""
    key: str = ""
    optional: bool | None = None


class FieldSelector(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A field of the pod itself."""

    field_path: str
    api_version: str = "v1"


class ResourceSelector(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A request or limit of a container."""

    resource: str
    container_name: str = ""
    divisor: str | int = "0"


class EnvSource(msgspec.Struct, rename="camel", frozen=True):
    """Where a variable's value comes from."""

    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(msgspec.Struct, rename="camel", frozen=True):
    """One environment variable."""

    name: str
    value: str = ""
    value_from: EnvSource | None = None


class NamedSource(msgspec.Struct, frozen=True, gc=False):
    """A whole ConfigMap or Secret."""

    name: str = ""
    optional: bool | None = None


class EnvFrom(msgspec.Struct, rename="camel", frozen=True):
    """Variables from all keys of an object."""

    prefix: str = ""
    config_map_ref: NamedSource | None = None
    secret_ref: NamedSource | None = None


class Header(msgspec.Struct, frozen=True, gc=False):
    """One header of a probe's request."""

    name: str
    value: str = ""


class HttpGet(msgspec.Struct, rename="camel", frozen=True):
    """A GET that must succeed."""

    port: Port
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[Header, ...] = ()


class TcpSocket(msgspec.Struct, frozen=True, gc=False):
    """A connection that must be accepted."""

    port: Port
    host: str = ""


class Exec(msgspec.Struct, frozen=True):
    """A command that must exit with 0."""

    command: tuple[str, ...] = ()


class Grpc(msgspec.Struct, frozen=True, gc=False):
    """A gRPC health check."""

    port: int
    service: str | None = None


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """A pause."""

    seconds: int = 0


class Probe(msgspec.Struct, rename="camel", frozen=True):
    """How and how often to ask."""

    exec: Exec | None = None
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    grpc: Grpc | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Hook(msgspec.Struct, rename="camel", frozen=True):
    """What to do after a start, or before a stop."""

    exec: Exec | None = None
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    sleep: Sleep | None = None


class Lifecycle(msgspec.Struct, rename="camel", frozen=True):
    """A container's hooks."""

    post_start: Hook | None = None
    pre_stop: Hook | None = None


class ContainerPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A port that the container says it listens on."""

    container_port: int
    name: str = ""


class VolumeMount(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Where a volume appears."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""


class Resources(msgspec.Struct, frozen=True):
    """Requests and limits; shown to containers that ask, never enforced."""

    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}


class Container(msgspec.Struct, rename="camel", frozen=True):
    """One container."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    resources: Resources = Resources()
    volume_mounts: tuple[VolumeMount, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    restart_policy: str = ""
    termination_message_policy: str = "File"

    @property
    def is_sidecar(self) -> bool:
        """Whether, as an init container, it goes on running beside the others."""
        return self.restart_policy == "Always"
