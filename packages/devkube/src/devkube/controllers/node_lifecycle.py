"""The node lifecycle controller: a node whose lease expired is not ready, and its pods are not either.

This much makes a partition visible: the node shows as NotReady, takes no new pods, and its pods leave
the EndpointSlices. There are no taints, no evictions, and pods of a deleted node stay.
"""

from __future__ import annotations

import datetime as dt

from devkube.controllers.context import BY_NODE, ControllerSpec, SharedInformers
from devkube.controllers.objects import (
    LEASE_NAMESPACE,
    LEASES,
    NODES,
    PODS,
    NodeLease,
    SlimNode,
    SlimPod,
)
from devkube.controllers.pod_control import patch_living
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import format_time, parse_time

NAME = "nodelifecycle"
GRACE_SECONDS = 50.0
_REASON, _MESSAGE = "NodeStatusUnknown", "Kubelet stopped posting node status."


def expires_in(lease: NodeLease | None, grace: float, now: dt.datetime) -> float | None:
    """Return the seconds until a node counts as lost, 0 if it is; None if it has no lease.

    A node that never had a lease has no kubelet: it is an object that a user made, and stays so.
    """
    if lease is None or not lease.spec.renew_time:
        return None
    due = parse_time(lease.spec.renew_time) + dt.timedelta(seconds=grace)
    return max(0.0, (due - now).total_seconds())


class NodeReconciler:
    """Compares the lease of one node with the clock."""

    def __init__(self, shared: SharedInformers, *, grace: float) -> None:
        self._shared = shared
        self._grace = grace
        self._cache = shared.informer(NODES, SlimNode)
        self.leases = shared.factory.informer(LEASES, NodeLease, namespace=LEASE_NAMESPACE)

    async def __call__(self, request: Request) -> Result | None:
        """Mark a lost node and its pods."""
        node = self._cache.lister.find("", request.name)
        if node is None:
            return None
        lease = self.leases.lister.find(LEASE_NAMESPACE, request.name)
        now = self._shared.clock.now()
        wait = expires_in(lease, self._grace, now)
        if wait:
            return Result(requeue_after=wait)
        if wait is not None:
            await self._mark_lost(node, format_time(now))
        return None

    async def _mark_lost(self, node: SlimNode, stamp: str) -> None:
        if node.ready is None or node.ready.status != "Unknown":
            unknown = {"status": "Unknown", "reason": _REASON, "message": _MESSAGE}
            await self._set_ready(NODES, node, {**unknown, "lastTransitionTime": stamp})
        # The kubelet cannot say whether they still answer, so no traffic should go there.
        for pod in self._shared.pods.store.by_index(BY_NODE, node.metadata.name):
            if pod.is_ready and not pod.is_deleting:
                await self._set_ready(PODS, pod, {"status": "False", "lastTransitionTime": stamp})

    async def _set_ready(
        self, resource: GroupVersionResource, obj: SlimNode | SlimPod, condition: JsonObject
    ) -> None:
        part = self._shared.resource(resource).subresource("status")
        await patch_living(part, obj, {"status": {"conditions": [{"type": "Ready", **condition}]}})


def make(shared: SharedInformers, *, grace: float = GRACE_SECONDS) -> ControllerSpec:
    """Return the controller."""
    reconciler = NodeReconciler(shared, grace=grace)
    part = ControllerSpec.of(NAME, reconciler)
    part.controller.watch(shared.informer(NODES, SlimNode))
    # A renewal needs no reconcile: the requeue after the last one finds it.
    part.controller.watch(
        reconciler.leases,
        mapping=map_func(lambda lease: [Request("", lease.metadata.name)]),
        predicates=[by_kind(updated=lambda note: not note.old.spec.renew_time)],
    )
    return part
