"""From an informer's notifications to a controller's queue: sources and mappings.

A source is one watch of a controller: predicates decide whether a notification matters, a mapping
turns it into requests, the priority lets real changes overtake the flood of a start: objects of
the initial list and updates that change nothing are of low priority.

A mapping reads both sides of an update: what the old object owned or named has lost something,
what the new one names has gained it. Each request is given once.

The informer may be given, or asked for by a function when the controller starts. A function that
fails with a `KubeError`, because its kind is not installed yet, is called again every ten seconds
for as long as the controller's sync timeout allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from kubeloop.client.errors import KubeError
from kubeloop.controller.reconcile import Request
from kubeloop.informer.handlers import Added, Deleted, Notification, OnEvent, Updated
from kubeloop.objects.meta import MetaAccess, OwnerReference, access_for, split_key
from kubeloop.objects.owners import is_of_kind

if TYPE_CHECKING:
    from kubeloop.controller.predicates import Predicate
    from kubeloop.objects.gvk import GroupVersionKind


T = TypeVar("T")

Mapping: TypeAlias = Callable[[Notification[T]], Iterable[Request]]
MapFunction: TypeAlias = Callable[[T], Iterable[Request]]

_log = logging.getLogger(__name__)


LOW_PRIORITY = -100
KIND_RETRY_SECONDS = 10.0


def for_object() -> Mapping[Any]:
    """Reconcile the object itself."""
    return lambda event: (split_key(event.key),)


def map_func(function: MapFunction[T]) -> Mapping[T]:
    """Reconcile what a function says, of an update for the old and the new object."""

    def requests(event: Notification[T]) -> Iterable[Request]:
        if isinstance(event, Updated):
            return dict.fromkeys((*function(event.old), *function(event.new)))
        return dict.fromkeys(function(event.obj))

    return requests


def for_owner(
    owner: GroupVersionKind, *, controller_only: bool = False, namespaced: bool = True
) -> Mapping[Any]:
    """Reconcile the owners of a kind, of any version of it.

    `controller_only`: only the owner that is marked as the controller. `namespaced=False`: owners of
    this kind are cluster-scoped, so their requests have no namespace.
    """

    def owners(obj: Any) -> Iterable[Request]:
        access = access_for(type(obj))
        namespace = access.namespace(obj) if namespaced else ""
        for reference in access.owners(obj):
            if _refers_to(reference, owner) and (reference.controller or not controller_only):
                yield Request(namespace, reference.name)

    return map_func(owners)


def _refers_to(reference: OwnerReference, owner: GroupVersionKind) -> bool:
    try:
        return is_of_kind(reference, owner.group, owner.kind)
    except ValueError:
        _log.warning(
            "owner reference to %s %s is ignored: its apiVersion %r is malformed",
            *(reference.kind, reference.name, reference.api_version),
        )
        return False


class Registration(Protocol):
    """A handler on an informer."""

    @property
    def has_synced(self) -> bool:
        """Whether the handler has seen every object of the initial list."""

    async def wait_synced(self) -> bool:
        """Wait for that (True), or for the informer's end before it (False)."""


class EventSource(Protocol[T]):
    """The interface of an informer that a controller uses."""

    @property
    def access(self) -> MetaAccess:
        """How to read the metadata of its objects."""

    def add_handler(self, *, on_event: OnEvent[T], name: str) -> Registration:
        """Register a handler for everything that happens, from the initial objects on."""

    # Any: an informer takes back only its own kind of registration, which no other can name.
    async def remove_handler(self, handle: Any, /) -> None:
        """Take the handler off again; safe to repeat."""


class Enqueue(Protocol):
    """The interface of a queue that a source uses."""

    def __call__(self, item: Request, *, priority: int) -> None:
        """Ask for a reconcile."""


InformerFactory: TypeAlias = Callable[[], Awaitable[EventSource[T]]]


class SourceStopped(Exception):
    """An informer ended before a controller that needs it had seen its objects."""


class Source(Generic[T]):
    """One watch of a controller."""

    def __init__(
        self,
        origin: EventSource[T] | InformerFactory[T],
        *,
        name: str,
        mapping: Mapping[T],
        predicates: Sequence[Predicate[T]] = (),
    ) -> None:
        self.name = name
        self.last_error: KubeError | None = None
        self._origin = origin
        self._mapping = mapping
        self._predicates = tuple(predicates)
        self._informer: EventSource[T] | None = None
        self._registration: Registration | None = None

    @property
    def has_synced(self) -> bool:
        """Whether every initial object has been mapped."""
        return self._registration is not None and self._registration.has_synced

    @property
    def is_deferred(self) -> bool:
        """Whether the informer has to be asked for."""
        return callable(self._origin)

    async def start(self, enqueue: Enqueue) -> None:
        """Register on the informer, once; a cancelled start may be repeated."""
        if self._registration is None:
            self._register(await self._obtain(), enqueue)

    def start_now(self, enqueue: Enqueue) -> None:
        """Register on an informer that was given."""
        assert not callable(self._origin)
        self._register(self._origin, enqueue)

    async def wait_synced(self) -> None:
        """Wait until every initial object has been mapped. Raises SourceStopped."""
        assert self._registration is not None
        if not await self._registration.wait_synced():
            raise SourceStopped(f"the informer of {self.name} stopped before its cache had synced")

    async def stop(self) -> None:
        """Leave the informer."""
        if self._informer is not None:
            await self._informer.remove_handler(self._registration)

    def _register(self, informer: EventSource[T], enqueue: Enqueue) -> None:
        def on_event(event: Notification[T]) -> None:
            self._handle(event, informer.access, enqueue)

        self._registration = informer.add_handler(on_event=on_event, name=self.name)
        self._informer = informer

    async def _obtain(self) -> EventSource[T]:
        if not callable(self._origin):
            return self._origin
        while True:
            try:
                return await self._origin()
            except KubeError as error:
                self.last_error = error
                _log.warning(
                    "%s: no informer yet, next try in %g s: %s",
                    self.name,
                    KIND_RETRY_SECONDS,
                    error,
                )
                await asyncio.sleep(KIND_RETRY_SECONDS)

    def _handle(self, event: Notification[T], access: MetaAccess, enqueue: Enqueue) -> None:
        if isinstance(event, Deleted) and event.obj is None:
            _log.error("%s: the deletion of %s came without an object", self.name, event.key)
            return
        for predicate in self._predicates:
            if not predicate(event):
                return
        priority = _priority(event, access)
        for request in self._mapping(event):
            enqueue(request, priority=priority)


def _priority(event: Notification[T], access: MetaAccess) -> int:
    match event:
        case Added(initial=True):
            return LOW_PRIORITY
        case Updated(old=old, new=new):
            return LOW_PRIORITY if access.version(old) == access.version(new) else 0
        case _:
            return 0
