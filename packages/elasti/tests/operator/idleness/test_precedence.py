"""What comes before what when a sleep is decided: the table, every pair of its rows, and all together."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from elasti.api.conditions import Reason
from elasti.api.schedules import Level
from elasti.operator.idleness.decide import PRECEDENCE, Evidence, Situation, decide, sleeps_at
from elasti.operator.model.facts import Verdict
from elasti.triggers.reader import TriggerReading

NOW, COOLDOWN = 100_000.0, 60.0
BUSY = Evidence(1.0, TriggerReading(5.0), read_at=NOW, known_at=NOW)
QUIET = Evidence(1.0, TriggerReading(0.0), read_at=NOW, known_at=NOW, quiet_since=NOW - 600)

# What makes a row apply, its verdict and its reason, in the order of the table.
ROWS: dict[str, tuple[dict[str, Any], Verdict, str | None]] = {
    "suspend": ({"suspended": True}, Verdict.STAY, Reason.SUSPENDED),
    "keep awake": ({"keep_awake_until": NOW + 1}, Verdict.WAKE, Reason.KEPT_AWAKE),
    "Awake": ({"schedule": Level("Awake", "office")}, Verdict.WAKE, Reason.SCHEDULED_AWAKE),
    "needed": (
        {"needed_by": "shop", "needed_now": True},
        Verdict.WAKE,
        Reason.NEEDED_BY,
    ),
    "asked": ({"asked": True}, Verdict.SLEEP, None),
    "traffic": ({"last_traffic": NOW - 1}, Verdict.STAY, Reason.COOLDOWN),
    "Asleep": ({"schedule": Level("Asleep", "rest")}, Verdict.SLEEP, None),
}


def situation(*names: str, **given: Any) -> Situation:
    fields: dict[str, Any] = {}
    for name in reversed(names):
        fields |= ROWS[name][0]
    fields = {"triggers": (QUIET,), "created_at": -math.inf, **fields, **given}
    return Situation(now=NOW, cooldown=COOLDOWN, **fields)


def test_the_table_has_a_row_for_each_case():
    for row, (name, (_, verdict, reason)) in zip(PRECEDENCE, ROWS.items(), strict=True):
        found = row.weigh(situation(name))
        assert found is not None, name
        assert found.verdict is verdict
        assert (found.obstacle.reason if found.obstacle else None) == reason


@pytest.mark.parametrize("count", range(1, len(ROWS) + 1))
def test_the_first_row_that_applies_decides(count: int):
    for names in itertools.combinations(ROWS, count):
        found = decide(situation(*names))
        _, verdict, reason = ROWS[names[0]]
        assert found.verdict is verdict, names
        assert (found.obstacle.reason if found.obstacle else None) == reason, names


def test_use_decides_when_nothing_else_applies():
    assert decide(situation()).verdict is Verdict.SLEEP
    assert decide(situation(triggers=(BUSY,))).verdict is Verdict.WAKE
    assert decide(situation(triggers=(BUSY,), schedule=Level("Free", "xmas"))).verdict is (
        Verdict.WAKE
    )


def test_asleep_asks_no_trigger_and_protects_traffic():
    for triggers in ((BUSY,), (QUIET, BUSY), ()):
        found = decide(situation("Asleep", triggers=triggers))
        assert found.verdict is Verdict.SLEEP
        assert "rest" in found.reason
    assert decide(situation("Asleep", last_scaled_up=NOW - 1)).verdict is Verdict.STAY
    assert sleeps_at(situation("Asleep", last_traffic=NOW - 1, triggers=(BUSY,))) == NOW + 59
    assert sleeps_at(situation("Awake")) is None


def test_without_triggers_it_sleeps_a_cooldown_after_its_last_dependent():
    seen = situation(triggers=(), depended_on=True, dependents_asleep=NOW - 10)
    assert sleeps_at(seen) == NOW + COOLDOWN - 10


def test_the_end_of_an_awake_window_is_the_obstacles():
    found = decide(situation("Awake", schedule_until=NOW + 300))
    assert found.obstacle is not None
    assert found.obstacle.until == NOW + 300
    assert "office" in found.obstacle.message
