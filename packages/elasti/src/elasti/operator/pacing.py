"""Work that is not urgent, kept from crowding out what is.

- `BoundedRequeue`: many reconciles that are due at once, a few in the queue at a time. Another
  resolver concerns everything that sleeps; if thousands were queued together, hand-overs would
  stand behind them in the queue, and wake-ups on the same processor and the same server.
- `RateSpacer`: moments at a steady rate, so that a lost resolver does not start every target at
  once.
- `DeferredWork`: what follows a wake-up (a note in status, a reconcile) waits until no target
  is being woken, for a moment at most; else it would stand before the next one's only urgent
  request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kubeloop.controller.reconcile import Request

_MAX_QUEUED = 4


class BoundedRequeue:
    """Hands requests to `enqueue`, `most` at a time, in the order in which they came."""

    def __init__(self, enqueue: Callable[[Request], None], *, most: int = _MAX_QUEUED) -> None:
        self._enqueue = enqueue
        self._most = most
        self._waiting: dict[Request, None] = {}
        self._under_way: set[Request] = set()

    def __repr__(self) -> str:
        return f"<BoundedRequeue {len(self._under_way)} under way, {len(self._waiting)} waiting>"

    def add(self, request: Request) -> None:
        """Have it reconciled in its turn; does nothing if it is already waiting.

        One that is under way may be half done: it comes once more.
        """
        self._waiting.setdefault(request)
        self._go_on()

    def reconciled(self, request: Request) -> None:
        """It was reconciled, for this or another reason."""
        self._under_way.discard(request)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._under_way) < self._most:
            ready = (request for request in self._waiting if request not in self._under_way)
            request = next(ready, None)
            if request is None:
                return
            del self._waiting[request]
            self._under_way.add(request)
            self._enqueue(request)


class RateSpacer:
    """Gives out moments, `rate` a second."""

    def __init__(self, rate: float = 10.0) -> None:
        self._gap = 1.0 / rate
        self._next = 0.0

    def reserve(self, now: float) -> float:
        """Return the next free moment, not before now."""
        moment = max(now, self._next)
        self._next = moment + self._gap
        return moment


_MAX_DELAY = 0.5


class DeferredWork:
    """Work that waits for a quiet moment; `longest` bounds the wait, in seconds."""

    def __init__(self, *, longest: float = _MAX_DELAY) -> None:
        self._longest = longest
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, work: Callable[[], None]) -> None:
        """Do this at the next `flush`, or when its time is over."""
        self._waiting.append(work)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._longest, self.flush)

    def flush(self) -> None:
        """Do everything now, in order."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()
