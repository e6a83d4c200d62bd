"""Owners and dependents over all kinds, and what becomes of an object. Pure.

A node is an object that was seen. An edge is an owner reference, by uid; the owner need not be known
(yet). Every change answers with the uids to reconcile because of it; that is cheap and may be
repeated, so a uid too many does no harm, one too few would leave garbage behind.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kubeloop.client.request import Propagation
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import ObjectMeta, OwnerReference

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One object."""

    resource: GroupVersionResource
    kind: GroupVersionKind
    namespace: str
    name: str
    uid: str
    version: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    is_deleting: bool = False

    @classmethod
    def of(
        cls, meta: ObjectMeta, resource: GroupVersionResource, kind: GroupVersionKind
    ) -> GraphNode:
        """Take what matters from an object's metadata."""
        return cls(
            resource=resource,
            kind=kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            version=meta.resource_version,
            owners=meta.owner_references or (),
            finalizers=tuple(meta.finalizers or ()),
            is_deleting=meta.deletion_timestamp is not None,
        )

    @property
    def waits_for_dependents(self) -> bool:
        """Whether it is being deleted in the foreground."""
        return self.is_deleting and FOREGROUND in self.finalizers

    @property
    def orphans_dependents(self) -> bool:
        """Whether it is being deleted and its dependents are to stay."""
        return self.is_deleting and ORPHAN in self.finalizers

    def is_meant_by(self, reference: OwnerReference, namespace: str) -> bool:
        """Whether a reference in a namespace means this object and not just its uid.

        The reference's own apiVersion is not compared: versions of a kind come and go.
        """
        here = not self.namespace or self.namespace == namespace
        same = (self.uid, self.name, self.kind.kind) == (
            reference.uid,
            reference.name,
            reference.kind,
        )
        return here and same


class OwnershipGraph:
    """All items and the references between them. One writer: the handlers of the informers."""

    def __init__(self) -> None:
        self._items: dict[str, GraphNode] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def get(self, uid: str) -> GraphNode | None:
        """Return an item."""
        return self._items.get(uid)

    def owner(self, reference: OwnerReference, namespace: str) -> GraphNode | None:
        """Return the owner that a reference means; None if it is not known."""
        item = self._items.get(reference.uid)
        return item if item is not None and item.is_meant_by(reference, namespace) else None

    def dependents(self, uid: str) -> list[GraphNode]:
        """Return the items that refer to an owner."""
        return [self._items[key] for key in self._dependents.get(uid, ())]

    def blocking(self, uid: str) -> list[GraphNode]:
        """Return the dependents that an owner's foreground deletion waits for."""
        return [
            item
            for item in self.dependents(uid)
            if any(ref.uid == uid and ref.block_owner_deletion for ref in item.owners)
        ]

    def put(self, item: GraphNode) -> set[str]:
        """Record the present object; returns the uids to reconcile."""
        old = self._items.get(item.uid)
        self._items[item.uid] = item
        affected = self._relink(item, old)
        if any(self.owner(ref, item.namespace) is None for ref in item.owners):
            affected.add(item.uid)
        if self._began(item, old):
            affected.add(item.uid)
            affected |= self._dependents.get(item.uid, {}).keys()
        if any(self._waits(ref.uid) for ref in item.owners):
            affected.add(item.uid)
        return affected

    def remove(self, uid: str) -> set[str]:
        """Note that an object is gone; returns the uids to reconcile."""
        item = self._items.pop(uid, None)
        if item is None:
            return set()
        for ref in item.owners:
            self._unlink(ref.uid, uid)
        waiting = {ref.uid for ref in item.owners if self._waits(ref.uid)}
        return waiting | set(self._dependents.get(uid, ()))

    def _relink(self, item: GraphNode, old: GraphNode | None) -> set[str]:
        """Follow changed references; owners that wait and lost a blocking one may go on."""
        before = {(r.uid, bool(r.block_owner_deletion)) for r in old.owners} if old else set()
        after = {(r.uid, bool(r.block_owner_deletion)) for r in item.owners}
        kept = {uid for uid, _ in after}
        for uid, _ in before - after:
            if uid not in kept:
                self._unlink(uid, item.uid)
        for uid in kept:
            self._dependents.setdefault(uid, {})[item.uid] = None
        return {uid for uid, _ in before - after if self._waits(uid)}

    def _unlink(self, owner: str, uid: str) -> None:
        found = self._dependents.get(owner)
        if found is not None:
            found.pop(uid, None)
            if not found:
                del self._dependents[owner]

    def _waits(self, uid: str) -> bool:
        item = self._items.get(uid)
        return item is not None and item.waits_for_dependents

    @staticmethod
    def _began(item: GraphNode, old: GraphNode | None) -> bool:
        """Whether a deletion that concerns dependents has just begun."""
        states: Iterable[tuple[bool, bool]] = (
            (item.waits_for_dependents, old is not None and old.waits_for_dependents),
            (item.orphans_dependents, old is not None and old.orphans_dependents),
        )
        return any(now and not before for now, before in states)


class OwnerState(enum.Enum):
    """The known state of an owner."""

    SOLID = "there, or not to be judged"
    ABSENT = "gone, or never was"
    WAITING = "being deleted, and waiting for its dependents to go first"


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """Leave it alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Disown:
    """Take away the references to owners that no longer hold it; others do."""

    keep: tuple[OwnerReference, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Collect:
    """Delete it; `unblock` first, so that a circle of foreground deletions can end."""

    propagation: Propagation
    unblock: bool = False


GarbageDecision: TypeAlias = Keep | Disown | Collect


def decide(
    item: GraphNode,
    states: Mapping[str, OwnerState],
    *,
    has_dependents: bool,
    dependent_waits: bool,
) -> GarbageDecision:
    """Judge an object that is not being deleted; `states` are its owners' by uid.

    `dependent_waits`: one of its own dependents is itself being deleted in the foreground.
    """
    if not item.owners:
        return Keep()
    solid = tuple(ref for ref in item.owners if states[ref.uid] is OwnerState.SOLID)
    if solid:
        return Keep() if len(solid) == len(item.owners) else Disown(keep=solid)
    if has_dependents and OwnerState.WAITING in states.values():
        # Its owner waits for it, so it has to wait for its own dependents.
        return Collect("Foreground", unblock=dependent_waits)
    return Collect(_wish(item))


def _wish(item: GraphNode) -> Propagation:
    """Return how its dependents are to be treated: as its finalizers say."""
    if ORPHAN in item.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in item.finalizers else "Background"
