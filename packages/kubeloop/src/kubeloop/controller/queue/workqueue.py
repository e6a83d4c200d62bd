"""A queue of unique items for level-triggered work.

An item is in at most one of two places: *ready* (waiting for a worker) or *processing* (a worker
has it). Adding a ready item changes nothing but perhaps its priority; adding one that is being
processed marks it *dirty*, and `done` makes it ready again. So no item is ever worked on twice at
once, and any number of adds during a run give exactly one more run.

Ready items leave by priority, highest first, and in the order in which they became ready within
one; raising an item's priority puts it behind its new equals. The queue lives on one event loop;
`add` and `done` are plain calls, so a handler can enqueue without waiting.

`get` pops only in the very step in which it returns, so a cancelled getter never takes an item with
it; a getter that was woken and cancelled at once wakes the next.

The order is a `KeyedHeap`: a heap of (rank, number, key) beside a dictionary with each key's
present entry. Changing or dropping a key leaves its old heap entry behind, recognised as stale when
it surfaces; when stale entries outnumber live ones the heap is rebuilt, so that memory follows the
live keys. The number makes equal ranks first in, first out, and keeps keys from being compared.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import heapq
import itertools
from typing import Generic, TypeVar

from kubeloop.controller.queue.metrics import QueueMeter, QueueMetrics

K = TypeVar("K")

_COMPACT_FROM = 64


class KeyedHeap(Generic[K]):
    """Keys in order of rank, lowest first, equals in the order in which they were put."""

    __slots__ = ("_entries", "_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._entries: dict[K, tuple[float, int, K]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def rank(self, key: K) -> float | None:
        """The key's rank, None if it is not here."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, rank: float) -> None:
        """Set a key's rank and place it behind its equals, new or not."""
        entry = (rank, next(self._numbers), key)
        self._entries[key] = entry
        heapq.heappush(self._heap, entry)
        self._compact()

    def discard(self, key: K) -> None:
        """Drop a key if it is here."""
        if self._entries.pop(key, None) is not None:
            self._compact()

    def first_rank(self) -> float | None:
        """The lowest rank, None if empty."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[K, float]:
        """Take the first key out, with its rank. Raises IndexError if empty."""
        self._drop_stale()
        rank, _, key = heapq.heappop(self._heap)
        del self._entries[key]
        return key, rank

    def clear(self) -> None:
        """Drop everything."""
        self._heap.clear()
        self._entries.clear()

    def _drop_stale(self) -> None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _COMPACT_FROM:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)


class QueueShutDown(Exception):
    """The queue is shut down and has nothing left to hand out."""


class WorkQueue(Generic[K]):
    """The basic queue: unique items, priorities, shutdown with or without drain."""

    def __init__(self, *, metrics: QueueMetrics | None = None) -> None:
        self._ready: KeyedHeap[K] = KeyedHeap()
        self._dirty: dict[K, int] = {}
        self._processing: dict[K, int] = {}
        self._getters: collections.deque[asyncio.Future[None]] = collections.deque()
        self._drainers: list[asyncio.Future[None]] = []
        self._shutting_down = False
        self._meter: QueueMeter[K] = QueueMeter(metrics)

    def __len__(self) -> int:
        """How many items are ready; those being processed or delayed do not count."""
        return len(self._ready)

    def __repr__(self) -> str:
        state = "shut down" if self._shutting_down else "open"
        return (
            f"<{type(self).__name__} [{state}: {len(self)} ready,"
            f" {len(self._processing)} processing, {len(self._dirty)} dirty]>"
        )

    @property
    def shutting_down(self) -> bool:
        """Whether the queue no longer takes items."""
        return self._shutting_down

    def add(self, item: K, *, priority: int = 0) -> None:
        """Ask for the item to be worked on; ignored once shutting down.

        For an item that is already asked for, the higher of the two priorities holds.
        """
        if self._shutting_down:
            return
        if item in self._processing:
            present = self._dirty.get(item)
            self._dirty[item] = priority if present is None else max(present, priority)
            if present is None:
                self._meter.added(item, len(self))
        elif (rank := self._ready.rank(item)) is None:
            self._make_ready(item, priority)
            self._meter.added(item, len(self))
        elif -priority < rank:
            self._ready.put(item, -priority)

    async def get(self) -> K:
        """Return the first ready item, waiting for one; hand it back with `done`.

        After a shutdown it returns what is still ready and then raises `QueueShutDown`.
        """
        item, _ = await self.get_with_priority()
        return item

    async def get_with_priority(self) -> tuple[K, int]:
        """Like `get`, with the priority that the item had when it became ready."""
        while not len(self._ready):
            if self._shutting_down:
                raise QueueShutDown
            await self._wait_for_item()
        return self._take()

    def done(self, item: K) -> None:
        """Hand an item back; if it was added meanwhile, it is ready again.

        Raises ValueError for an item that no worker has.
        """
        if item not in self._processing:
            raise ValueError(f"done({item!r}): the item is not being processed")
        del self._processing[item]
        self._meter.done(item)
        if (priority := self._dirty.pop(item, None)) is not None:
            self._make_ready(item, priority)
            self._meter.requeued(len(self))
        if self._drainers and self._is_idle():
            _release(self._drainers)

    def shutdown(self) -> None:
        """Stop taking items; getters get what is ready and then `QueueShutDown`.

        Ends the wait of a `shutdown_with_drain`.
        """
        self._close()
        _release(self._drainers)

    async def shutdown_with_drain(self) -> None:
        """Stop taking items and wait until none is ready and none being processed.

        Needs workers that go on until `QueueShutDown`. Items marked dirty meanwhile are worked on
        too. A later `shutdown()` ends the wait; so does cancellation, which leaves the queue shut.
        """
        self._close()
        if not self._is_idle():
            drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drainers.append(drained)
            await drained

    def _close(self) -> None:
        self._shutting_down = True
        self._meter.close()
        _release(self._getters)

    def _is_idle(self) -> bool:
        return not self._ready and not self._processing

    def _make_ready(self, item: K, priority: int) -> None:
        self._ready.put(item, -priority)
        self._wake_getter()

    def _take(self) -> tuple[K, int]:
        item, rank = self._ready.pop()
        self._processing[item] = priority = int(-rank)
        self._meter.taken(item, len(self))
        return item, priority

    async def _wait_for_item(self) -> None:
        getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.cancelled():
                with contextlib.suppress(ValueError):
                    self._getters.remove(getter)
            elif self._ready:
                self._wake_getter()
            raise

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return


def _release(futures: list[asyncio.Future[None]] | collections.deque[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()
