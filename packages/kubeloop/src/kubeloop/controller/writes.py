"""Writes of a reconciler: create or update with few writes, and read them back through a cache.

A reconcile that writes and is then called again may find the cache without its own write, and do
the same thing twice. `ConsistencyGuard` records, for each reconciled object, up to which
resourceVersion of each resource it has written, and holds the next reconcile back until the caches
have come that far:

    guard = ConsistencyGuard()
    guard.follow(PODS, pods.store)
    ...
    pod = await client.create(...)
    guard.wrote(request, owner_uid, PODS, pod.metadata.resource_version)

A cache's version advances with every object and bookmark of its watch. One that never comes so far
(the written object is outside of what the informer selects and no bookmarks arrive, or the server
was restored from a backup and its versions went back) must not block indefinitely: after `timeout`
seconds the record is dropped with a warning, and the reconciler has to cope, as it must anyway
after a restart.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from kubeloop.client.errors import NotFound
from kubeloop.objects.meta import access_for, compare_versions
from kubeloop.objects.patches import same_json

if TYPE_CHECKING:
    from kubeloop.controller.reconcile import Request
    from kubeloop.objects.gvk import GroupVersionResource


T = TypeVar("T")
Mutate: TypeAlias = Callable[[T], Awaitable[object] | object]


_log = logging.getLogger(__name__)


class ObjectApi(Protocol[T]):
    """The part of a `Resource` that this needs."""

    async def get(self, name: str, *, namespace: str | None = None) -> T:
        """Read one object; raises NotFound."""

    async def create(self, obj: T) -> T:
        """Create it."""

    async def replace(self, obj: T) -> T:
        """Write it whole; raises Conflict if it changed meanwhile."""


class WriteOutcome(enum.Enum):
    """One write."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


async def create_or_update(api: ObjectApi[T], obj: T, mutate: Mutate[T]) -> tuple[T, WriteOutcome]:
    """Read the object that `obj` names, let `mutate` set what matters, and write if that changed it.

    If it does not exist, `obj` itself is mutated and created. `mutate` works in place, on a copy of
    our own, and must leave name and namespace alone (ValueError). Returns the object as the server
    has it now. Raises Conflict if another client wrote meanwhile: try again later.
    """
    access = access_for(type(obj))
    name, namespace = access.name(obj), access.namespace(obj)
    try:
        found = await api.get(name, namespace=namespace)
    except NotFound:
        wanted = copy.deepcopy(obj)
        await _mutate(mutate, wanted)
        return await api.create(wanted), WriteOutcome.CREATED
    wanted = copy.deepcopy(found)
    await _mutate(mutate, wanted)
    if same_json(found, wanted):
        return found, WriteOutcome.UNCHANGED
    return await api.replace(wanted), WriteOutcome.UPDATED


async def _mutate(mutate: Mutate[T], obj: T) -> None:
    access = access_for(type(obj))
    before = access.key(obj)
    result = mutate(obj)
    if inspect.isawaitable(result):
        await result
    if access.key(obj) != before:
        raise ValueError(f"mutate renamed {before} to {access.key(obj)}; it must not")


class VersionedStore(Protocol):
    """A cache that knows its latest version."""

    @property
    def version(self) -> str:
        """The resourceVersion up to which the store is complete; "" before the first list."""


@dataclasses.dataclass(slots=True)
class _Writes:
    """The writes for one owner."""

    uid: str
    versions: dict[GroupVersionResource, str]
    last_at: float


class ConsistencyGuard:
    """Holds reconciles back until the caches contain what the previous ones wrote."""

    def __init__(self, *, timeout: float = 30.0) -> None:
        self._timeout = timeout
        self._stores: dict[GroupVersionResource, VersionedStore] = {}
        self._writes: dict[Request, _Writes] = {}

    def __len__(self) -> int:
        """How many owners have writes that the caches do not show yet, as far as is known."""
        return len(self._writes)

    def follow(self, resource: GroupVersionResource, store: VersionedStore) -> None:
        """Set the store from which reconciles read a resource."""
        self._stores[resource] = store

    def wrote(self, owner: Request, uid: str, resource: GroupVersionResource, version: str) -> None:
        """Record a write made while reconciling `owner`; `version` is the written object's.

        A new uid is a new owner: what was recorded under the old one is dropped. Raises ValueError
        for a malformed version, KeyError for a resource that is not followed.
        """
        if resource not in self._stores:
            raise KeyError(f"{resource} is not followed; call follow({resource}, store) first")
        writes = self._writes.get(owner)
        known = "" if writes is None or writes.uid != uid else writes.versions.get(resource, "")
        newest = version if compare_versions(version, known or version) >= 0 else known
        now = asyncio.get_running_loop().time()
        if writes is None or writes.uid != uid:
            self._writes[owner] = writes = _Writes(uid, {}, now)
        writes.versions[resource] = newest
        writes.last_at = now

    def lagging(self, owner: Request) -> tuple[GroupVersionResource, ...]:
        """The resources whose caches do not show yet what was written; empty: go on.

        Forgets what the caches have caught up with, and everything once the time is up. Raises
        ValueError if a store's version cannot be compared.
        """
        writes = self._writes.get(owner)
        if writes is None:
            return ()
        expired = asyncio.get_running_loop().time() - writes.last_at >= self._timeout
        lagging = self._check(writes, ignore_malformed=expired)
        if lagging and expired:
            _log.warning(
                "%s: the caches of %s did not show our writes in %g s; going on without",
                *(owner, ", ".join(map(str, lagging)), self._timeout),
            )
        if lagging and not expired:
            return lagging
        del self._writes[owner]
        return ()

    def clear(self, owner: Request, uid: str | None = None) -> None:
        """Forget an owner's writes, given a uid only if it is that one's; call it on deletion."""
        writes = self._writes.get(owner)
        if writes is not None and uid in (None, writes.uid):
            del self._writes[owner]

    def _check(
        self, writes: _Writes, *, ignore_malformed: bool
    ) -> tuple[GroupVersionResource, ...]:
        """Drop what the caches show, return the rest.

        With `ignore_malformed`, a version that is not a number counts as shown.
        """
        for resource, version in list(writes.versions.items()):
            if self._shows(resource, version, ignore_malformed=ignore_malformed):
                del writes.versions[resource]
        return tuple(writes.versions)

    def _shows(
        self, resource: GroupVersionResource, version: str, *, ignore_malformed: bool
    ) -> bool:
        seen = self._stores[resource].version
        try:
            return bool(seen) and compare_versions(seen, version) >= 0
        except ValueError:
            if ignore_malformed:
                return False
            raise
