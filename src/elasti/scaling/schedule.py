"""Enabled periods: when sleeping is allowed.

A period starts at each time of the cron schedule, in its own time zone, and lasts for its duration.
Pure: the caller says what time it is. Daylight saving is cron's: a start that a clock change skips
or repeats is handled by cronsim the way cron daemons do.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import TYPE_CHECKING

from cronsim import CronSim

from elasti.api.durations import parse_duration

if TYPE_CHECKING:
    from elasti.api.types import EnabledPeriod


def is_enabled(period: EnabledPeriod | None, now: dt.datetime) -> bool:
    """Whether sleeping is allowed at `now` (aware); always, where no period is given."""
    return period is None or now < _last_start(period, now) + _duration(period)


def next_change(period: EnabledPeriod | None, now: dt.datetime) -> dt.datetime | None:
    """Return when `is_enabled` may next give another answer; None where it never will."""
    if period is None:
        return None
    end = _last_start(period, now) + _duration(period)
    return end if now < end else _next_start(period, now)


def _duration(period: EnabledPeriod) -> dt.timedelta:
    return dt.timedelta(seconds=parse_duration(period.duration))


def _last_start(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    # A start at `now` itself counts, and the backward search leaves its own start out.
    just_after = _local(period, now) + dt.timedelta(microseconds=1)
    start = next(CronSim(period.schedule, just_after, reverse=True))
    # Durations are absolute: adding one to a local time would gain or lose an hour twice a year.
    return start.astimezone(dt.UTC)


def _next_start(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    return next(CronSim(period.schedule, _local(period, now))).astimezone(dt.UTC)


def _local(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    return now.astimezone(zoneinfo.ZoneInfo(period.timezone))
