"""How long to wait before trying again.

A `Backoff` is a value that says how delays grow; `start()` gives the stateful sequence of one
retrying party. Jitter widens a delay and is never fed back into the next one, so the growth is
the same for every client while the moments differ. `QuietResetBackoff` starts the sequence again after
a quiet time: a caller that asked for no delay that long has been healthy.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Protocol, TypeAlias

Random: TypeAlias = Callable[[], float]
"""Returns a number in [0, 1)."""


class DelaySequence(Protocol):
    """Gives one delay after another, in seconds."""

    def next_delay(self) -> float:
        """Return how long to wait now."""


def jittered(seconds: float, factor: float, rand: Random = random.random) -> float:
    """Lengthen a delay by up to `factor` times itself; a factor of 0 or less changes nothing."""
    return seconds * (1.0 + factor * rand()) if factor > 0 else seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that start at `duration` and are multiplied by `factor` at each step.

    They grow `steps` times (None: without end) and never past `cap` (None: no cap); from then on
    they stay what they are. Each is lengthened by up to `jitter` times itself.
    """

    duration: float
    factor: float = 1.0
    jitter: float = 0.0
    steps: int | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.duration < 0 or self.factor < 0:
            raise ValueError(
                f"backoff duration {self.duration} and factor {self.factor} must not be negative"
            )
        if self.steps is None and self.cap is None and self.factor > 1:
            raise ValueError("a growing backoff needs a cap or a number of steps")

    def start(self, *, rand: Random = random.random) -> BackoffDelays:
        """Begin a sequence of delays."""
        return BackoffDelays(self, rand=rand)


class BackoffDelays:
    """One party's place in a `Backoff`."""

    __slots__ = ("_backoff", "_base", "_rand", "_steps")

    def __init__(self, backoff: Backoff, *, rand: Random = random.random) -> None:
        self._backoff = backoff
        self._rand = rand
        self.reset()

    def reset(self) -> None:
        """Go back to the first delay."""
        duration, cap = self._backoff.duration, self._backoff.cap
        self._base = duration if cap is None else min(duration, cap)
        self._steps = self._backoff.steps

    def next_delay(self) -> float:
        """Return the present delay and move on to the next."""
        delay = jittered(self._base, self._backoff.jitter, self._rand)
        self._grow()
        return delay

    def _grow(self) -> None:
        if self._steps is not None:
            if self._steps < 1:
                return
            self._steps -= 1
        grown = self._base * self._backoff.factor
        cap = self._backoff.cap
        if cap is not None and grown >= cap:
            self._base, self._steps = cap, 0
        else:
            self._base = grown


class QuietResetBackoff:
    """A backoff that starts from the beginning when no delay was asked for longer than `reset_after` seconds.

    Quiet is counted from the previous request in the running loop's time; an outage in which
    requests keep coming never resets it.
    """

    __slots__ = ("_asked_at", "_delays", "_reset_after")

    def __init__(
        self, backoff: Backoff, *, reset_after: float, rand: Random = random.random
    ) -> None:
        self._delays = backoff.start(rand=rand)
        self._reset_after = reset_after
        self._asked_at: float | None = None

    def next_delay(self) -> float:
        """Return how long to wait now."""
        now = asyncio.get_running_loop().time()
        if self._asked_at is not None and now - self._asked_at > self._reset_after:
            self._delays.reset()
        self._asked_at = now
        return self._delays.next_delay()

    def reset(self) -> None:
        """Go back to the first delay at once."""
        self._delays.reset()
