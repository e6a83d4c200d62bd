"""Whether a target may sleep or must wake: pure, from readings and times.

Sleeping needs all the evidence, waking needs any. A trigger lets a target sleep only after its value
has been seen below the threshold for a whole cooldown, without a gap: an error, a stale reading or
NaN starts the cooldown anew, and never wakes anything by itself.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Verdict(enum.Enum):
    """What follows from the evidence."""

    SLEEP = "sleep"
    STAY = "stay"
    WAKE = "wake"


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a trigger said: a value, or why there is none."""

    value: float = math.nan
    error: str = ""

    @property
    def usable(self) -> bool:
        """Whether the value can be compared at all."""
        return not self.error and not math.isnan(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What one trigger has shown so far; times are seconds on the caller's clock."""

    threshold: float
    last: Reading | None = None
    read_at: float = -math.inf
    quiet_since: float | None = None

    def after(self, reading: Reading, now: float, *, stale_after: float) -> Evidence:
        """Return the evidence with one more reading; a gap of `stale_after` breaks the quiet."""
        quiet = reading.usable and is_quiet(reading.value, self.threshold)
        unbroken = self.quiet_since is not None and now - self.read_at < stale_after
        since = (self.quiet_since if unbroken else now) if quiet else None
        return dataclasses.replace(self, last=reading, read_at=now, quiet_since=since)

    def is_active(self) -> bool:
        """Whether the last reading shows use."""
        last = self.last
        return last is not None and last.usable and not is_quiet(last.value, self.threshold)

    def quiet_for(self, now: float, *, stale_after: float) -> float:
        """Return for how long the trigger has been quiet; 0 where it is not, or is stale."""
        if self.quiet_since is None or now - self.read_at >= stale_after:
            return 0.0
        return now - self.quiet_since


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a decision looks at; times are seconds on the caller's clock.

    `attempt_ended`: why the last attempt to park it came to nothing. `asked`: a person asked for the
    target to sleep now, which stands for the cooldown and for the triggers, and for nothing else.
    """

    now: float
    cooldown: float
    created_at: float
    last_scaled_up: float = -math.inf
    last_traffic: float = -math.inf
    last_attempt: float = -math.inf
    attempt_ended: str = ""
    asked: bool = False
    enabled: bool = True
    triggers: Sequence[Evidence] = ()
    stale_after: float = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The verdict and the reason, in words for a person."""

    verdict: Verdict
    reason: str


def is_quiet(value: float, threshold: float) -> bool:
    """Whether a value is below its threshold; nothing at all is quiet even where that is zero."""
    return value < threshold or value == 0


def decide(seen: Situation) -> Decision:
    """Weigh the evidence."""
    if not seen.enabled:
        return Decision(Verdict.WAKE, "outside the enabled period")
    if seen.asked:
        return Decision(Verdict.SLEEP, "asked to sleep")
    if any(trigger.is_active() for trigger in seen.triggers):
        return Decision(Verdict.WAKE, "a trigger is at or above its threshold")
    if not seen.triggers:
        return Decision(Verdict.STAY, "there is no trigger that could show it idle")
    if complaint := _too_early(seen):
        return Decision(Verdict.STAY, complaint)
    return Decision(Verdict.SLEEP, f"idle for {seen.cooldown:.0f} s")


def _too_early(seen: Situation) -> str | None:
    since = {
        "it was created": seen.created_at,
        "it was last woken": seen.last_scaled_up,
        "traffic last reached the resolver": seen.last_traffic,
        "the last attempt to park it": seen.last_attempt,
    }
    for what, moment in since.items():
        if seen.now - moment < seen.cooldown:
            return f"less than the cooldown of {seen.cooldown:.0f} s since {what}"
    for index, trigger in enumerate(seen.triggers):
        if complaint := _not_yet_quiet(trigger, seen):
            return f"trigger {index} {complaint}"
    return None


def _not_yet_quiet(trigger: Evidence, seen: Situation) -> str | None:
    if trigger.last is None:
        return "has not been read yet"
    if not trigger.last.usable:
        return f"cannot be used: {trigger.last.error or 'its value is NaN'}"
    if seen.now - trigger.read_at >= seen.stale_after:
        return f"was last read {seen.now - trigger.read_at:.0f} s ago"
    if trigger.quiet_for(seen.now, stale_after=seen.stale_after) < seen.cooldown:
        return f"has been quiet for less than the cooldown of {seen.cooldown:.0f} s"
    return None
