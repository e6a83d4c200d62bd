"""When an item that failed may be tried again.

Limiters are small and combine: per-item growth spaces the retries of one item, a token bucket
bounds all retries together. None of them waits; they only answer how long to wait.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)

# 2.0 ** 1024 overflows; every delay is capped long before this.
_MAX_EXPONENT = 1000


class RateLimiter(Protocol[K_contra]):
    """Decides how long each next try of an item has to wait."""

    def when(self, item: K_contra) -> float:
        """Count a failure of the item and return the seconds to wait."""

    def forget(self, item: K_contra) -> None:
        """The item succeeded or was given up: its next failure is its first."""

    def retries(self, item: K_contra) -> int:
        """How many failures are counted for the item."""


class ExponentialLimiter(Generic[K]):
    """Doubles an item's delay with each failure: `base`, `2 * base`, ... up to `cap`."""

    __slots__ = ("_base", "_cap", "_failures")

    def __init__(self, *, base: float = 0.005, cap: float = 1000.0) -> None:
        self._base = base
        self._cap = cap
        self._failures: dict[K, int] = {}

    def when(self, item: K) -> float:
        """Count a failure of the item and return the seconds to wait."""
        before = self.retries(item)
        self._failures[item] = before + 1
        return min(self._base * 2.0 ** min(before, _MAX_EXPONENT), self._cap)

    def forget(self, item: K) -> None:
        """Start over for an item."""
        self._failures.pop(item, None)

    def retries(self, item: K) -> int:
        """How many failures are counted for the item."""
        return self._failures.get(item, 0)


class BucketLimiter(Generic[K]):
    """A token bucket for all items together: `burst` at once, then `rate` per second.

    Each question spends a token; when the bucket is empty a token is borrowed, and the answer is
    the time until the loan is covered.
    """

    __slots__ = ("_burst", "_rate", "_seen_at", "_tokens")

    def __init__(self, *, rate: float = 10.0, burst: int = 100) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"bucket rate={rate} must be above 0 and burst={burst} at least 1")
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._seen_at: float | None = None

    def when(self, item: K) -> float:
        """Spend a token and return the seconds to wait for it."""
        now = asyncio.get_running_loop().time()
        if self._seen_at is not None:
            gained = (now - self._seen_at) * self._rate
            self._tokens = min(self._burst, self._tokens + gained)
        self._seen_at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def forget(self, item: K) -> None:
        """Nothing is remembered per item."""

    def retries(self, item: K) -> int:
        """Nothing is counted per item."""
        return 0


class MaxOfLimiter(Generic[K]):
    """The longest of several answers. Every limiter is asked, so each counts every failure."""

    __slots__ = ("_limiters",)

    def __init__(self, *limiters: RateLimiter[K]) -> None:
        if not limiters:
            raise ValueError("MaxOfLimiter needs at least one limiter")
        self._limiters = limiters

    def when(self, item: K) -> float:
        """Count a failure of the item and return the seconds to wait."""
        return max([limiter.when(item) for limiter in self._limiters])

    def forget(self, item: K) -> None:
        """Start over for an item in every limiter."""
        for limiter in self._limiters:
            limiter.forget(item)

    def retries(self, item: K) -> int:
        """The highest count among the limiters."""
        return max(limiter.retries(item) for limiter in self._limiters)


def default_limiter() -> RateLimiter[object]:
    """The usual limiter: 5 ms doubling to 1000 s per item, and 10 retries/s (burst 100) overall."""
    return MaxOfLimiter[object](ExponentialLimiter(), BucketLimiter())
