"""Pods, as much of them as controllers read, and the questions that several of them ask."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.owners import controller_of
from kubeloop.objects.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable

PODS = GroupVersionResource("", "v1", "pods")
_TERMINAL = ("Succeeded", "Failed")


class PodCondition(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One condition of a pod."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ContainerPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A port that a container names."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What matters of a container: its ports, and whether an init container stays."""

    name: str = ""
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None


class Toleration(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A taint that a pod does not mind."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What controllers read of a pod's spec."""

    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[JsonObject, ...] | None = None


class PodIP(msgspec.Struct, frozen=True, gc=False):
    """One address of a pod."""

    ip: str = ""


class ContainerStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How often a container was started again."""

    restart_count: int = 0


class PodStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What controllers read of a pod's status."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(default=None, name="podIPs")
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion has begun."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_terminal(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.status.phase in _TERMINAL

    @property
    def is_active(self) -> bool:
        """Whether it counts as a replica."""
        return not self.is_deleting and not self.is_terminal

    @property
    def is_ready(self) -> bool:
        """Whether its Ready condition is true."""
        found = self.condition("Ready")
        return found is not None and found.status == "True"

    @property
    def controller_uid(self) -> str:
        """The uid of the object that controls it; empty where none does."""
        owner = controller_of(self.metadata.owner_references or ())
        return owner.uid if owner is not None else ""

    @property
    def restarts(self) -> int:
        """The restarts of its most restless container."""
        return max((s.restart_count for s in self.status.container_statuses or ()), default=0)

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of a type."""
        return next((c for c in self.status.conditions or () if c.type == kind), None)

    def ready_since(self) -> dt.datetime | None:
        """Return since when it is ready; None where it is not, or nobody wrote it down."""
        found = self.condition("Ready")
        if found is None or found.status != "True" or not found.last_transition_time:
            return None
        return parse_time(found.last_transition_time)

    def available_in(self, min_ready_seconds: int, now: dt.datetime) -> float | None:
        """Return the seconds until it counts as available, 0 where it does; None if not ready."""
        if not self.is_ready:
            return None
        if min_ready_seconds == 0:
            return 0.0
        since = self.ready_since()
        if since is None:
            return None
        due = since + dt.timedelta(seconds=min_ready_seconds)
        return max(0.0, (due - now).total_seconds())


def is_available(pod: Pod, min_ready_seconds: int, now: dt.datetime) -> bool:
    """Whether a pod has been ready for long enough."""
    return pod.available_in(min_ready_seconds, now) == 0.0


def next_availability(
    pods: Iterable[Pod], min_ready_seconds: int, now: dt.datetime
) -> float | None:
    """Return the seconds until the next of them becomes available; None where none will."""
    waits = [pod.available_in(min_ready_seconds, now) for pod in pods]
    return min((wait for wait in waits if wait), default=None)
