"""A token bucket: how many requests a client may start.

Off unless asked for: servers share their capacity fairly among clients by themselves (API Priority
and Fairness) and say so with 429 and Retry-After, which the retry policy obeys. A limit of ours is
for a server that does not, or for a program that must be gentle.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses

# A timer may fire a rounding error early; a token that lacks only that counts as complete.
_ONE = 1 - 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """At most `burst` requests at once, and `qps` a second in the long run."""

    qps: float
    burst: int

    def __post_init__(self) -> None:
        if not self.qps > 0 or self.burst < 1:
            raise ValueError(f"qps={self.qps} must be positive and burst={self.burst} at least 1")


class TokenBucket:
    """The tokens of one `RateLimit`, in the running loop's time.

    Callers get their tokens in the order in which they asked. One that is cancelled while it waits
    leaves its place, and those behind it move up; a token already granted to it is given back.
    """

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._tokens = float(limit.burst)
        self._counted_at: float | None = None
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        limit = self._limit
        return f"<TokenBucket [{limit.qps}/s, burst {limit.burst} | {len(self._waiting)} waiting]>"

    async def acquire(self) -> None:
        """Wait for a token and take it."""
        self._refill()
        if not self._waiting and self._tokens >= _ONE:
            self._tokens -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._arm()
        try:
            await waiter
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def _leave(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.cancelled():
            self._tokens += 1
        elif waiter in self._waiting:
            self._waiting.remove(waiter)
        self._grant()

    def _grant(self) -> None:
        """Hand out what there is, then set the timer for the next in line."""
        self._disarm()
        self._refill()
        while self._waiting and self._tokens >= _ONE:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._tokens -= 1
                waiter.set_result(None)
        self._arm()

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        since = now - self._counted_at if self._counted_at is not None else 0.0
        self._counted_at = now
        self._tokens = min(float(self._limit.burst), self._tokens + since * self._limit.qps)

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            delay = max(0.0, (1 - self._tokens) / self._limit.qps)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay, self._grant)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
