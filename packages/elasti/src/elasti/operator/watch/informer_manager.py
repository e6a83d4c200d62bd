"""Watches, shared by everyone who asks, and kept alive.

`InformerManager.add(RequestWatch)` registers a handler for *one object* on the shared informer of its kind; it
opens a watch only for the first object of a kind. So the number of watches is a function of the kinds
in use, never of ElastiServices. Confined to namespaces, there is one for each namespace in which a kind
is in use: no right is needed anywhere else.

A `Scope` is one kind in all watched namespaces: reads go to the right informer, handlers to all of
them. A watch from which nothing was heard for too long, not even a bookmark, or not even a first list,
is taken down and built again, and so is one that a defect ended; what is in the cache and who listens
stays.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from kubeloop.aio.wait import until
from kubeloop.informer import (
    Added,
    Handle,
    IndexFunction,
    MetricsProvider,
    SharedInformer,
    SharedInformerFactory,
    Transform,
    Updated,
)
from kubeloop.informer.factory import ResourceClient
from kubeloop.informer.handlers import Notification, OnEvent
from kubeloop.informer.reflector.source import FAST_BACKOFF, ReflectorOptions
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import MetaAccess, make_key

T = TypeVar("T")
OnObject: TypeAlias = Callable[["Notification[Any]"], None]

# An API server that was restored, or that lies, lists nothing for a moment: no target ends for that.
_DISTRUST_EMPTY = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class KeyParams:
    """Who watches what: the ElastiService, and the object that it depends on."""

    namespace: str
    crd_name: str
    resource: GroupVersionResource
    resource_name: str


@dataclasses.dataclass(frozen=True, slots=True)
class RequestWatch:
    """A subscription to one object; `kind` is how objects of its resource are represented."""

    key: KeyParams
    kind: type[Any]
    on_event: OnObject


class Scope(Generic[T]):
    """One kind in every watched namespace."""

    def __init__(self, informers: Mapping[str, SharedInformer[T]], *, name: str = "") -> None:
        self.name = name
        self._informers = dict(informers)

    @property
    def informers(self) -> tuple[SharedInformer[T], ...]:
        """The informers, one for each namespace, or one for all."""
        return tuple(self._informers.values())

    @property
    def access(self) -> MetaAccess:
        """How to read the objects' metadata."""
        return self.informers[0].access

    @property
    def has_synced(self) -> bool:
        """Whether every informer has its first list."""
        return all(informer.has_synced for informer in self.informers)

    def find(self, namespace: str, name: str) -> T | None:
        """Return an object, or None if it does not exist or its namespace is not watched."""
        informer = self._informers.get("") or self._informers.get(namespace)
        return informer.lister.find(namespace, name) if informer is not None else None

    def version(self, namespace: str) -> str:
        """Return how far the watch of a namespace has come; "1" if it has not begun."""
        informer = self._informers.get("") or self._informers.get(namespace)
        version = informer.last_version if informer is not None else ""
        return version if version not in {"", "0"} else "1"

    def all(self) -> Iterator[T]:
        """Iterate over all objects."""
        for informer in self.informers:
            yield from informer.store.list()

    def by_index(self, index: str, value: str) -> Iterator[T]:
        """Iterate over the objects that an index files under a value."""
        for informer in self.informers:
            yield from informer.store.by_index(index, value)

    def add_indexers(self, indexers: Mapping[str, IndexFunction[T]]) -> None:
        """Add indices to every informer."""
        for informer in self.informers:
            informer.add_indexers(indexers)

    def add_handler(self, on_event: OnEvent[T], *, name: str) -> list[tuple[Any, Handle[T]]]:
        """Register a handler on every informer."""
        return [
            (informer, informer.add_handler(on_event=on_event, name=name))
            for informer in self.informers
        ]

    async def wait_synced(self) -> None:
        """Wait for the first list of every informer."""
        for informer in self.informers:
            await informer.wait_synced()


class _Dispatch:
    """The handlers of single objects on one shared informer; one registration serves all."""

    def __init__(self, scope: Scope[Any]) -> None:
        self._by_object: dict[str, dict[KeyParams, OnObject]] = {}
        self.scope = scope
        scope.add_handler(self._on_event, name="objects")

    def add(self, watch: RequestWatch) -> None:
        key = make_key(watch.key.namespace, watch.key.resource_name)
        self._by_object.setdefault(key, {})[watch.key] = watch.on_event

    def remove(self, key: KeyParams) -> None:
        name = make_key(key.namespace, key.resource_name)
        handlers = self._by_object.get(name, {})
        handlers.pop(key, None)
        if not handlers:
            self._by_object.pop(name, None)

    @property
    def is_used(self) -> bool:
        """Whether any ElastiService subscribes; warm-up subscriptions do not count."""
        return any(key.crd_name for handlers in self._by_object.values() for key in handlers)

    def _on_event(self, event: Notification[Any]) -> None:
        if isinstance(event, Updated) and not is_news(event, self.scope.access):
            return
        for handler in tuple(self._by_object.get(event.key, {}).values()):
            handler(event)


class InformerManager:
    """Makes, shares, starts and heals informers. A runnable for `Group.CACHES`.

    namespaces: those to watch; none for the whole cluster. `resync` and `health_period` in seconds;
    `stuck_after`: how long a watch may be silent before it is built again.
    """

    def __init__(
        self,
        client: ResourceClient,
        *,
        namespaces: Sequence[str] = (),
        resync: float = 300.0,
        health_period: float = 5.0,
        stuck_after: float = 900.0,
        metrics: MetricsProvider | None = None,
    ) -> None:
        self._factory = SharedInformerFactory(
            client,
            resync=resync,
            metrics=metrics,
            options=ReflectorOptions(
                backoff=FAST_BACKOFF, survive_defects=True, distrust_empty=_DISTRUST_EMPTY
            ),
        )
        self._namespaces = tuple(namespaces) or ("",)
        self._health_period = health_period
        self._stuck_after = stuck_after
        self._scopes: list[Scope[Any]] = []
        self._dispatch: dict[tuple[GroupVersionResource, str], _Dispatch] = {}
        self._checked_from: dict[str, float] = {}
        self._running = False
        self._synced = asyncio.Event()

    def counts(self) -> dict[str, int]:
        """Return how many watches there are, by what they are of."""
        counts: dict[str, int] = {}
        for scope in self._scopes:
            counts[scope.name] = counts.get(scope.name, 0) + len(scope.informers)
        return counts

    @property
    def is_ready(self) -> bool:
        """Whether every cache that was asked for before the start is filled; stays true.

        A kind that comes later has users who wait for it; nothing else does.
        """
        return self._running and self._synced.is_set()

    def missing(self) -> list[str]:
        """Return what is not in the caches yet, each with what is in the way."""
        gates = [informer.gate for scope in self._scopes for informer in scope.informers]
        return [
            f"{gate.name} ({gate.trouble or 'being listed'})" for gate in gates if not gate.synced
        ]

    def scope(
        self,
        resource: str | GroupVersionResource,
        kind: type[T],
        *,
        label_selector: str = "",
        namespace: str | None = None,
        transform: Transform | None = None,
    ) -> Scope[T]:
        """Return a kind's objects in the watched namespaces, or in the one given.

        Started at once if the manager runs.
        """
        gvr = GroupVersionResource.parse(resource) if isinstance(resource, str) else resource
        namespaces = self._namespaces if namespace is None else (namespace,)
        made = Scope(
            {
                place: self._factory.informer(
                    gvr, kind, namespace=place, label_selector=label_selector, transform=transform
                )
                for place in namespaces
            },
            name=f"{gvr} {label_selector}".strip(),
        )
        self._scopes.append(made)
        if self._running:
            self._factory.start()
        return made

    # Single objects

    def add(self, watch: RequestWatch) -> Scope[Any]:
        """Subscribe to one object; returns its kind's objects. Safe to repeat."""
        place = self.place(watch.key.namespace)
        dispatch = self._dispatch.get((watch.key.resource, place))
        if dispatch is None:
            dispatch = _Dispatch(self.scope(watch.key.resource, watch.kind, namespace=place))
            self._dispatch[watch.key.resource, place] = dispatch
        dispatch.add(watch)
        return dispatch.scope

    def follows(self, resource: GroupVersionResource, namespace: str) -> bool:
        """Whether the objects of a resource are watched there for single handlers."""
        return (resource, self.place(namespace)) in self._dispatch

    def find(self, resource: GroupVersionResource, namespace: str, name: str) -> Any | None:
        """Return an object of a resource that is watched for single handlers; None if it is not."""
        dispatch = self._dispatch.get((resource, self.place(namespace)))
        return dispatch.scope.find(namespace, name) if dispatch is not None else None

    def place(self, namespace: str) -> str:
        """Return the scope that watches a namespace's objects: the namespace, or empty for all."""
        return namespace if self._namespaces != ("",) else ""

    def remove(self, key: KeyParams) -> None:
        """Unsubscribe from an object; the kind's watch stays until `close_unused`."""
        dispatch = self._dispatch.get((key.resource, self.place(key.namespace)))
        if dispatch is not None:
            dispatch.remove(key)

    async def close_unused(self, used: Collection[tuple[GroupVersionResource, str]]) -> None:
        """Close the watches for single handlers that are not among those in use, by kind and place."""
        for key, dispatch in list(self._dispatch.items()):
            if key not in used and not dispatch.is_used:
                del self._dispatch[key]
                self._scopes.remove(dispatch.scope)
                for informer in dispatch.scope.informers:
                    await self._factory.release(informer)

    # Life

    async def run(self) -> None:
        """Run the informers until cancelled."""
        async with self._factory.running(), asyncio.TaskGroup() as group:
            self._running = True
            try:
                group.create_task(self._wait_synced(), name="first lists")
                await until(self.check, self._health_period)
            finally:
                self._running = False

    async def _wait_synced(self) -> None:
        for scope in tuple(self._scopes):
            await scope.wait_synced()
        self._synced.set()

    async def wait_until_ready(self) -> None:
        """Wait until the caches are filled."""
        await self._synced.wait()

    def check(self) -> None:
        """Build every watch again that has been silent for too long."""
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            for informer in scope.informers:
                begun = self._checked_from.setdefault(informer.name, now)
                silent = now - max(begun, informer.last_heard or begun)
                if silent > self._stuck_after:
                    self._checked_from[informer.name] = now
                    informer.restart(f"the watch has been silent for {silent:.0f} s")

    def restarts(self) -> dict[str, int]:
        """Return how often watches were rebuilt, by resource; only those that were."""
        counts = {
            scope.name: sum(informer.restarts for informer in scope.informers)
            for scope in self._scopes
        }
        return {name: count for name, count in counts.items() if count}


def is_news(event: Notification[Any], access: MetaAccess) -> bool:
    """Whether an object changed: False if it is only listed, for the first time or again."""
    if isinstance(event, Updated):
        return access.version(event.old) != access.version(event.new)
    return not (isinstance(event, Added) and event.initial)
