"""A queue's metrics, and the bookkeeping behind them.

`QueueMetrics` is the seam to a metrics library; the queue's name belongs to the program that makes one. A
queue without metrics pays for none of this. `QueueMeter` notes when items were added and taken and
reports the running ones every half second, by a timer that exists only while something runs.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")

_REFRESH_SECONDS = 0.5


class QueueMetrics(Protocol):
    """Receives the measurements of one queue. Calls must be quick and must not raise."""

    def depth(self, items: int) -> None:
        """Set how many items are ready to be taken."""

    def added(self) -> None:
        """Count an item that became ready or needs another run; duplicates do not count."""

    def waited(self, seconds: float) -> None:
        """Observe how long an item was ready before it was taken."""

    def worked(self, seconds: float) -> None:
        """Observe how long an item was being worked on."""

    def running(self, unfinished_seconds: float, longest_seconds: float) -> None:
        """Set the ages of the items being worked on: their sum and the highest."""

    def retried(self) -> None:
        """Count a delayed or rate-limited add."""


class QueueMeter(Generic[K]):
    """Follows items through a queue and reports; without metrics it does nothing."""

    __slots__ = ("_added_at", "_closed", "_metrics", "_started_at", "_timer")

    def __init__(self, metrics: QueueMetrics | None) -> None:
        self._metrics = metrics
        self._added_at: dict[K, float] = {}
        self._started_at: dict[K, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def added(self, item: K, depth: int) -> None:
        """The item became ready, or is marked for another run."""
        if self._metrics is None:
            return
        self._added_at.setdefault(item, _now())
        self._metrics.added()
        self._metrics.depth(depth)

    def requeued(self, depth: int) -> None:
        """An item marked earlier became ready."""
        if self._metrics is not None:
            self._metrics.depth(depth)

    def taken(self, item: K, depth: int) -> None:
        """A worker has the item."""
        if self._metrics is None:
            return
        now = _now()
        self._metrics.waited(now - self._added_at.pop(item, now))
        self._metrics.depth(depth)
        self._started_at[item] = now
        if self._timer is None and not self._closed:
            self._arm()

    def done(self, item: K) -> None:
        """The worker has finished."""
        if self._metrics is None or (started := self._started_at.pop(item, None)) is None:
            return
        self._metrics.worked(_now() - started)
        if not self._started_at:
            self._disarm()

    def retried(self) -> None:
        """A delayed or rate-limited add came in."""
        if self._metrics is not None:
            self._metrics.retried()

    def close(self) -> None:
        """Report the running items once more and never refresh again."""
        self._closed = True
        self._disarm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_REFRESH_SECONDS, self._refresh)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._report()

    def _refresh(self) -> None:
        self._report()
        self._arm()

    def _report(self) -> None:
        now = _now()
        ages = [now - started for started in self._started_at.values()]
        if self._metrics is not None:
            self._metrics.running(sum(ages), max(ages, default=0.0))


def _now() -> float:
    return asyncio.get_running_loop().time()
