"""When to probe, and when a verdict changes. Pure.

Ticks keep their phase: a probe that takes longer than its period is followed at once by the tick it
missed, and the ticks it missed before that are lost. A verdict needs a run of equal results, as long
as the threshold for that result.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.objects.containers import Probe


def first_tick(origin: float, period: float, now: float) -> float:
    """Return the first tick that is not over, of those that began at `origin`."""
    if now <= origin:
        return origin
    return origin + math.ceil((now - origin) / period) * period


def next_tick(tick: float, period: float, now: float) -> float:
    """Return the tick to wait for after the probe of one tick; it may be due already."""
    following = tick + period
    if following >= now:
        return following
    return tick + math.floor((now - tick) / period) * period


def is_delayed(spec: Probe, *, started: float, now: float) -> bool:
    """Whether a container is too young to be probed; whole seconds count."""
    return int(now - started) < spec.initial_delay_seconds


class Verdicts:
    """Turns results into verdicts."""

    def __init__(self, spec: Probe, *, initial: bool | None) -> None:
        self._thresholds = {True: spec.success_threshold, False: spec.failure_threshold}
        self._verdict = initial
        self._last: bool | None = None
        self._run = 0

    def feed(self, result: bool) -> bool | None:  # noqa: FBT001 -- the result of one probe
        """Take a result; returns a verdict where it is a new one."""
        self._run = self._run + 1 if result is self._last else 1
        self._last = result
        if self._run < self._thresholds[result] or result is self._verdict:
            return None
        self._verdict = result
        return result
