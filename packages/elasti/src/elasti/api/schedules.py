"""When schedules keep a target awake or asleep: windows of local wall-clock minutes, as a level. Pure.

A window is a set of minutes of the local week, or of local dates, and the only question is whether a moment's
local minute is one of them. So restarts and missed ticks change nothing, and neither does daylight saving: a
start in an hour that does not exist begins at the first minute that does, and an hour that comes twice is
inside twice. `changes` finds the moments at which the answer differs; timers ask again then, and decide nothing.

Zone data is the `tzdata` package, so that a change of a zone is a change of a dependency.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import heapq
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from elasti.api.types import ElastiService, ElastiServiceStatus, Schedule
from kubeloop.objects.times import format_time

AWAKE, ASLEEP, FREE = "Awake", "Asleep", "Free"
LONGEST_LEAD = 600.0
"""Seconds by which `warmBy` may begin earlier."""
_SPREAD = 300.0
_AHEAD = dt.timedelta(days=400)
_CHUNK = dt.timedelta(days=2)
_WEEK_AHEAD = dt.timedelta(days=8)
_STEP = dt.timedelta(hours=6)
"""No zone changes its offset twice within this time."""
_EARLIEST, _LATEST = 1970, 2200
_SECOND = dt.timedelta(seconds=1)
_DAY_MINUTES = 24 * 60
_WEEK = 7 * _DAY_MINUTES
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = rf"(?:{'|'.join(_DAYS)})"
_TIME = r"([0-2][0-9]):([0-5][0-9])"
_DAILY = re.compile(rf"({_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*) {_TIME} ?- ?{_TIME}")
_SPAN = re.compile(rf"({_DAY}) {_TIME} ?- ?({_DAY}) {_TIME}")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")


class Level(NamedTuple):
    """The demand of schedules at a moment: Awake, Asleep, Free or nothing (""), and which of them do."""

    keep: str = ""
    by: str = ""


NO_LEVEL = Level()


class Change(NamedTuple):
    """From this moment on the level is another."""

    at: dt.datetime
    level: Level


class Window(NamedTuple):
    """A schedule that could be read.

    `minutes`: first and end of each part, from Monday 00:00 on; an end may lie in the week after.
    """

    zone: dt.tzinfo
    minutes: tuple[tuple[int, int], ...] = ()
    first: dt.date = dt.date.min
    last: dt.date = dt.date.min

    def includes(self, moment: dt.datetime) -> bool:
        """Whether a moment's local minute belongs to it."""
        local = moment.astimezone(self.zone)
        if not self.minutes:
            return self.first <= local.date() <= self.last
        minute = local.weekday() * _DAY_MINUTES + local.hour * 60 + local.minute
        return any(
            begin <= minute < end or begin <= minute + _WEEK < end for begin, end in self.minutes
        )

    def edges(self, start: dt.datetime, ahead: dt.timedelta) -> Iterator[dt.datetime]:
        """Iterate over every moment after `start` at which `includes` may change, in order."""
        for begin, end, offset in _segments(self.zone, start, start + ahead):
            yield begin
            local = (begin + offset).replace(tzinfo=None), (end + offset).replace(tzinfo=None)
            for edge in self._local_edges(*local):
                moment = edge.replace(tzinfo=dt.UTC) - offset
                if begin < moment < end:
                    yield moment

    def _local_edges(self, begin: dt.datetime, end: dt.datetime) -> Iterator[dt.datetime]:
        if not self.minutes:
            for day in (self.first, self.last + dt.timedelta(days=1)):
                yield dt.datetime.combine(day, dt.time())
            return
        edges = sorted({edge % _WEEK for part in self.minutes for edge in part})
        monday = dt.datetime.combine(begin.date(), dt.time()) - dt.timedelta(days=begin.weekday())
        while monday < end:
            for edge in edges:
                yield monday + dt.timedelta(minutes=edge)
            monday += dt.timedelta(days=7)


def _segments(
    zone: dt.tzinfo, start: dt.datetime, end: dt.datetime
) -> Iterator[tuple[dt.datetime, dt.datetime, dt.timedelta]]:
    """Cut a time into parts in which the zone's offset is the same."""

    def offset_at(moment: dt.datetime) -> dt.timedelta:
        return moment.astimezone(zone).utcoffset() or dt.timedelta()

    begin = at = start.replace(microsecond=0)
    offset = offset_at(begin)
    while at < end:
        after = at + _STEP
        if offset_at(after) != offset:
            while after - at > _SECOND:
                middle = at + (after - at) // _SECOND // 2 * _SECOND
                at, after = (middle, after) if offset_at(middle) == offset else (at, middle)
            yield begin, after, offset
            begin, offset = after, offset_at(after)
        at = after
    yield begin, end, offset


# Reading


@functools.lru_cache(maxsize=1024)
def read_schedule(schedule: Schedule) -> Window | str:
    """Return the window of a schedule; if it cannot be read: the field, its value and the remedy."""
    try:
        return _read(schedule)
    except ValueError as error:
        return str(error)


def _read(schedule: Schedule) -> Window:
    if schedule.keep not in (AWAKE, ASLEEP, FREE):
        raise ValueError(f"keep: {schedule.keep!r} is unknown; write {AWAKE}, {ASLEEP} or {FREE}")
    if bool(schedule.during) == bool(schedule.dates):
        raise ValueError("during, dates: write one of the two")
    zone = _zone(schedule.timezone)
    if schedule.dates:
        return Window(zone, (), *_dates(schedule.dates))
    return Window(zone, _minutes(schedule.during))


def _minutes(text: str) -> tuple[tuple[int, int], ...]:
    if span := _SPAN.fullmatch(text):
        first, begin, last, end = span[1], (span[2], span[3]), span[4], (span[5], span[6])
        start = _DAYS.index(first) * _DAY_MINUTES + _minute(text, *begin, end=False)
        stop = _DAYS.index(last) * _DAY_MINUTES + _minute(text, *end, end=True)
        if start == stop:
            raise ValueError(f"during: {text!r} is empty; write two different times")
        return ((start, stop if stop > start else stop + _WEEK),)
    daily = _DAILY.fullmatch(text)
    if daily is None:
        raise ValueError(
            f"during: {text!r} is not a window; write it like 'Mon-Fri 08:00-19:00' or"
            " 'Fri 21:00 - Mon 06:00'"
        )
    start = _minute(text, daily[2], daily[3], end=False)
    stop = _minute(text, daily[4], daily[5], end=True)
    if start == stop:
        raise ValueError(f"during: {text!r} is empty; for whole days write 00:00-24:00")
    stop += 0 if stop > start else _DAY_MINUTES
    return tuple((day * _DAY_MINUTES + start, day * _DAY_MINUTES + stop) for day in _days(daily[1]))


def _days(text: str) -> list[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        day, end = _DAYS.index(first), _DAYS.index(last or first)
        found.update((day + more) % 7 for more in range((end - day) % 7 + 1))
    return sorted(found)


def _minute(text: str, hours: str, minutes: str, *, end: bool) -> int:
    minute = int(hours) * 60 + int(minutes)
    if minute > _DAY_MINUTES - (not end):
        latest = "24:00" if end else "23:59"
        raise ValueError(f"during: {text!r} has the time {hours}:{minutes}; the latest is {latest}")
    return minute


def _dates(text: str) -> tuple[dt.date, dt.date]:
    first, _, last = text.partition("/")
    try:
        begin, end = dt.date.fromisoformat(first), dt.date.fromisoformat(last or first)
    except ValueError:
        raise ValueError(
            f"dates: {text!r} is not two dates; write them like '2026-12-24/2027-01-01'"
        ) from None
    if end < begin:
        raise ValueError(f"dates: {text!r} ends before it begins; write the earlier date first")
    if begin.year < _EARLIEST or end.year > _LATEST:
        raise ValueError(
            f"dates: {text!r} is too far away; write years from {_EARLIEST} to {_LATEST}"
        )
    return begin, end


def _zone(name: str) -> dt.tzinfo:
    import importlib.resources  # noqa: PLC0415 -- with zoneinfo 1.5 MiB, and most have no schedule
    import zoneinfo  # noqa: PLC0415 -- as above

    data = importlib.resources.files("tzdata")
    if _ZONE.fullmatch(name):
        try:
            with data.joinpath("zoneinfo", *name.split("/")).open("rb") as found:
                return zoneinfo.ZoneInfo.from_file(found, key=name)
        except (OSError, ValueError):
            pass  # there is no such zone, or it is a directory
    near = difflib.get_close_matches(name, data.joinpath("zones").read_text().split(), n=3)
    like = " or ".join(map(repr, near)) or "'Europe/Berlin'"
    raise ValueError(f"timezone: {name!r} is not a known time zone; write an IANA name like {like}")


def schedule_problems(schedules: Sequence[Schedule]) -> list[str]:
    """Return what is wrong with each entry that cannot be read."""
    return [
        f"spec.schedules[{index}] ({one.name}) {found}"
        for index, one in enumerate(schedules)
        if isinstance(found := read_schedule(one), str)
    ]


def _windows(schedules: Sequence[Schedule]) -> list[tuple[Schedule, Window]]:
    found = ((one, read_schedule(one)) for one in schedules)
    return [(one, window) for one, window in found if not isinstance(window, str)]


# The level


def level_at(schedules: Sequence[Schedule], moment: dt.datetime, lead: float = 0.0) -> Level:
    """Return what schedules ask for. `lead`: seconds by which those with `warmBy` begin earlier.

    One that cannot be read keeps the target awake.
    """
    windows = _windows(schedules)
    if len(windows) < len(schedules):
        return Level(
            AWAKE, ", ".join(s.name for s in schedules if isinstance(read_schedule(s), str))
        )
    inside: dict[str, list[str]] = {}
    for one, window in windows:
        if window.includes(moment):
            inside.setdefault(one.keep, []).append(one.name)
    if FREE not in inside and AWAKE not in inside and lead and any(s.warm_by for s in schedules):
        soon = level_at(schedules, moment + dt.timedelta(seconds=lead))
        warm = {one.name for one in schedules if one.warm_by} & set(soon.by.split(", "))
        if soon.keep == AWAKE and warm:
            return soon
    keep = next((keep for keep in (FREE, AWAKE, ASLEEP) if keep in inside), "")
    return Level(keep, ", ".join(inside.get(keep, ())))


def changes(
    schedules: Sequence[Schedule], start: dt.datetime, lead: float = 0.0
) -> Iterator[Change]:
    """Iterate over the changes of the level after a moment, as far as a year ahead."""
    level, earlier = level_at(schedules, start, lead), dt.timedelta(seconds=lead)
    windows = [window for _, window in _windows(schedules)]
    warm = bool(lead) and any(one.warm_by for one in schedules)
    # A few days at a time: most often the next change is near.
    for chunk in range(_AHEAD // _CHUNK):
        begin = start + chunk * _CHUNK
        edges = [window.edges(begin, _CHUNK) for window in windows]
        if warm:
            edges += [_moved(window.edges(begin + earlier, _CHUNK), earlier) for window in windows]
        for moment in heapq.merge(*edges):
            if moment > start and (new := level_at(schedules, moment, lead)) != level:
                level = new
                yield Change(moment, level)


def _moved(edges: Iterator[dt.datetime], by: dt.timedelta) -> Iterator[dt.datetime]:
    for edge in edges:
        yield edge - by


def overlap(schedules: Sequence[Schedule], now: dt.datetime) -> str:
    """Return which schedules ask for Awake and Asleep at the same time, as a sentence; "" if none do."""
    windows = _windows(schedules)
    if not {AWAKE, ASLEEP} <= {one.keep for one, _ in windows}:
        return ""
    # Weekly windows repeat, so a week shows all; of dates, the week in which they begin.
    begins = [
        max(dt.datetime.combine(window.first, dt.time(), window.zone).astimezone(dt.UTC), now)
        for _, window in windows
        if not window.minutes and now.date() <= window.last
    ]
    for begin in (now, *begins):
        edges = (window.edges(begin, _WEEK_AHEAD) for _, window in windows)
        for moment in heapq.merge(*edges):
            inside = [one for one, window in windows if window.includes(moment)]
            awake = next((one.name for one in inside if one.keep == AWAKE), None)
            asleep = next((one.name for one in inside if one.keep == ASLEEP), None)
            if awake and asleep and not any(one.keep == FREE for one in inside):
                return (
                    f"spec.schedules: {awake} (keep: Awake) and {asleep} (keep: Asleep) overlap;"
                    " Awake comes first; change one of the two"
                )
    return ""


# How much earlier


def lead_of(status: ElastiServiceStatus, key: str) -> float:
    """Return by how many seconds a window with `warmBy` begins earlier for the ElastiService of this key."""
    known = [one.seconds for one in status.recent if one.seconds is not None]
    if not known and status.last_wake is not None and status.last_wake.seconds is not None:
        known = [status.last_wake.seconds]
    slowest = sorted(known)[math.ceil(0.95 * len(known)) - 1] if known else 0.0
    warm = min(slowest, LONGEST_LEAD)
    # A fixed share for each, so that a restart does not deal them out again.
    share = zlib.crc32(key.encode()) / 2**32
    return float(round(warm + share * min(_SPREAD, LONGEST_LEAD - warm)))


def schedule_lead(es: ElastiService) -> float:
    """Return the lead of an ElastiService; 0 if no schedule has `warmBy`."""
    if not any(one.warm_by for one in es.spec.schedules):
        return 0.0
    return lead_of(es.status, f"{es.metadata.namespace}/{es.metadata.name}")


def outlook(es: ElastiService, now: dt.datetime) -> str:
    """Return what schedules ask for now, and its end, in words; "" without schedules."""
    schedules, lead = es.spec.schedules, schedule_lead(es)
    if not schedules:
        return ""
    present = level_at(schedules, now, lead)
    following = next(changes(schedules, now, lead), None)
    if following is None:
        return words_of(present)
    return (
        f"{words_of(present)} until {format_time(following.at)}, then {words_of(following.level)}"
    )


def words_of(level: Level) -> str:
    """Return a level in words."""
    kept = {AWAKE: "awake", ASLEEP: "asleep unless there is traffic"}
    return f"{kept.get(level.keep, 'by use')}{f' ({level.by})' if level.by else ''}"
