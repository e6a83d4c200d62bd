"""The node lifecycle controller: marks nodes whose lease expired, and their pods not ready."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from devkube.controllers.context import BY_NODE, ControllerSpec
from devkube.controllers.objects import (
    LEASE_NAMESPACE,
    LEASES,
    NODE,
    NODES,
    PODS,
    NodeCondition,
    NodeLease,
    SlimNode,
    Taint,
)
from kubeloop.client.errors import NotFound
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.informer.handlers import Updated
from kubeloop.objects.patches import MergePatch, StrategicMergePatch
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    from devkube.controllers.context import SharedInformers
    from devkube.controllers.objects import SlimPod
    from kubeloop.informer.handlers import Notification


_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDON = "node.kubernetes.io/unschedulable"
_OURS = (_NOT_READY, _UNREACHABLE, _CORDON)
_REASON, _MESSAGE = "NodeStatusUnknown", "Kubelet stopped posting node status."


def silent_in(lease: NodeLease | None, grace: float, now: dt.datetime) -> float | None:
    """Return the seconds until a node counts as lost, 0 where it is; None where it has no lease.

    A node that never had a lease has no kubelet: it is an object that somebody made, and stays as
    they made it.
    """
    if lease is None or not lease.spec.renew_time:
        return None
    due = parse_time(lease.spec.renew_time) + dt.timedelta(seconds=grace)
    return max(0.0, (due - now).total_seconds())


def lost_conditions(node: SlimNode, now: dt.datetime) -> tuple[NodeCondition, ...] | None:
    """Return the conditions of a lost node: nothing is known any more; None where they are so."""
    present = node.status.conditions or ()
    if present and all(c.status == "Unknown" for c in present) and node.ready is not None:
        return None
    stamp = format_time(now)
    kinds = {c.type: c for c in present}
    kinds.setdefault("Ready", NodeCondition(type="Ready", status=""))
    return tuple(_unknown(condition, stamp) for condition in kinds.values())


def _unknown(condition: NodeCondition, stamp: str) -> NodeCondition:
    if condition.status == "Unknown":
        return condition
    return NodeCondition(
        type=condition.type,
        status="Unknown",
        reason=_REASON,
        message=_MESSAGE,
        last_heartbeat_time=condition.last_heartbeat_time,
        last_transition_time=stamp,
    )


def wanted_taints(node: SlimNode, now: dt.datetime) -> tuple[Taint, ...] | None:
    """Return the taints that a node should have; None where it has them.

    Those of others stay. A node that is not ready, or not heard of, takes no new pods; nothing here
    evicts the pods that it has.
    """
    present = node.spec.taints or ()
    marks = {(t.key, t.effect): t for t in present}
    wanted = {(t.key, t.effect): t for t in present if t.key not in _OURS}
    stamp = format_time(now)
    for key, effect in _marks(node):
        wanted[key, effect] = marks.get((key, effect)) or Taint(
            key=key, effect=effect, time_added=stamp
        )
    return tuple(wanted.values()) if wanted.keys() != marks.keys() else None


def _marks(node: SlimNode) -> list[tuple[str, str]]:
    marks = [(_CORDON, "NoSchedule")] if node.spec.unschedulable else []
    ready = node.ready
    if ready is not None and ready.status != "True":
        key = _UNREACHABLE if ready.status == "Unknown" else _NOT_READY
        marks += [(key, "NoSchedule"), (key, "NoExecute")]
    return marks


NAME = "nodelifecycle"
GRACE_SECONDS = 50.0


class NodeReconciler:
    """Judges one node."""

    def __init__(self, shared: SharedInformers, *, grace: float = GRACE_SECONDS) -> None:
        self._shared = shared
        self._grace = grace
        self._cache = shared.informer(NODES, SlimNode)
        self.leases = shared.factory.informer(LEASES, NodeLease, namespace=LEASE_NAMESPACE)
        self._nodes = shared.resource(NODES)
        self._pods = shared.resource(PODS)
        self._events = shared.recorder.events("node-controller", NODE)

    async def __call__(self, request: Request) -> Result | None:
        """Compare the lease with the clock, the taints with the condition."""
        node = self._cache.lister.find("", request.name)
        if node is None or node.metadata.deletion_timestamp is not None:
            return None
        lease = self.leases.lister.find(LEASE_NAMESPACE, request.name)
        wait = silent_in(lease, self._grace, self._shared.clock.now())
        if wait == 0.0 and await self._mark_lost(node):
            return None  # the change brings another look
        await self._set_taints(node)
        if node.ready is not None and node.ready.status != "True":
            await self._mark_pods(request.name)
        return Result(requeue_after=wait) if wait else None

    async def _mark_lost(self, node: SlimNode) -> bool:
        conditions = lost_conditions(node, self._shared.clock.now())
        if conditions is None:
            return False
        document = {
            "metadata": {"uid": node.metadata.uid},
            "status": {"conditions": msgspec.to_builtins(conditions)},
        }
        try:
            await self._nodes.subresource("status").patch(node.metadata.name, MergePatch(document))
        except NotFound:
            return True
        name = node.metadata.name
        self._events.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        return True

    async def _set_taints(self, node: SlimNode) -> None:
        taints = wanted_taints(node, self._shared.clock.now())
        if taints is None:
            return
        meta = node.metadata
        document = {
            "metadata": {"resourceVersion": meta.resource_version},
            "spec": {"taints": msgspec.to_builtins(taints) or None},
        }
        try:
            await self._nodes.patch(meta.name, MergePatch(document))
        except NotFound:
            return

    async def _mark_pods(self, node: str) -> None:
        """Take the node's pods out of service: nobody can say that they still answer."""
        stamp = format_time(self._shared.clock.now())
        for pod in self._shared.pods.store.by_index(BY_NODE, node):
            if pod.is_ready and not pod.is_deleting:
                await self._mark_pod(pod, stamp)

    async def _mark_pod(self, pod: SlimPod, stamp: str) -> None:
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": stamp}
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        try:
            await self._pods.subresource("status").patch(
                pod.metadata.name, StrategicMergePatch(patch), namespace=pod.metadata.namespace
            )
        except NotFound:
            return


def make(shared: SharedInformers, *, grace: float = GRACE_SECONDS) -> ControllerSpec:
    """Return the controller."""
    reconciler = NodeReconciler(shared, grace=grace)
    part = ControllerSpec.of(NAME, reconciler)
    part.controller.watch(shared.informer(NODES, SlimNode))
    # A renewed lease is no news: the timer of the last look finds it.
    part.controller.watch(
        reconciler.leases,
        mapping=map_func(lambda lease: [Request("", lease.metadata.name)]),
        predicates=[_is_first_sign],
    )
    return part


def _is_first_sign(note: Notification[NodeLease]) -> bool:
    if isinstance(note, Updated):
        return not note.old.spec.renew_time
    return True
