"""Handlers: what they are notified of, and how callables become handlers.

One notification is made for each change and shared by all handlers. Notifications are Structs
that the cyclic collector does not track: one is made for every event, and a store full of them
must not cost a collection.

A handler is three small callables, or one that gets everything:

    on_add(obj)   on_update(old, new)   on_delete(obj)        # each optional
    on_event(Added | Updated | Deleted)                       # with `initial`, `stale` and the key

Each may be plain or `async`. A plain one runs on the event loop and must be quick; one that blocks
is declared `blocking` and runs in a thread, still one call at a time and in order. That thread is
its own: the few of the loop also resolve the names of servers, and one that is stuck would be
missed. What a handler returns is ignored, unless it can be awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from kubeloop.objects.meta import Key

T = TypeVar("T")


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object appeared. `initial`: it was there before the informer, or the handler, started."""

    key: Key
    obj: T
    initial: bool = False


class Updated(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object changed, or is repeated by a resync or a relist (then both versions are equal).

    `old` is what the handler's previous notification for the key carried, or another copy of the
    same version. The uid may differ: a name that was deleted and made again while there was no watch is
    one update.
    """

    key: Key
    old: T
    new: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object is gone; `obj` is its last known state.

    `stale` (client-go's DeletedFinalStateUnknown, a tombstone): the deletion itself was missed and
    found by a relist, so the object's final state is not known. Otherwise `obj` came with the
    deletion and carries its resourceVersion.
    """

    key: Key
    obj: T
    stale: bool = False


Notification: TypeAlias = Added[T] | Updated[T] | Deleted[T]


OnObject: TypeAlias = Callable[[T], Awaitable[object] | object]
OnUpdate: TypeAlias = Callable[[T, T], Awaitable[object] | object]
OnEvent: TypeAlias = Callable[[Notification[T]], Awaitable[object] | object]
Filter: TypeAlias = Callable[[T], bool]
Deliver: TypeAlias = OnEvent[T]


class Callbacks(Generic[T]):
    """Three optional callables as one."""

    __slots__ = ("_on_add", "_on_delete", "_on_update")

    def __init__(
        self,
        on_add: OnObject[T] | None = None,
        on_update: OnUpdate[T] | None = None,
        on_delete: OnObject[T] | None = None,
    ) -> None:
        self._on_add = on_add or _ignore
        self._on_update = on_update or _ignore
        self._on_delete = on_delete or _ignore

    def __call__(self, note: Notification[T]) -> Awaitable[object] | object:
        """Call the one that fits."""
        if isinstance(note, Updated):
            return self._on_update(note.old, note.new)
        if isinstance(note, Added):
            return self._on_add(note.obj)
        return self._on_delete(note.obj)


def as_handler(
    on_event: OnEvent[T] | None,
    on_add: OnObject[T] | None,
    on_update: OnUpdate[T] | None,
    on_delete: OnObject[T] | None,
    *,
    blocking: bool,
) -> Deliver[T]:
    """Return one callable for those given. Raises ValueError for what does not go together."""
    three = [item for item in (on_add, on_update, on_delete) if item is not None]
    if (on_event is None) == (not three):
        raise ValueError("give on_event alone, or some of on_add, on_update and on_delete")
    if blocking and any(map(inspect.iscoroutinefunction, (on_event, *three))):
        raise ValueError("blocking=True is for plain functions; an async one needs no thread")
    return on_event or Callbacks(on_add, on_update, on_delete)


def filtered(deliver: Deliver[T], passes: Filter[T]) -> Deliver[T]:
    """Deliver only what passes (client-go's FilteringResourceEventHandler).

    An update that leaves the filter is a delete of the old object, one that enters it an add of
    the new. The filter sees objects only, the last known one of a stale delete too.
    """

    def delivering(note: Notification[T]) -> Awaitable[object] | object:
        if isinstance(note, Updated):
            before, after = passes(note.old), passes(note.new)
            if before and after:
                return deliver(note)
            if after:
                return deliver(Added(note.key, note.new))
            return deliver(Deleted(note.key, note.old)) if before else None
        return deliver(note) if passes(note.obj) else None

    return delivering


def split_on_uid(deliver: Deliver[T], uid: Callable[[T], str]) -> Deliver[T]:
    """Deliver an update that changes the uid as a delete of the old object and an add of the new."""

    async def both(note: Updated[T]) -> None:
        for part in (Deleted(note.key, note.old, stale=True), Added(note.key, note.new)):
            result = deliver(part)
            if isinstance(result, Awaitable):
                await result

    def delivering(note: Notification[T]) -> Awaitable[object] | object:
        if isinstance(note, Updated) and uid(note.old) != uid(note.new):
            return both(note)
        return deliver(note)

    return delivering


def in_own_thread(deliver: Deliver[T], cleanup: contextlib.ExitStack) -> Deliver[T]:
    """Deliver in a thread that begins with its first work and ends at the cleanup, unawaited."""
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kubeloop-handler")
    cleanup.callback(executor.shutdown, wait=False)

    def delivering(note: Notification[T]) -> Awaitable[object]:
        return asyncio.get_running_loop().run_in_executor(executor, deliver, note)

    return delivering


def describe(*callables: object) -> str:
    """Return a name for a handler made of callables."""
    named = (getattr(item, "__qualname__", None) for item in callables if item is not None)
    return next((name for name in named if name), "handler")


def _ignore(*_objects: Any) -> None:
    return None
