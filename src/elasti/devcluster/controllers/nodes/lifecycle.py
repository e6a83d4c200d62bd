"""The node controller: a node that is not heard of is marked, and its pods with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers.hub import BY_NODE
from elasti.devcluster.controllers.nodes.health import (
    lost_conditions,
    silent_in,
    wanted_taints,
)
from elasti.devcluster.controllers.nodes.objects import (
    LEASE_NAMESPACE,
    LEASES,
    NODE,
    NODES,
    Lease,
    Node,
)
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pods import PODS
from kubeloop.client.errors import NotFound
from kubeloop.controller.mapping import map_func
from kubeloop.controller.reconcile import Request, Result
from kubeloop.informer.notifications import Updated
from kubeloop.objects.patches import MergePatch, StrategicMergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.informer.notifications import Notification

NAME = "nodelifecycle"
GRACE_SECONDS = 50.0


class NodeReconciler:
    """Judges one node."""

    def __init__(self, hub: Hub, *, grace: float = GRACE_SECONDS) -> None:
        self._hub = hub
        self._grace = grace
        self._cache = hub.informer(NODES, Node)
        self.leases = hub.factory.informer(LEASES, Lease, namespace=LEASE_NAMESPACE)
        self._nodes = hub.resource(NODES)
        self._pods = hub.resource(PODS)
        self._voice = hub.recorder.voice("node-controller", NODE)

    async def __call__(self, request: Request) -> Result | None:
        """Compare the lease with the clock, the taints with the condition."""
        node = self._cache.lister.find("", request.name)
        if node is None or node.metadata.deletion_timestamp is not None:
            return None
        lease = self.leases.lister.find(LEASE_NAMESPACE, request.name)
        wait = silent_in(lease, self._grace, self._hub.clock.now())
        if wait == 0.0 and await self._mark_lost(node):
            return None  # the change brings another look
        await self._set_taints(node)
        if node.ready is not None and node.ready.status != "True":
            await self._mark_pods(request.name)
        return Result(requeue_after=wait) if wait else None

    async def _mark_lost(self, node: Node) -> bool:
        conditions = lost_conditions(node, self._hub.clock.now())
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
        self._voice.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        return True

    async def _set_taints(self, node: Node) -> None:
        taints = wanted_taints(node, self._hub.clock.now())
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
        stamp = format_time(self._hub.clock.now())
        for pod in self._hub.pods.store.by_index(BY_NODE, node):
            if pod.is_ready and not pod.is_deleting:
                await self._mark_pod(pod, stamp)

    async def _mark_pod(self, pod: Pod, stamp: str) -> None:
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": stamp}
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        try:
            await self._pods.subresource("status").patch(
                pod.metadata.name, StrategicMergePatch(patch), namespace=pod.metadata.namespace
            )
        except NotFound:
            return


def make(hub: Hub, *, grace: float = GRACE_SECONDS) -> Part:
    """Return the controller."""
    reconciler = NodeReconciler(hub, grace=grace)
    part = Part.of(NAME, reconciler)
    part.controller.watch(hub.informer(NODES, Node))
    # A renewed lease is no news: the timer of the last look finds it.
    part.controller.watch(
        reconciler.leases,
        mapping=map_func(lambda lease: [Request("", lease.metadata.name)]),
        predicates=[_is_first_sign],
    )
    return part


def _is_first_sign(note: Notification[Lease]) -> bool:
    if isinstance(note, Updated):
        return not note.old.spec.renew_time
    return True
