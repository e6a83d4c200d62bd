"""Watching every kind that can be garbage, also those that are defined later.

Kinds that other controllers watch are not watched a second time: their informers carry all the
metadata that is needed. The rest is watched for its metadata alone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from elasti.devcluster.controllers.garbage.collector import Collector, look_at
from elasti.devcluster.controllers.garbage.graph import Graph, Item
from elasti.devcluster.controllers.parts import Part
from kubeloop.client.errors import KubeError
from kubeloop.informer.notifications import Deleted, Updated
from kubeloop.objects.gvk import GroupVersionResource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from kubeloop.client.discovery_documents import ResourceInfo
    from kubeloop.controller.reconcile import Request
    from kubeloop.informer.handle import Handle
    from kubeloop.informer.notifications import Notification
    from kubeloop.informer.shared_informer import SharedInformer

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


class GarbageWatch:
    """Feeds the graph and the collector's queue. `run` is its task."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.graph = Graph()
        collector = Collector(hub.client, self.graph, look=lambda uid: self._enqueue([uid]))
        self._collector = collector
        self.part = Part.of(NAME, self._reconcile, workers=4, background=self.run)
        self._watched: dict[GroupVersionResource, tuple[SharedInformer[Any], Handle[Any]]] = {}
        self._changed = asyncio.Event()
        # Until every kind has been listed, an owner that is missing may just not have been seen.
        self._complete = False
        self._early: dict[str, None] = {}

    async def run(self) -> None:
        """Follow the server's kinds until cancelled."""
        definitions = self._hub.factory.informer(DEFINITIONS, metadata_only=True)
        self._hub.factory.start()
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
        found = await self._hub.client.discovery.fetch()
        self._hub.client.mapper.invalidate()
        wanted = collectable(found.resources)
        for resource in self._watched.keys() - wanted.keys():
            await self._unwatch(resource)
        for resource, info in wanted.items():
            if resource not in self._watched:
                self._watch(info)
        self._hub.factory.start()
        for _informer, handle in list(self._watched.values()):
            await handle.wait_synced()

    def _watch(self, info: ResourceInfo) -> None:
        shared = self._hub.informers.get(info.gvr)
        informer: SharedInformer[Any] = shared or self._hub.factory.informer(
            info.gvr, metadata_only=True
        )
        handle = informer.add_handler(
            on_event=lambda note: self._see(note, info), name=f"{NAME}/{info.full_name}"
        )
        self._watched[info.gvr] = (informer, handle)

    async def _unwatch(self, resource: GroupVersionResource) -> None:
        """The kind is not served any more; its objects are gone with it."""
        informer, handle = self._watched.pop(resource)
        await informer.remove_handler(handle)
        for obj in informer.store.list():
            self._enqueue(self.graph.remove(obj.metadata.uid))
        if resource not in self._hub.informers:
            await self._hub.factory.release(informer)

    def _see(self, note: Notification[Any], info: ResourceInfo) -> None:
        match note:
            case Deleted(obj=obj):
                self._enqueue(self.graph.remove(obj.metadata.uid))
            case Updated(old=old, new=obj):
                if old.metadata.uid != obj.metadata.uid:
                    self._enqueue(self.graph.remove(old.metadata.uid))
                self._enqueue(self.graph.put(Item.of(obj.metadata, info.gvr, info.gvk)))
            case _:
                self._enqueue(self.graph.put(Item.of(note.obj.metadata, info.gvr, info.gvk)))

    def _enqueue(self, uids: Iterable[str]) -> None:
        for request in look_at(uids):
            self.part.controller.queue.add(request)

    async def _reconcile(self, request: Request) -> None:
        if self._complete:
            await self._collector(request)
        else:
            self._early[request.name] = None


def make(hub: Hub) -> Part:
    """Return the controller."""
    return GarbageWatch(hub).part
