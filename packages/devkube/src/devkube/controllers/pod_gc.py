"""The pod garbage collector: pods whose node is gone go too.

A node may be made again under the same name, by a kubelet that was restarted. So its pods are given
some time, and the server itself is asked, before anything is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from devkube.controllers.context import BY_NODE, ControllerSpec
from devkube.controllers.objects import NODES, PODS, SlimNode
from kubeloop.client.errors import Conflict, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.informer.handlers import Deleted, Updated
from kubeloop.objects.patches import StrategicMergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from devkube.controllers.context import SharedInformers
    from devkube.controllers.objects import SlimPod
    from kubeloop.informer.handlers import Notification

NAME = "podgc"
QUARANTINE_SECONDS = 40.0


class PodGarbageCollector:
    """Looks after the pods of one node that may be gone; requests are nodes' names."""

    def __init__(self, shared: SharedInformers, *, quarantine: float = QUARANTINE_SECONDS) -> None:
        self._shared = shared
        self._quarantine = quarantine
        self._cache = shared.informer(NODES, SlimNode)
        self._nodes = shared.resource(NODES)
        self._pods = shared.resource(PODS)
        self._missing_since: dict[str, float] = {}

    async def __call__(self, request: Request) -> Result | None:
        """Delete the node's pods once it has been missing for long enough."""
        pods = self._shared.pods.store.by_index(BY_NODE, request.name)
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

    async def _delete(self, pod: SlimPod) -> None:
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

    async def _mark_failed(self, pod: SlimPod) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists",
            "lastTransitionTime": format_time(self._shared.clock.now()),
        }
        patch = {
            "metadata": {"uid": pod.metadata.uid},
            "status": {"phase": "Failed", "conditions": [condition]},
        }
        await self._pods.subresource("status").patch(
            pod.metadata.name, StrategicMergePatch(patch), namespace=pod.metadata.namespace
        )


def make(shared: SharedInformers, *, quarantine: float = QUARANTINE_SECONDS) -> ControllerSpec:
    """Return the controller."""
    part = ControllerSpec.of(NAME, PodGarbageCollector(shared, quarantine=quarantine))
    part.controller.watch(
        shared.informer(NODES, SlimNode), predicates=[by_kind(updated=lambda _note: False)]
    )
    part.controller.watch(shared.pods, mapping=map_func(_node_of), predicates=[_arrives])
    return part


def _node_of(pod: SlimPod) -> Iterable[Request]:
    return [Request("", pod.spec.node_name)] if pod.spec.node_name else []


def _arrives(note: Notification[SlimPod]) -> bool:
    """Whether a pod came to a node, which may not be there."""
    if isinstance(note, Updated):
        return note.old.spec.node_name != note.new.spec.node_name
    return not isinstance(note, Deleted)
