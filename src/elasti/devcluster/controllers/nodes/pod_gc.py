"""The pod garbage collector: pods whose node is gone go too.

A node may be made again under the same name, by a kubelet that was restarted. So its pods are given
some time, and the server itself is asked, before anything is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from elasti.devcluster.controllers.hub import BY_NODE
from elasti.devcluster.controllers.nodes.objects import NODES, Node
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pods import PODS
from kubeloop.client.deletion import Preconditions
from kubeloop.client.errors import Conflict, NotFound
from kubeloop.controller.mapping import map_func
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request, Result
from kubeloop.informer.notifications import Deleted, Updated
from kubeloop.objects.patches import StrategicMergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.informer.notifications import Notification

NAME = "podgc"
QUARANTINE_SECONDS = 40.0


class PodCollector:
    """Looks after the pods of one node that may be gone; requests are nodes' names."""

    def __init__(self, hub: Hub, *, quarantine: float = QUARANTINE_SECONDS) -> None:
        self._hub = hub
        self._quarantine = quarantine
        self._cache = hub.informer(NODES, Node)
        self._nodes = hub.resource(NODES)
        self._pods = hub.resource(PODS)
        self._missing_since: dict[str, float] = {}

    async def __call__(self, request: Request) -> Result | None:
        """Delete the node's pods once it has been missing for long enough."""
        pods = self._hub.pods.store.by_index(BY_NODE, request.name)
        if not pods or self._cache.lister.find("", request.name) is not None:
            self._missing_since.pop(request.name, None)
            return None
        now = asyncio.get_running_loop().time()
        since = self._missing_since.setdefault(request.name, now)
        if now < since + self._quarantine:
            return Result(requeue_after=since + self._quarantine - now)
        if await self._is_gone(request.name):
            for pod in pods:
                await self._delete(pod)
        return None

    async def _is_gone(self, node: str) -> bool:
        try:
            await self._nodes.get(node)
        except NotFound:
            return True
        return False

    async def _delete(self, pod: Pod) -> None:
        meta = pod.metadata
        with contextlib.suppress(NotFound, Conflict):
            if not pod.is_terminal:
                await self._mark_failed(pod)
            await self._pods.delete(
                meta.name,
                namespace=meta.namespace,
                preconditions=Preconditions(uid=meta.uid),
                grace_period=0,
            )

    async def _mark_failed(self, pod: Pod) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists",
            "lastTransitionTime": format_time(self._hub.clock.now()),
        }
        patch = {
            "metadata": {"uid": pod.metadata.uid},
            "status": {"phase": "Failed", "conditions": [condition]},
        }
        await self._pods.subresource("status").patch(
            pod.metadata.name, StrategicMergePatch(patch), namespace=pod.metadata.namespace
        )


def make(hub: Hub, *, quarantine: float = QUARANTINE_SECONDS) -> Part:
    """Return the controller."""
    part = Part.of(NAME, PodCollector(hub, quarantine=quarantine))
    part.controller.watch(
        hub.informer(NODES, Node), predicates=[by_kind(updated=lambda _note: False)]
    )
    part.controller.watch(hub.pods, mapping=map_func(_node_of), predicates=[_arrives])
    return part


def _node_of(pod: Pod) -> Iterable[Request]:
    return [Request("", pod.spec.node_name)] if pod.spec.node_name else []


def _arrives(note: Notification[Pod]) -> bool:
    """Whether a pod came to a node, which may not be there."""
    if isinstance(note, Updated):
        return note.old.spec.node_name != note.new.spec.node_name
    return not isinstance(note, Deleted)
