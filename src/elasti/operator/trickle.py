"""Many looks that are due at once and none of which is urgent: a few at a time. Pure.

Another resolver concerns everything that sleeps. If thousands were looked at together, whatever else happens
would stand behind them: hand-overs in the queue, and wake-ups on the same processor and the same server. So
only a few are in the queue at any time; each that was looked at makes room for the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.controller.reconcile import Request

_MOST = 4


class Trickle:
    """Hands requests to `enqueue`, `most` at a time, in the order in which they came."""

    def __init__(self, enqueue: Callable[[Request], None], *, most: int = _MOST) -> None:
        self._enqueue = enqueue
        self._most = most
        self._waiting: dict[Request, None] = {}
        self._under_way: set[Request] = set()

    def __repr__(self) -> str:
        return f"<Trickle {len(self._under_way)} under way, {len(self._waiting)} waiting>"

    def add(self, request: Request) -> None:
        """Have it looked at some time; nothing where it waits for that already.

        One that is under way may be half done: it comes once more.
        """
        self._waiting.setdefault(request)
        self._go_on()

    def looked(self, request: Request) -> None:
        """It was looked at, whoever asked for it."""
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
