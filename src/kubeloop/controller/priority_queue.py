"""The controllers' queue: one request per item, whatever way it was made.

Where the rate-limited queue keeps a waiting and a ready request apart, this one merges them: an
item is asked for once, at the earliest of the times and the highest of the priorities it was asked
for. An add without delay makes a waiting item ready now; a delayed add of an item that is already
ready changes at most its priority. An item that becomes ready takes its place in its priority's
order at that moment; one that a worker holds is skipped, and takes its place when it is done.
"""

from __future__ import annotations

from typing import TypeVar

from kubeloop.controller.ratelimited import RateLimitedQueue

K = TypeVar("K")


class PriorityQueue(RateLimitedQueue[K]):
    """A rate-limited queue in which every item has one merged request."""

    def add(
        self,
        item: K,
        *,
        priority: int = 0,
        after: float | None = None,
        rate_limited: bool = False,
    ) -> None:
        """Ask for an item: now, after a delay, when its limiter allows, or the sooner of these.

        `rate_limited` counts a failure of the item. Ignored once shutting down.
        """
        if self._shutting_down:
            return
        delay = self._delay(item, after=after, rate_limited=rate_limited)
        if delay > 0 and not self._is_asked_for_now(item):
            self._timers.wait(item, delay, priority)
        else:
            waiting = self._timers.discard(item)
            super().add(item, priority=priority if waiting is None else max(priority, waiting))

    def add_after(self, item: K, seconds: float, *, priority: int = 0) -> None:
        """Add an item after a delay; at once where that is not positive."""
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

    def _is_asked_for_now(self, item: K) -> bool:
        return item in self._ready or item in self._dirty
