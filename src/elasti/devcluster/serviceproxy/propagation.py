"""How late a node learns of changes: a knob for tests.

Real nodes see endpoint changes after a delay, and not all in the same order. A `Propagation` keeps
each change back for its delay plus a random part of its jitter; changes to the same object stay in
order, changes to different ones may overtake each other.
"""

from __future__ import annotations

import asyncio
import collections
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Propagation:
    """Delays changes; with no delay and no jitter they pass at once."""

    def __init__(self, *, delay: float = 0.0, jitter: float = 0.0) -> None:
        self.delay = delay
        self.jitter = jitter
        self._coming: dict[str, collections.deque[Callable[[], None]]] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def pass_on(self, key: str, apply: Callable[[], None]) -> None:
        """Call `apply` when the change of the object `key` has arrived here."""
        if not self.delay and not self.jitter and key not in self._coming:
            apply()
            return
        self._coming.setdefault(key, collections.deque()).append(apply)
        self._after(self.delay + self.jitter * random.random(), key)

    def _after(self, seconds: float, key: str) -> None:
        def arrive() -> None:
            self._timers.discard(timer)
            # Whichever timer fires, it is the oldest change that arrives.
            coming = self._coming[key]
            apply = coming.popleft()
            if not coming:
                del self._coming[key]
            apply()

        timer = asyncio.get_running_loop().call_later(seconds, arrive)
        self._timers.add(timer)

    def close(self) -> None:
        """Forget what has not arrived."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._coming.clear()
