"""The garbage collector: looks at an object by its uid and does what follows.

Objects are changed and deleted only as they were seen, by uid and resourceVersion: a stale graph
costs a conflict and another look, never a wrong deletion. An owner that the graph does not know is
asked for at the server before anything is called garbage.
"""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers.garbage.decide import (
    Collect,
    Disown,
    Keep,
    OwnerState,
    decide,
)
from elasti.devcluster.controllers.garbage.graph import FOREGROUND, ORPHAN, Graph
from kubeloop.client.deletion import Preconditions
from kubeloop.client.errors import NotFound
from kubeloop.controller.reconcile import Request
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elasti.devcluster.controllers.garbage.graph import Item
    from kubeloop.client.client import Client
    from kubeloop.client.discovery_documents import ResourceInfo
    from kubeloop.objects.meta import JsonObject, OwnerReference

_REMEMBERED = 500


class Collector:
    """Looks at one object; requests are uids (see `look_at`)."""

    def __init__(self, client: Client, graph: Graph, *, look: Callable[[str], None]) -> None:
        self._client = client
        self._graph = graph
        self._look = look
        # Owners that are known to be gone: a uid never comes back.
        self._absent: collections.OrderedDict[tuple[str, str], None] = collections.OrderedDict()

    async def __call__(self, request: Request) -> None:
        """Look, decide, act."""
        item = self._graph.get(request.name)
        if item is None:
            return
        if item.orphans_dependents:
            await self._orphan(item)
        elif item.waits_for_dependents:
            await self._wait(item)
        elif not item.is_deleting:
            await self._judge(item)

    # Owners that are going

    async def _orphan(self, item: Item) -> None:
        """Let the dependents go free, then the owner."""
        for dependent in self._graph.dependents(item.uid):
            keep = tuple(ref for ref in dependent.owners if ref.uid != item.uid)
            await self._set_owners(dependent, keep)
        await self._drop_finalizer(item, ORPHAN)

    async def _wait(self, item: Item) -> None:
        """Let the owner go once nothing that blocks it is left."""
        blocking = self._graph.blocking(item.uid)
        for dependent in blocking:
            if not dependent.waits_for_dependents:
                self._look(dependent.uid)
        if not blocking:
            await self._drop_finalizer(item, FOREGROUND)

    # Dependents

    async def _judge(self, item: Item) -> None:
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

    async def _state(self, reference: OwnerReference, item: Item) -> OwnerState:
        known = self._graph.owner(reference, item.namespace)
        if known is not None:
            return OwnerState.WAITING if known.waits_for_dependents else OwnerState.SOLID
        mark = (reference.uid, item.namespace)
        if mark in self._absent:
            return OwnerState.ABSENT
        state = await self._ask(reference, item)
        if state is OwnerState.ABSENT:
            self._absent[mark] = None
            if len(self._absent) > _REMEMBERED:
                self._absent.popitem(last=False)
        return state

    async def _ask(self, reference: OwnerReference, item: Item) -> OwnerState:
        """Read the owner from the server, in the namespace of the dependent.

        Raises NoMatch for a kind that nobody serves: what cannot be asked for is not garbage.
        """
        info = await self._client.mapper.by_kind(reference.api_version, reference.kind)
        if info.namespaced and not item.namespace:
            return OwnerState.SOLID  # such a reference is invalid and never judged
        owner = await self._read(info, reference.name, item.namespace)
        if owner is None or owner["metadata"]["uid"] != reference.uid:
            return OwnerState.ABSENT
        metadata = owner["metadata"]
        waits = FOREGROUND in (metadata.get("finalizers") or ())
        going = bool(metadata.get("deletionTimestamp"))
        return OwnerState.WAITING if waits and going else OwnerState.SOLID

    async def _read(self, info: ResourceInfo, name: str, namespace: str) -> JsonObject | None:
        resource = self._client.resource(info.gvr)
        try:
            return await resource.get(name, namespace=namespace if info.namespaced else "")
        except NotFound:
            return None

    # Writing

    async def _collect(self, item: Item, verdict: Collect) -> None:
        if verdict.unblock:
            free = (msgspec.structs.replace(r, block_owner_deletion=False) for r in item.owners)
            await self._set_owners(item, tuple(free))
            return  # the change brings another look
        with contextlib.suppress(NotFound):
            await self._client.resource(item.resource).delete(
                item.name,
                namespace=item.namespace,
                preconditions=Preconditions(uid=item.uid, resource_version=item.version),
                propagation=verdict.propagation,
            )

    async def _set_owners(self, item: Item, owners: tuple[OwnerReference, ...]) -> None:
        references = [msgspec.to_builtins(owner) for owner in owners]
        await self._patch(item, {"ownerReferences": references or None})

    async def _drop_finalizer(self, item: Item, finalizer: str) -> None:
        rest = [name for name in item.finalizers if name != finalizer]
        await self._patch(item, {"finalizers": rest or None})

    async def _patch(self, item: Item, metadata: JsonObject) -> None:
        document = {"metadata": {"uid": item.uid, "resourceVersion": item.version, **metadata}}
        with contextlib.suppress(NotFound):
            await self._client.resource(item.resource).patch(
                item.name, MergePatch(document), namespace=item.namespace
            )


def look_at(uids: Iterable[str]) -> list[Request]:
    """Return requests for uids."""
    return [Request("", uid) for uid in uids]
