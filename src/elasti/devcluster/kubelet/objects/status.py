"""A pod's status, as it is read and as it is written."""

from __future__ import annotations

import msgspec


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Not started yet, or not again."""

    reason: str = ""
    message: str = ""


class Running(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """Started."""

    started_at: str | None = None


class Terminated(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """Ended."""

    exit_code: int
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


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


class Condition(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """One condition of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0

    @property
    def is_true(self) -> bool:
        """Whether it holds."""
        return self.status == "True"


class Address(msgspec.Struct, frozen=True, gc=False):
    """One address of a pod or a host."""

    ip: str


class PodStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """What became of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: tuple[Address, ...] = msgspec.field(default=(), name="hostIPs")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[Address, ...] = msgspec.field(default=(), name="podIPs")
    start_time: str | None = None
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()

    def container(self, name: str) -> ContainerStatus | None:
        """Return a container's status by its name."""
        every = (*self.init_container_statuses, *self.container_statuses)
        return next((item for item in every if item.name == name), None)

    def condition(self, kind: str) -> Condition | None:
        """Return a condition by its type."""
        return next((item for item in self.conditions if item.type == kind), None)
