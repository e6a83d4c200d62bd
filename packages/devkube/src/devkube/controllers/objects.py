"""Pods, nodes and node leases, as much of them as controllers read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import msgspec

from kubeloop.objects.core import Pod, PodSpec
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.times import parse_time

PODS = GroupVersionResource("", "v1", "pods")
NODES = GroupVersionResource("", "v1", "nodes")
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
LEASE_NAMESPACE = "kube-node-lease"


class SlimPodSpec(PodSpec, rename="camel", frozen=True, gc=False):
    """What controllers and the scheduler read of a pod's spec."""

    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    scheduling_gates: tuple[JsonObject, ...] | None = None


class SlimPod(Pod, rename="camel", frozen=True, gc=False):
    """A pod."""

    spec: SlimPodSpec = SlimPodSpec()

    @property
    def is_active(self) -> bool:
        """Whether it counts as a replica."""
        return not self.is_deleting and not self.is_terminal

    def available_in(self, min_ready_seconds: int, now: dt.datetime) -> float | None:
        """Return the seconds until it counts as available, 0 where it does; None if not ready."""
        ready = self.condition("Ready")
        if ready is None or not ready.is_true:
            return None
        if min_ready_seconds == 0:
            return 0.0
        if not ready.last_transition_time:
            return None
        due = parse_time(ready.last_transition_time) + dt.timedelta(seconds=min_ready_seconds)
        return max(0.0, (due - now).total_seconds())


def is_available(pod: SlimPod, min_ready_seconds: int, now: dt.datetime) -> bool:
    """Whether a pod has been ready for long enough."""
    return pod.available_in(min_ready_seconds, now) == 0.0


def next_availability(
    pods: Iterable[SlimPod], min_ready_seconds: int, now: dt.datetime
) -> float | None:
    """Return the seconds until the next of them becomes available; None where none will."""
    waits = [pod.available_in(min_ready_seconds, now) for pod in pods]
    return min((wait for wait in waits if wait), default=None)


class NodeSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What keeps pods away from a node."""

    unschedulable: bool = False


class NodeCondition(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a node says of itself."""

    conditions: tuple[NodeCondition, ...] | None = None
    allocatable: dict[str, str | int] | None = None


class SlimNode(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> NodeCondition | None:
        """The Ready condition."""
        return next((c for c in self.status.conditions or () if c.type == "Ready"), None)

    @property
    def is_ready(self) -> bool:
        """Whether it says that it can run pods."""
        return self.ready is not None and self.ready.status == "True"


class NodeLeaseSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """When a node was last heard of."""

    renew_time: str | None = None


class NodeLease(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node's lease."""

    metadata: ObjectMeta
    spec: NodeLeaseSpec = NodeLeaseSpec()
