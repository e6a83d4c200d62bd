"""Whether a target may sleep or must wake, and what keeps it awake. Pure.

Sleeping needs all the evidence, waking needs any. A trigger lets a target sleep only after its
value has been seen below the threshold for a whole cooldown, without a gap: an error, a stale
reading or NaN starts the cooldown again, and never wakes anything by itself.

`decide` explains one moment; `obstacle` explains a state of things, for status. Its message
never counts down and does not follow a trigger up and down: it is written into status, where
every change is a write to the server. Where an end is known it is named as a time of day.

Sleeping is allowed in the enabled period: it starts at each time of the cron schedule, in its
own time zone, and lasts for its duration. Daylight saving is cron's: a start that a clock
change skips or repeats is handled by cronsim the way cron daemons do.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import zoneinfo
from typing import TYPE_CHECKING

from cronsim import CronSim

from elasti.api.parsing import parse_duration
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.api.types import EnabledPeriod


class Verdict(enum.Enum):
    """What follows from the evidence."""

    SLEEP = "sleep"
    STAY = "stay"
    WAKE = "wake"


@dataclasses.dataclass(frozen=True, slots=True)
class TriggerReading:
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
    last: TriggerReading | None = None
    read_at: float = -math.inf
    quiet_since: float | None = None

    def after(self, reading: TriggerReading, now: float, *, stale_after: float) -> Evidence:
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
    if complaint := _too_early_text(seen):
        return Decision(Verdict.STAY, complaint)
    return Decision(Verdict.SLEEP, f"idle for {seen.cooldown:.0f} s")


def _too_early_text(seen: Situation) -> str | None:
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


UNREAD = "TriggersUnread"


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a target awake. `reason` is CamelCase for machines, `message` for people."""

    reason: str
    message: str


def obstacle(seen: Situation) -> Obstacle | None:
    """Return the first thing in the way; None exactly where `decide` lets the target sleep."""
    if not seen.enabled:
        return Obstacle(
            "OutsidePeriod", "it is outside of spec.enabledPeriod, when targets stay up"
        )
    if seen.asked:
        return None
    if not seen.triggers:
        return Obstacle(
            "NoTriggers", "spec.triggers is empty, so nothing can show that the target is idle"
        )
    return _unreadable_obstacle(seen) or _too_early_obstacle(seen) or _in_use_obstacle(seen)


def format_moment(moment: float) -> str:
    """Write a moment, in seconds since 1970, as Kubernetes writes times."""
    return format_time(dt.datetime.fromtimestamp(moment, dt.UTC))


def _unreadable_obstacle(seen: Situation) -> Obstacle | None:
    for index, trigger in enumerate(seen.triggers):
        if trigger.last is None or seen.now - trigger.read_at >= seen.stale_after:
            return Obstacle(UNREAD, f"triggers[{index}] has not been read lately")
        if not trigger.last.usable:
            return Obstacle(
                "TriggersFailing",
                f"triggers[{index}] cannot be used; the condition TriggersHealthy says why",
            )
    return None


def _too_early_obstacle(seen: Situation) -> Obstacle | None:
    cooldown = f"the cooldown of {seen.cooldown:.0f} s"
    if seen.now - seen.last_attempt < seen.cooldown:
        return Obstacle(
            "AttemptEnded",
            f"the last attempt to put it to sleep ended: {seen.attempt_ended or 'it was given up'};"
            f" the next comes after {cooldown}, at {format_moment(seen.last_attempt + seen.cooldown)}",
        )
    for what, moment in (
        ("it was last woken", seen.last_scaled_up),
        ("it was created", seen.created_at),
    ):
        if seen.now - moment < seen.cooldown:
            end = format_moment(moment + seen.cooldown)
            return Obstacle("Cooldown", f"{cooldown} since {what} lasts until {end}")
    if seen.now - seen.last_traffic < seen.cooldown:
        return Obstacle("Cooldown", f"{cooldown} since traffic last reached the resolver lasts")
    return None


def _in_use_obstacle(seen: Situation) -> Obstacle | None:
    for index, trigger in enumerate(seen.triggers):
        quiet = trigger.quiet_for(seen.now, stale_after=seen.stale_after)
        if trigger.is_active() or quiet < seen.cooldown:
            return Obstacle(
                "InUse",
                f"triggers[{index}] has not been seen below its threshold for the whole cooldown of"
                f" {seen.cooldown:.0f} s",
            )
    return None


def is_enabled(period: EnabledPeriod | None, now: dt.datetime) -> bool:
    """Whether sleeping is allowed at `now` (aware); always, where no period is given."""
    return period is None or now < _last_start(period, now) + _period_length(period)


def next_change(period: EnabledPeriod | None, now: dt.datetime) -> dt.datetime | None:
    """Return when `is_enabled` may next give another answer; None where it never will."""
    if period is None:
        return None
    end = _last_start(period, now) + _period_length(period)
    return end if now < end else _next_start(period, now)


def _period_length(period: EnabledPeriod) -> dt.timedelta:
    return dt.timedelta(seconds=parse_duration(period.duration))


def _last_start(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    # A start at `now` itself counts, and the backward search leaves its own start out.
    just_after = _local_time(period, now) + dt.timedelta(microseconds=1)
    start = next(CronSim(period.schedule, just_after, reverse=True))
    # Durations are absolute: adding one to a local time would gain or lose an hour twice a year.
    return start.astimezone(dt.UTC)


def _next_start(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    return next(CronSim(period.schedule, _local_time(period, now))).astimezone(dt.UTC)


def _local_time(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    return now.astimezone(zoneinfo.ZoneInfo(period.timezone))
