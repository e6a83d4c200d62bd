"""A priority queue of unique keys whose rank may change: the ordering under every queue here.

A heap of (rank, number, key) beside a dictionary with each key's present entry. Changing or
dropping a key leaves its old heap entry behind, recognised as stale when it surfaces; when stale
entries outnumber live ones the heap is rebuilt, so that memory follows the live keys. The number
makes equal ranks first in, first out, and keeps keys from ever being compared.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

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
