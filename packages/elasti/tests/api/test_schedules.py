"""Schedules against an oracle that knows nothing of how they are read: local text, minute by minute."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.resources
import itertools
import zoneinfo
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.values import elastiservice

from elasti.api.schedules import (
    LONGEST_LEAD,
    NO_LEVEL,
    changes,
    lead_of,
    level_at,
    outlook,
    overlap,
    read_schedule,
    schedule_problems,
)
from elasti.api.types import ElastiServiceStatus, Schedule, SleepRecord

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "America/St_Johns",
    "Asia/Gaza",
    "Pacific/Chatham",
)
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)


def week(zone: str) -> tuple[Schedule, ...]:
    """Windows that begin and end in the hours that clock changes skip and repeat."""
    return (
        Schedule("office", "Awake", "Mon-Fri 08:00-19:00", timezone=zone),
        Schedule("night", "Awake", "Sat,Sun 23:30-02:15", timezone=zone),
        Schedule("weekend", "Asleep", "Fri 21:00 - Mon 02:30", timezone=zone),
        Schedule("early", "Asleep", "Tue-Thu 00:00-03:00", timezone=zone),
        Schedule("off", "Free", dates="2026-03-27/2026-03-30", timezone=zone),
    )


# The oracle


@functools.cache
def place_of(zone: str) -> dt.tzinfo:
    """The package's data, as another release of it may differ."""
    with importlib.resources.files("tzdata").joinpath("zoneinfo", zone).open("rb") as data:
        return zoneinfo.ZoneInfo.from_file(data)


def in_days(text: str, day: str) -> bool:
    for part in text.split(","):
        first, last = part.split("-") if "-" in part else (part, part)
        listed = [*DAYS, *DAYS][DAYS.index(first) :]
        if day in listed[: listed.index(last) + 1]:
            return True
    return False


def inside(schedule: Schedule, local: dt.datetime) -> bool:
    """Compare texts of the wall clock, as a person reads them."""
    if schedule.dates:
        first, _, last = schedule.dates.partition("/")
        return first <= f"{local:%Y-%m-%d}" <= (last or first)
    day, time = DAYS[local.weekday()], f"{local:%H:%M}"
    if " - " in schedule.during:
        begin, end = schedule.during.split(" - ")
        number = [f"{one}{text[3:]}" for text in (begin, end) for one in [DAYS.index(text[:3])]]
        now = f"{DAYS.index(day)} {time}"
        return number[0] <= now < number[1] or (
            number[1] < number[0] and (now >= number[0] or now < number[1])
        )
    days, times = schedule.during.split(" ")
    start, end = times.split("-")
    if start < end:
        return in_days(days, day) and start <= time < end
    before = DAYS[local.weekday() - 1]
    return (in_days(days, day) and time >= start) or (in_days(days, before) and time < end)


def expected(schedules: Sequence[Schedule], moment: dt.datetime) -> str:
    kinds = {
        one.keep for one in schedules if inside(one, moment.astimezone(place_of(one.timezone)))
    }
    return next((keep for keep in ("Free", "Awake", "Asleep") if keep in kinds), "")


def minutes(start: dt.datetime, end: dt.datetime) -> Iterator[dt.datetime]:
    while start < end:
        yield start
        start += MINUTE


def compare(schedules: Sequence[Schedule], start: dt.datetime, end: dt.datetime) -> int:
    """Walk every minute beside the changes that are foretold; returns how many there were."""
    ahead = ((one.at, one.level.keep) for one in changes(schedules, start))
    at, following = next(ahead, (end, ""))
    keep, count = level_at(schedules, start).keep, 0
    for moment in minutes(start, end):
        while moment >= at:
            assert at == moment, f"a change within a minute: {at}"
            keep, count = following, count + 1
            at, following = next(ahead, (end, ""))
        assert keep == expected(schedules, moment), (moment, schedules[0].timezone)
    return count


def zone_changes(zone: str, first: int, last: int) -> Iterator[dt.datetime]:
    place = place_of(zone)
    moment = dt.datetime(first, 1, 1, tzinfo=dt.UTC)
    while moment.year <= last:
        after = moment + HOUR
        if moment.astimezone(place).utcoffset() != after.astimezone(place).utcoffset():
            yield moment
        moment = after


@pytest.mark.parametrize("zone", ZONES)
def test_every_minute_around_each_clock_change(zone: str):
    found = [(at - 3 * HOUR, at + 5 * HOUR) for at in zone_changes(zone, 2024, 2030)]
    for start, end in found or [(dt.datetime(2026, 3, 26, tzinfo=dt.UTC),) * 2]:
        for moment in minutes(start, end):
            assert level_at(week(zone), moment).keep == expected(week(zone), moment), moment
        compare(week(zone), start, end)


def test_a_day_that_does_not_exist():
    """Apia has no Friday, 30 December 2011: what Friday alone has is not there, and spans go on."""
    start = dt.datetime(2011, 12, 28, tzinfo=dt.UTC)
    friday = Schedule("friday", "Awake", "Fri 08:00-19:00", timezone="Pacific/Apia")
    assert compare((friday,), start, start + 4 * 24 * HOUR) == 0
    assert compare(week("Pacific/Apia"), start, start + 5 * 24 * HOUR) > 3


@pytest.mark.parametrize("zone", ZONES)
def test_every_minute_of_a_fortnight_or_of_seven_years(zone: str):
    """Years take minutes: `make properties` walks them."""
    start = dt.datetime(2026, 3, 20, tzinfo=dt.UTC)
    if settings.get_current_profile_name() != "thorough":
        assert compare(week(zone), start, start + 14 * 24 * HOUR) > 20
        return
    years = (2011, *range(2024, 2031)) if zone == "Pacific/Apia" else range(2024, 2031)
    for year in years:
        start = dt.datetime(year, 1, 1, tzinfo=dt.UTC)
        assert compare(week(zone), start, start.replace(year=year + 1)) > 500


clock_times = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
one_day = st.sampled_from(DAYS)
windows = st.one_of(
    st.builds(
        "{} {}-{}".format,
        st.lists(one_day, min_size=1, max_size=3).map(",".join)
        | st.builds("{}-{}".format, one_day, one_day),
        clock_times,
        clock_times,
    ),
    st.builds("{} {} - {} {}".format, one_day, clock_times, one_day, clock_times),
)


@given(
    windows=st.lists(windows, min_size=1, max_size=4),
    keeps=st.lists(st.sampled_from(["Awake", "Asleep", "Free"]), min_size=4, max_size=4),
    zones=st.lists(st.sampled_from(ZONES), min_size=4, max_size=4),
    start=st.integers(1_704_067_200 // 60, 1_924_991_999 // 60),
    span=st.integers(1, 3000),
)
def test_any_windows_agree_with_the_oracle(
    windows: list[str], keeps: list[str], zones: list[str], start: int, span: int
):
    schedules = [
        Schedule(f"s{index}", keeps[index], window, timezone=zones[index])
        for index, window in enumerate(windows)
    ]
    schedules = [one for one in schedules if not isinstance(read_schedule(one), str)]
    begin = dt.datetime.fromtimestamp(start * 60, dt.UTC)
    compare(schedules, begin, begin + span * MINUTE)


# What people meet


def berlin(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))


def test_a_window_past_midnight_belongs_to_the_day_on_which_it_starts():
    nights = (Schedule("n", "Asleep", "Mon-Fri 20:00-08:00", timezone="Europe/Berlin"),)
    inside = {
        "2026-11-16T07:59": False,  # Monday: Sunday night is not named
        "2026-11-16T20:00": True,
        "2026-11-20T23:59": True,
        "2026-11-21T07:59": True,  # Saturday morning ends Friday's
        "2026-11-21T08:00": False,
    }
    assert {t: level_at(nights, berlin(t)).keep == "Asleep" for t in inside} == inside


def test_free_lifts_awake_and_awake_comes_before_asleep():
    free = Schedule("xmas", "Free", dates="2026-12-24/2027-01-01")
    awake = Schedule("office", "Awake", "Mon-Fri 08:00-19:00")
    asleep = Schedule("rest", "Asleep", "Mon-Sun 00:00-24:00")
    noon = dt.datetime(2026, 12, 28, 12, tzinfo=dt.UTC)
    assert level_at((awake, asleep, free), noon) == ("Free", "xmas")
    assert level_at((asleep, awake), noon) == ("Awake", "office")
    assert level_at((asleep,), noon) == ("Asleep", "rest")
    assert level_at((), noon) == NO_LEVEL
    assert "office (keep: Awake) and rest (keep: Asleep) overlap" in overlap((awake, asleep), noon)
    assert overlap((awake, free), noon) == ""
    nights = Schedule("nights", "Asleep", "Mon-Fri 19:00-08:00")
    assert overlap((awake, nights), noon) == ""
    shifted = msgspec.structs.replace(nights, timezone="Asia/Kathmandu")
    assert "overlap" in overlap((awake, shifted), noon)
    later = Schedule("audit", "Awake", dates="2027-06-01/2027-06-02")
    assert "audit" in overlap((nights, later), noon)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"keep": "Sleepy"}, "keep: 'Sleepy' is unknown; write Awake, Asleep or Free"),
        ({"during": ""}, "during, dates: write one of the two"),
        ({"dates": "2026-12-24"}, "during, dates: write one of the two"),
        ({"during": "Mon-Fri"}, "during: 'Mon-Fri' is not a window; write it like"),
        ({"during": "mon 08:00-09:00"}, "is not a window"),
        ({"during": "Mon 00:00-00:00"}, "is empty; for whole days write 00:00-24:00"),
        ({"during": "Mon 08:00 - Mon 08:00"}, "is empty"),
        ({"during": "Mon 24:00-08:00"}, "has the time 24:00; the latest is 23:59"),
        ({"during": "Mon 08:00-24:01"}, "has the time 24:01; the latest is 24:00"),
        ({"during": "", "dates": "24.12.2026"}, "is not two dates"),
        ({"during": "", "dates": "2026-12-24/2026-12-01"}, "ends before it begins"),
        ({"during": "", "dates": "0001-01-01"}, "write years from 1970 to 2200"),
        ({"timezone": "Europe/Berln"}, "write an IANA name like 'Europe/Berlin'"),
        ({"timezone": "../zones"}, "'../zones' is not a known time zone"),
        ({"timezone": "Europe"}, "'Europe' is not a known time zone"),
        ({"timezone": ""}, "'' is not a known time zone"),
    ],
)
def test_what_cannot_be_read_is_named_and_keeps_awake(changed: dict[str, str], words: str):
    good = Schedule("office", "Asleep", "Mon-Fri 08:00-19:00")
    bad = msgspec.structs.replace(good, **changed)
    free = Schedule("free", "Free", "Mon-Sun 00:00-24:00")
    [problem] = schedule_problems((good, bad))
    assert problem.startswith("spec.schedules[1] (office) ")
    assert words in problem
    now = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
    assert level_at((free, bad), now) == ("Awake", "office")
    assert list(changes((bad,), now)) == []


def test_zones_come_from_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    window = read_schedule(Schedule("s", "Awake", "Mon 08:00-09:00", timezone="Asia/Tokyo"))
    assert not isinstance(window, str)
    assert window.includes(dt.datetime(2026, 11, 16, 23, 30, tzinfo=dt.UTC)) is False
    assert window.includes(dt.datetime(2026, 11, 15, 23, 30, tzinfo=dt.UTC)) is True


# Warm by then


def slept(*seconds: float) -> ElastiServiceStatus:
    return ElastiServiceStatus(recent=tuple(SleepRecord("", "", "", one) for one in seconds))


def test_the_lead_is_the_p95_and_a_share_of_five_minutes():
    leads = [lead_of(slept(*range(1, 21)), f"shop/{index}") for index in range(200)]
    assert all(19 <= lead <= 19 + 300 for lead in leads)
    assert max(leads) - min(leads) > 250
    assert lead_of(slept(5000.0), "shop/web") == LONGEST_LEAD
    assert lead_of(slept(*range(1, 21)), "shop/web") == lead_of(slept(*range(1, 21)), "shop/web")
    assert 0 <= lead_of(ElastiServiceStatus(), "shop/web") < 300


def test_a_warm_window_begins_earlier_and_ends_when_it_says():
    office = Schedule("office", "Awake", "Mon-Fri 08:00-19:00", warm_by=True)
    monday = dt.datetime(2026, 11, 16, tzinfo=dt.UTC)
    found = list(itertools.islice(changes((office,), monday, 120.0), 2))
    assert [f"{one.at:%H:%M}" for one in found] == ["07:58", "19:00"]
    holiday = Schedule("off", "Free", dates="2026-11-16")
    assert next(changes((office, holiday), monday, 120.0)).at.day == 17
    plain = msgspec.structs.replace(office, warm_by=False)
    assert level_at((plain,), monday + 8 * HOUR - MINUTE, 120.0) == NO_LEVEL
    asleep = Schedule("night", "Asleep", "Mon-Sun 00:00-08:00")
    assert level_at((office, asleep), monday + 8 * HOUR - MINUTE, 120.0).keep == "Awake"


def test_the_outlook_names_the_present_and_the_next():
    now = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
    office = Schedule("office", "Awake", "Mon-Fri 08:00-19:00")
    es = elastiservice(schedules=(office,))
    assert outlook(es, now) == "awake (office) until 2026-11-18T19:00:00Z, then by use"
    always = Schedule("rest", "Asleep", "Mon-Sun 00:00-24:00")
    assert outlook(elastiservice(schedules=(always,)), now) == (
        "asleep unless there is traffic (rest)"
    )
    assert outlook(elastiservice(), now) == ""
