"""Nodes and their leases, as much of them as controllers read."""

from __future__ import annotations

import msgspec

from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import ObjectMeta

NODES = GroupVersionResource("", "v1", "nodes")
NODE = GroupVersionKind("", "v1", "Node")
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
LEASE_NAMESPACE = "kube-node-lease"


class Taint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A mark that keeps pods away which do not tolerate it."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What keeps pods away from a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeCondition(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a node says of itself."""

    conditions: tuple[NodeCondition, ...] | None = None
    allocatable: dict[str, str | int] | None = None


class Node(msgspec.Struct, rename="camel", frozen=True, gc=False):
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


class LeaseSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """When a node was last heard of."""

    renew_time: str | None = None
    lease_duration_seconds: int | None = None


class Lease(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node's lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
