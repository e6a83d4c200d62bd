from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.types import EnabledPeriod
from elasti.operator.idleness.decide import is_enabled

OFFICE = EnabledPeriod(schedule="0 9 * * 1-5", duration="8h")


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("now", "enabled"),
    [
        ("2026-11-13T08:59:59", False),
        ("2026-11-13T09:00:00", True),
        ("2026-11-13T16:59:59", True),
        ("2026-11-13T17:00:00", False),
        ("2026-11-14T12:00:00", False),
    ],
)
def test_a_period_starts_with_its_schedule_and_lasts_for_its_duration(now, enabled):
    assert is_enabled(OFFICE, utc(now)) is enabled


def test_without_a_period_sleeping_is_always_allowed():
    assert is_enabled(None, utc("2026-11-13T03:00:00"))


def test_the_default_period_is_always():
    assert is_enabled(EnabledPeriod(), utc("2026-11-13T23:59:59"))


def test_the_schedule_is_read_in_its_own_time_zone():
    berlin = EnabledPeriod(schedule="0 9 * * *", duration="1h", timezone="Europe/Berlin")
    assert is_enabled(berlin, utc("2026-07-01T07:30:00"))
    assert not is_enabled(berlin, utc("2026-07-01T09:30:00"))
    assert is_enabled(berlin, utc("2026-12-01T08:30:00"))


def test_a_duration_is_absolute_across_a_clock_change():
    # Berlin's clocks go back on 25 October 2026 at 01:00 UTC.
    night = EnabledPeriod(schedule="0 22 * * *", duration="6h", timezone="Europe/Berlin")
    assert is_enabled(night, utc("2026-10-25T01:59:59"))
    assert not is_enabled(night, utc("2026-10-25T02:00:00"))


@given(
    st.integers(1_577_836_800, 2_051_222_400).map(lambda t: dt.datetime.fromtimestamp(t, dt.UTC)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
def test_a_daily_period_of_25_hours_has_no_gap_in_any_zone(now, timezone):
    daily = EnabledPeriod(schedule="0 3 * * *", duration="25h", timezone=timezone)
    assert is_enabled(daily, now)
