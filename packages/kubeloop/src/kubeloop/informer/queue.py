"""The ordered queue between the reflector and the store (client-go's RealFIFO, atomic mode).

Entries leave in the order in which they came; nothing is merged. The changes of one read are one
entry, so are a whole list, a resync and a bookmark. A list is applied in one step for that reason,
and no delete is overtaken by a resync or a list: see docs/adr/0002-one-ordered-queue.md.

Putting never blocks and never fails; a producer that is ahead waits in `wait_for_room()`, which is how
back-pressure reaches the socket. One consumer takes an entry, applies it and says `done`, or
`failed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeAlias, TypeVar

import msgspec

from kubeloop.informer.reflector.events import Delta
from kubeloop.objects.meta import Key

T = TypeVar("T")

BATCH = 1000
"""How many changes count as one batch; the producer waits at two of them."""


class Changes(msgspec.Struct, Generic[T], frozen=True):
    """Events of a watch, in order."""

    items: list[Delta[T]]


class ReplacedAll(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """A complete list: what is not in it is gone."""

    items: dict[Key, T]
    version: str


class SyncAll(msgspec.Struct, frozen=True):
    """Notify the handlers that are due about every object that is in the store by then."""


class Bookmark(msgspec.Struct, frozen=True):
    """Nothing changed up to `version`."""

    version: str


QueueEntry: TypeAlias = Changes[T] | ReplacedAll[T] | SyncAll | Bookmark


class QueueClosed(Exception):
    """The queue is closed and empty."""


class DeltaQueue(Generic[T]):
    """An ordered queue with one producer and one consumer."""

    def __init__(self, *, limit: int = 2 * BATCH) -> None:
        self._entries: deque[QueueEntry[T]] = deque()
        self._limit = limit
        self._waiting_changes = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False
        self._populated = False
        self._first_list: ReplacedAll[T] | None = None

    def __len__(self) -> int:
        """How many changes wait; lists, resyncs and bookmarks count as one each."""
        return self._waiting_changes

    def __repr__(self) -> str:
        state = "closed" if self._closed else "synced" if self.has_synced else "not synced"
        return f"<DeltaQueue {state}: {len(self._entries)} entries, {len(self)} changes>"

    @property
    def has_synced(self) -> bool:
        """Whether the first list was applied; also true where changes came before any list."""
        return self._populated and self._first_list is None

    def put(self, items: list[Delta[T]]) -> None:
        """Append the changes of one read."""
        if items:
            self._populated = True
            self._append(Changes(items), len(items))

    def replace(self, items: dict[Key, T], version: str) -> None:
        """Append a complete list."""
        entry = ReplacedAll(items, version)
        if not self._populated:
            self._populated, self._first_list = True, entry
        self._append(entry)

    def resync(self) -> None:
        """Append a resync."""
        self._append(SyncAll())

    def bookmark(self, version: str) -> None:
        """Append a bookmark."""
        self._append(Bookmark(version))

    async def wait_for_room(self) -> None:
        """Wait while two batches or more are queued."""
        await self._drained.wait()

    async def pop(self) -> QueueEntry[T]:
        """Take the next entry, waiting for it; raises QueueClosed when closed and empty."""
        while not self._entries:
            if self._closed:
                raise QueueClosed
            self._filled.clear()
            await self._filled.wait()
        entry = self._entries.popleft()
        self._waiting_changes -= len(entry.items) if isinstance(entry, Changes) else 1
        if self._waiting_changes < self._limit:
            self._drained.set()
        return entry

    def done(self, entry: QueueEntry[T]) -> None:
        """Note that an entry was applied; being merely taken does not make a list synced."""
        if entry is self._first_list:
            self._first_list = None

    def failed(self, entry: QueueEntry[T]) -> None:
        """Note that an entry was not applied; after a first list the next one is the first."""
        if entry is self._first_list:
            self._populated, self._first_list = False, None

    def close(self) -> None:
        """Accept nothing more; a waiting consumer wakes, what is queued can still be taken."""
        self._closed = True
        self._filled.set()
        self._drained.set()

    def _append(self, entry: QueueEntry[T], changes: int = 1) -> None:
        if self._closed:
            return
        self._entries.append(entry)
        self._waiting_changes += changes
        if self._waiting_changes >= self._limit:
            self._drained.clear()
        self._filled.set()
