from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.times import format_micro_time, format_time, parse_time

_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_moments = st.timedeltas(
    min_value=dt.timedelta(days=-360_000), max_value=dt.timedelta(days=2_900_000)
).map(lambda offset: _EPOCH + offset)


@given(_moments)
def test_micro_times_round_trip_exactly(moment: dt.datetime) -> None:
    assert parse_time(format_micro_time(moment)) == moment


@given(_moments)
def test_times_round_trip_to_the_second(moment: dt.datetime) -> None:
    assert parse_time(format_time(moment)) == moment.replace(microsecond=0)


def test_times_are_written_in_utc() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    moment = dt.datetime(2030, 1, 2, 3, 4, 5, 600, tzinfo=zone)
    assert format_time(moment) == "2030-01-02T01:04:05Z"
    assert format_micro_time(moment) == "2030-01-02T01:04:05.000600Z"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2030-01-02T03:04:05Z", 0),
        ("2030-01-02t03:04:05z", 0),
        ("2030-01-02T03:04:05.5Z", 500000),
        ("2030-01-02T03:04:05.123456789Z", 123456),
        ("2030-01-02T05:34:05+02:30", 0),
        ("2030-01-01T22:04:05-05:00", 0),
    ],
)
def test_every_form_of_rfc_3339_is_read(text: str, micros: int) -> None:
    assert parse_time(text) == dt.datetime(2030, 1, 2, 3, 4, 5, micros, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2030-01-02", "2030-01-02T03:04:05", "2030-13-02T03:04:05Z", "2030-01-02 03:04:05Z",
     "2030-01-02T03:04:61Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "２030-01-02T03:04:05Z"],
)  # fmt: skip
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="time "):
        parse_time(text)


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        format_time(dt.datetime(2030, 1, 1))  # noqa: DTZ001 -- the mistake under test
