"""A delaying queue that asks a limiter how long a failed item has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kubeloop.controller.delaying import DelayingQueue
from kubeloop.controller.ratelimiters import RateLimiter, default_limiter

if TYPE_CHECKING:
    from kubeloop.controller.queue_metrics import QueueMetrics

K = TypeVar("K")


class RateLimitedQueue(DelayingQueue[K]):
    """A queue for items that may fail.

    After a failure `add_rate_limited`, after a success `forget`; in both cases `done` as well.
    """

    def __init__(
        self,
        *,
        rate_limiter: RateLimiter[K] | None = None,
        metrics: QueueMetrics | None = None,
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
