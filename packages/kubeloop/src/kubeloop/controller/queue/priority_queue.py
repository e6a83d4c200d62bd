"""Queues with delays and rate limits, up to the controllers' own `PriorityQueue`.

`DelayTimers` keeps any number of items with a deadline behind one loop timer: no task, nothing to
leave behind. While an item waits, the earlier deadline and the higher priority win. `DelayingQueue`
puts it before a work queue, and `RateLimitedQueue` asks a limiter how long a failed item has to
wait. In these two a waiting and a ready request are independent: a plain `add` of a waiting item
does not cancel its timer, so the item may run now and once more at its deadline.

`PriorityQueue` merges the two: an item is asked for once, at the earliest of the times and the
highest of the priorities it was asked for. An add without delay makes a waiting item ready now; a
delayed add of an item that is already ready changes at most its priority. An item that becomes
ready takes its place in its priority's order at that moment; one that a worker holds is skipped,
and takes its place when it is done.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.controller.queue.ratelimiters import RateLimiter, default_limiter
from kubeloop.controller.queue.workqueue import KeyedHeap, WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.controller.queue.metrics import QueueMetrics


K = TypeVar("K")


class DelayTimers(Generic[K]):
    """Waiting items, handed to `on_due(item, priority)` at their deadline, in deadline order."""

    __slots__ = ("_armed_for", "_on_due", "_priorities", "_timer", "_waiting")

    def __init__(self, on_due: Callable[[K, int], None]) -> None:
        self._on_due = on_due
        self._waiting: KeyedHeap[K] = KeyedHeap()
        self._priorities: dict[K, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, item: object) -> bool:
        return item in self._waiting

    def wait(self, item: K, seconds: float, priority: int) -> None:
        """Let an item wait; if it does already, for the shorter and at the higher of the two."""
        deadline = asyncio.get_running_loop().time() + seconds
        present = self._waiting.rank(item)
        if present is None or deadline < present:
            self._waiting.put(item, deadline)
        self._priorities[item] = max(priority, self._priorities.get(item, priority))
        self._arm()

    def discard(self, item: K) -> int | None:
        """Let an item wait no longer; returns its priority, None if it did not wait."""
        self._waiting.discard(item)
        return self._priorities.pop(item, None)

    def clear(self) -> None:
        """Forget all waiting items and the timer."""
        self._waiting.clear()
        self._priorities.clear()
        self._disarm()

    def _arm(self) -> None:
        first = self._waiting.first_rank()
        if first is None:
            self._disarm()
        elif self._timer is None or first < self._armed_for:
            self._disarm()
            self._armed_for = first
            self._timer = asyncio.get_running_loop().call_at(first, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        # A loop may run a timer a clock tick early; what it was set for is due all the same.
        now = max(asyncio.get_running_loop().time(), self._armed_for)
        while (first := self._waiting.first_rank()) is not None and first <= now:
            item, _ = self._waiting.pop()
            self._on_due(item, self._priorities.pop(item))
        self._arm()


class DelayingQueue(WorkQueue[K]):
    """A work queue whose items may be added for later."""

    def __init__(self, *, metrics: QueueMetrics | None = None) -> None:
        super().__init__(metrics=metrics)
        self._timers: DelayTimers[K] = DelayTimers(self._due)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-2]}, {len(self._timers)} delayed]>"

    def add_after(self, item: K, seconds: float, *, priority: int = 0) -> None:
        """Add an item after a delay; at once if that is not positive.

        An item that waits already is added once, at the earlier time and with the higher priority.
        """
        if self._shutting_down:
            return
        self._meter.retried()
        if seconds > 0:
            self._timers.wait(item, seconds, priority)
        else:
            self.add(item, priority=priority)

    def _due(self, item: K, priority: int) -> None:
        WorkQueue.add(self, item, priority=priority)

    def _close(self) -> None:
        super()._close()
        self._timers.clear()


class RateLimitedQueue(DelayingQueue[K]):
    """A queue for items that may fail.

    After a failure `add_rate_limited`, after a success `forget`; in both cases `done` as well.
    """

    def __init__(
        self, *, rate_limiter: RateLimiter[K] | None = None, metrics: QueueMetrics | None = None
    ) -> None:
        super().__init__(metrics=metrics)
        self._limiter: RateLimiter[K] = rate_limiter or default_limiter()

    def add_rate_limited(self, item: K, *, priority: int = 0) -> None:
        """Count a failure and add the item when its limiter allows."""
        if not self._shutting_down:
            self.add_after(item, self._limiter.when(item), priority=priority)

    def forget(self, item: K) -> None:
        """Clear what the limiter remembers of an item; the queue itself is untouched."""
        self._limiter.forget(item)

    def retries(self, item: K) -> int:
        """How many failures the limiter counts for an item."""
        return self._limiter.retries(item)


class PriorityQueue(RateLimitedQueue[K]):
    """A rate-limited queue in which every item has one merged request."""

    def add(
        self,
        item: K,
        *,
        priority: int = 0,
        after: float | None = None,
        rate_limited: bool = False,
        at_least: float = 0.0,
    ) -> None:
        """Ask for an item: now, after a delay, when its limiter allows, or the sooner of these.

        `rate_limited` counts a failure of the item; `at_least` is a delay that the limiter may not
        undercut. Ignored once shutting down.
        """
        if self._shutting_down:
            return
        delay = max(at_least, self._delay(item, after=after, rate_limited=rate_limited))
        if delay > 0 and not (item in self._ready or item in self._dirty):
            self._timers.wait(item, delay, priority)
        else:
            waiting = self._timers.discard(item)
            super().add(item, priority=priority if waiting is None else max(priority, waiting))

    def add_after(self, item: K, seconds: float, *, priority: int = 0) -> None:
        """Add an item after a delay; at once if that is not positive."""
        self.add(item, after=seconds, priority=priority)

    def add_rate_limited(self, item: K, *, priority: int = 0) -> None:
        """Count a failure and add the item when its limiter allows."""
        self.add(item, rate_limited=True, priority=priority)

    def _delay(self, item: K, *, after: float | None, rate_limited: bool) -> float:
        if after is not None or rate_limited:
            self._meter.retried()
        delays = [] if after is None else [after]
        if rate_limited:
            delays.append(self._limiter.when(item))
        return min(delays, default=0.0)
