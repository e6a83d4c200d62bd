"""What follows a wake-up and is in no hurry.

Where many targets are woken at once, what each of them leads to (a note in status, a look by the
reconciler) would stand before the next one's only urgent request. It is kept back until nobody is
being woken, or for a moment at most.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 0.5


class Afterwards:
    """Work that waits for a quiet moment; `longest` bounds the wait, in seconds."""

    def __init__(self, *, longest: float = _LONGEST) -> None:
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
