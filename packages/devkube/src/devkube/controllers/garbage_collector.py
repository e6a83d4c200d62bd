"""The garbage collector: watches every kind, and deletes objects whose owners are gone.

Kinds that other controllers watch are not watched a second time: their informers carry all the
metadata that is needed. The rest, also kinds that are defined later, is watched for its metadata alone.

Objects are changed and deleted only as they were seen, by uid and resourceVersion: a stale graph
costs a conflict and another reconcile, never a wrong deletion. An owner that the graph does not know is
read from the server before anything is called garbage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from devkube.controllers.context import ControllerSpec, SharedInformers
from devkube.controllers.garbage_graph import (
    FOREGROUND,
    ORPHAN,
    Collect,
    Disown,
    GraphNode,
    Keep,
    OwnershipGraph,
    OwnerState,
    decide,
)
from kubeloop.client.discovery import ResourceInfo
from kubeloop.client.errors import KubeError, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.reconcile import Request
from kubeloop.informer.handlers import Deleted, Notification, Updated
from kubeloop.informer.listener import Handle
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, OwnerReference
from kubeloop.objects.patches import MergePatch

NAME = "garbagecollector"
DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_NEEDED = frozenset({"list", "watch", "delete"})
_RETRY_SECONDS = 5.0
# A definition is served a moment after it is accepted.
_SETTLE_SECONDS = 0.1
_log = logging.getLogger(__name__)


def collectable(resources: Iterable[ResourceInfo]) -> dict[GroupVersionResource, ResourceInfo]:
    """Return the kinds to watch, each in its preferred version; events own and are owned by none."""
    chosen: dict[tuple[str, str], ResourceInfo] = {}
    for info in resources:
        if info.verbs >= _NEEDED and info.gvr.resource != "events":
            chosen.setdefault((info.gvr.group, info.gvr.resource), info)
    return {info.gvr: info for info in chosen.values()}


class GarbageCollector:
    """Follows every kind, and reconciles one object at a time; requests are uids. `run` is its task."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._client = shared.client
        self._graph = OwnershipGraph()
        self.part = ControllerSpec.of(NAME, self._reconcile, workers=4, background=self.run)
        self._watched: dict[GroupVersionResource, tuple[SharedInformer[Any], Handle[Any]]] = {}
        self._changed = asyncio.Event()
        # Until every kind has been listed, an owner that is missing may just not have been seen.
        self._complete = False
        self._early: dict[str, None] = {}

    async def run(self) -> None:
        """Follow the server's kinds until cancelled."""
        definitions = self._shared.factory.informer(DEFINITIONS, metadata_only=True)
        self._shared.factory.start()
        definitions.add_handler(on_event=lambda _note: self._changed.set(), name=f"{NAME}/kinds")
        while True:
            self._changed.clear()
            await self._refresh_until_done()
            if not self._complete:
                self._complete = True
                self._enqueue(self._early)
                self._early = {}
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_SECONDS)

    async def _refresh_until_done(self) -> None:
        while True:
            try:
                await self._refresh()
                return
            except KubeError as error:
                _log.warning("garbage collector: kinds not read, again soon: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _refresh(self) -> None:
        found = await self._shared.client.discovery.fetch()
        self._shared.client.mapper.invalidate()
        wanted = collectable(found.resources)
        for resource in self._watched.keys() - wanted.keys():
            await self._unwatch(resource)
        for resource, info in wanted.items():
            if resource not in self._watched:
                self._watch(info)
        self._shared.factory.start()
        for _informer, handle in list(self._watched.values()):
            await handle.wait_synced()

    def _watch(self, info: ResourceInfo) -> None:
        shared = self._shared.informers.get(info.gvr)
        informer: SharedInformer[Any] = shared or self._shared.factory.informer(
            info.gvr, metadata_only=True
        )
        handle = informer.add_handler(
            on_event=lambda note: self._see(note, info), name=f"{NAME}/{info.full_name}"
        )
        self._watched[info.gvr] = (informer, handle)

    async def _unwatch(self, resource: GroupVersionResource) -> None:
        """The kind is no longer served; its objects are gone with it."""
        informer, handle = self._watched.pop(resource)
        await informer.remove_handler(handle)
        for obj in informer.store.list():
            self._enqueue(self._graph.remove(obj.metadata.uid))
        if resource not in self._shared.informers:
            await self._shared.factory.release(informer)

    def _see(self, note: Notification[Any], info: ResourceInfo) -> None:
        match note:
            case Deleted(obj=obj):
                self._enqueue(self._graph.remove(obj.metadata.uid))
            case Updated(old=old, new=obj):
                if old.metadata.uid != obj.metadata.uid:
                    self._enqueue(self._graph.remove(old.metadata.uid))
                self._enqueue(self._graph.put(GraphNode.of(obj.metadata, info.gvr, info.gvk)))
            case _:
                self._enqueue(self._graph.put(GraphNode.of(note.obj.metadata, info.gvr, info.gvk)))

    def _enqueue(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.part.controller.queue.add(Request("", uid))

    async def _reconcile(self, request: Request) -> None:
        """Observe, decide, act."""
        if not self._complete:
            self._early[request.name] = None
            return
        item = self._graph.get(request.name)
        if item is None:
            return
        if item.orphans_dependents:
            # The dependents go free first, then the owner.
            for dependent in self._graph.dependents(item.uid):
                keep = tuple(ref for ref in dependent.owners if ref.uid != item.uid)
                await self._set_owners(dependent, keep)
            await self._drop_finalizer(item, ORPHAN)
        elif item.waits_for_dependents:
            await self._wait(item)
        elif not item.is_deleting:
            await self._judge(item)

    # Owners that are going

    async def _wait(self, item: GraphNode) -> None:
        """Let the owner go once nothing that blocks it is left."""
        blocking = self._graph.blocking(item.uid)
        for dependent in blocking:
            if not dependent.waits_for_dependents:
                self._enqueue([dependent.uid])
        if not blocking:
            await self._drop_finalizer(item, FOREGROUND)

    # Dependents

    async def _judge(self, item: GraphNode) -> None:
        states = {ref.uid: await self._state(ref, item) for ref in item.owners}
        dependents = self._graph.dependents(item.uid)
        verdict = decide(
            item,
            states,
            has_dependents=bool(dependents),
            dependent_waits=any(found.waits_for_dependents for found in dependents),
        )
        match verdict:
            case Keep():
                return
            case Disown(keep=keep):
                await self._set_owners(item, keep)
            case Collect():
                await self._collect(item, verdict)

    async def _state(self, reference: OwnerReference, item: GraphNode) -> OwnerState:
        known = self._graph.owner(reference, item.namespace)
        if known is not None:
            return OwnerState.WAITING if known.waits_for_dependents else OwnerState.SOLID
        # Raises NoMatch for a kind that is not served: what cannot be asked for is not garbage.
        info = await self._client.mapper.by_kind(reference.api_version, reference.kind)
        if info.namespaced and not item.namespace:
            return OwnerState.SOLID  # such a reference is invalid and never judged
        namespace = item.namespace if info.namespaced else ""
        try:
            owner = await self._client.resource(info.gvr).get(reference.name, namespace=namespace)
        except NotFound:
            return OwnerState.ABSENT
        metadata = owner["metadata"]
        if metadata["uid"] != reference.uid:
            return OwnerState.ABSENT
        waits = FOREGROUND in (metadata.get("finalizers") or ())
        going = bool(metadata.get("deletionTimestamp"))
        return OwnerState.WAITING if waits and going else OwnerState.SOLID

    # Writing

    async def _collect(self, item: GraphNode, verdict: Collect) -> None:
        if verdict.unblock:
            free = (msgspec.structs.replace(r, block_owner_deletion=False) for r in item.owners)
            await self._set_owners(item, tuple(free))
            return  # the change brings another reconcile
        with contextlib.suppress(NotFound):
            await self._client.resource(item.resource).delete(
                item.name,
                namespace=item.namespace,
                preconditions=Preconditions(uid=item.uid, resource_version=item.version),
                propagation=verdict.propagation,
            )

    async def _set_owners(self, item: GraphNode, owners: tuple[OwnerReference, ...]) -> None:
        references = [msgspec.to_builtins(owner) for owner in owners]
        await self._patch(item, {"ownerReferences": references or None})

    async def _drop_finalizer(self, item: GraphNode, finalizer: str) -> None:
        rest = [name for name in item.finalizers if name != finalizer]
        await self._patch(item, {"finalizers": rest or None})

    async def _patch(self, item: GraphNode, metadata: JsonObject) -> None:
        document = {"metadata": {"uid": item.uid, "resourceVersion": item.version, **metadata}}
        with contextlib.suppress(NotFound):
            await self._client.resource(item.resource).patch(
                item.name, MergePatch(document), namespace=item.namespace
            )


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    return GarbageCollector(shared).part
