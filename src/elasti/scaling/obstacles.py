"""Why a target may not sleep, for status: pure, and still while nothing happens.

`decide` explains one moment; this explains a state of things. A message never counts down and does
not follow a trigger up and down: it is written into status, where every change is a write to the
server. Where an end is known it is named as a time of day.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from elasti.scaling.decide import Situation

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
    return _unreadable(seen) or _too_early(seen) or _in_use(seen)


def until_text(moment: float) -> str:
    """Write a moment, in seconds since 1970, as Kubernetes writes times."""
    return format_time(dt.datetime.fromtimestamp(moment, dt.UTC))


def _unreadable(seen: Situation) -> Obstacle | None:
    for index, trigger in enumerate(seen.triggers):
        if trigger.last is None or seen.now - trigger.read_at >= seen.stale_after:
            return Obstacle(UNREAD, f"triggers[{index}] has not been read lately")
        if not trigger.last.usable:
            return Obstacle(
                "TriggersFailing",
                f"triggers[{index}] cannot be used; the condition TriggersHealthy says why",
            )
    return None


def _too_early(seen: Situation) -> Obstacle | None:
    cooldown = f"the cooldown of {seen.cooldown:.0f} s"
    if seen.now - seen.last_attempt < seen.cooldown:
        return Obstacle(
            "AttemptEnded",
            f"the last attempt to put it to sleep ended: {seen.attempt_ended or 'it was given up'};"
            f" the next comes after {cooldown}, at {until_text(seen.last_attempt + seen.cooldown)}",
        )
    for what, moment in (
        ("it was last woken", seen.last_scaled_up),
        ("it was created", seen.created_at),
    ):
        if seen.now - moment < seen.cooldown:
            end = until_text(moment + seen.cooldown)
            return Obstacle("Cooldown", f"{cooldown} since {what} lasts until {end}")
    if seen.now - seen.last_traffic < seen.cooldown:
        return Obstacle("Cooldown", f"{cooldown} since traffic last reached the resolver lasts")
    return None


def _in_use(seen: Situation) -> Obstacle | None:
    for index, trigger in enumerate(seen.triggers):
        quiet = trigger.quiet_for(seen.now, stale_after=seen.stale_after)
        if trigger.is_active() or quiet < seen.cooldown:
            return Obstacle(
                "InUse",
                f"triggers[{index}] has not been seen below its threshold for the whole cooldown of"
                f" {seen.cooldown:.0f} s",
            )
    return None
