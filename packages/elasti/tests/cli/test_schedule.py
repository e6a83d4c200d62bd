"""`elasti schedule`: what it prints of plain values, and that its changes are so when asked again."""

from __future__ import annotations

import datetime as dt
import itertools
import json

from tests.operator.values import elastiservice

from elasti.api.schedules import level_at
from elasti.api.types import Schedule
from elasti.cli.schedule import rendered
from kubeloop.objects.times import parse_time

NOW = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
OFFICE = Schedule("office", "Awake", "Mon-Fri 08:00-19:00", timezone="Europe/Berlin")
WEEKEND = Schedule("weekend", "Asleep", "Fri 21:00 - Mon 06:00", timezone="Europe/Berlin")


def test_ten_changes_follow_the_present_state():
    lines = rendered(elastiservice(schedules=(OFFICE, WEEKEND)), NOW, "table").splitlines()
    assert len(lines) == 1 + 1 + 10
    assert lines[1].split() == [
        "2026-11-18T12:00:00Z", "Wed", "2026-11-18", "13:00", "CET", "now", "awake", "office",
    ]  # fmt: skip
    assert "2026-11-18T18:00:00Z   Wed 2026-11-18 19:00 CET   6h" in lines[2]
    assert lines[2].split()[-3:] == ["by", "use", "-"]


def test_each_change_is_one_when_it_is_evaluated_again():
    schedules = (OFFICE, WEEKEND)
    found = json.loads(rendered(elastiservice(schedules=schedules), NOW, "json"))
    words = {"Awake": "awake", "Asleep": "asleep"}
    for before, change in itertools.pairwise(found):
        at = parse_time(change["at"])
        for moment, entry in ((at - dt.timedelta(seconds=1), before), (at, change)):
            level = level_at(schedules, moment)
            assert words.get(level.keep, "by use") == entry["state"]
            assert level.by == entry["schedule"]


def test_without_schedules_it_says_so():
    assert "web has no schedules" in rendered(elastiservice(), NOW, "table")
    bad = Schedule("office", "Awake", "whenever")
    assert "awake   office" in rendered(elastiservice(schedules=(bad,)), NOW, "table")
