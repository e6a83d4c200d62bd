"""Why a target may not sleep, as status says it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.conditions import Obstacle
from elasti.operator.idleness.decide import (
    Evidence,
    Situation,
    decide,
)
from elasti.triggers.reader import TriggerReading

NOW = 1_900_000_000.0
COOLDOWN = 100.0


def obstacle(seen: Situation) -> Obstacle | None:
    return decide(seen).obstacle


CALM = Evidence(1.0, TriggerReading(0.0), NOW - 10, NOW - 500)


def situation(**changes: Any) -> Situation:
    base = Situation(now=NOW, cooldown=COOLDOWN, created_at=0, triggers=(CALM,), stale_after=60)
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"enabled": False}, "OutsidePeriod", "spec.enabledPeriod"),
        ({"enabled": False, "asked": True}, "OutsidePeriod", "spec.enabledPeriod"),
        ({"triggers": ()}, "NoTriggers", "spec.triggers"),
        ({"created_at": NOW - 40}, "Cooldown", "created"),
        ({"last_scaled_up": NOW - 40}, "Cooldown", "woken"),
        ({"last_traffic": NOW - 40}, "Cooldown", "traffic"),
        (
            {"last_attempt": NOW - 40, "attempt_ended": "traffic arrived"},
            "AttemptEnded",
            "traffic arrived",
        ),
        ({"triggers": (Evidence(1.0),)}, "TriggersUnread", "triggers[0]"),
        (
            {"triggers": (CALM, dataclasses.replace(CALM, read_at=NOW - 70))},
            "TriggersUnread",
            "[1]",
        ),
        (
            {"triggers": (Evidence(1.0, TriggerReading(error="no"), NOW),)},
            "TriggersFailing",
            ": no",
        ),
        (
            {"triggers": (Evidence(1.0, TriggerReading(math.nan), NOW),)},
            "TriggersFailing",
            "NaN",
        ),
        (
            {"triggers": (Evidence(1.0, TriggerReading(5.0), NOW),)},
            "InUse",
            "100 s",
        ),
        ({"triggers": (Evidence(1.0, TriggerReading(0.0), NOW, NOW - 9),)}, "InUse", "triggers[0]"),
        (
            {"triggers": (Evidence(1.0, TriggerReading(65.0, steady=62), NOW),)},
            "InUse",
            "100 s; it has been a steady 62 B/s for two hours, like a health check: if nothing else uses it",
        ),
    ],
)
def test_each_obstacle_has_a_reason_and_words(changes, reason, words):
    found = obstacle(situation(**changes))
    assert found is not None
    assert found.reason == reason
    assert words in found.message


def test_nothing_is_in_the_way_of_an_idle_target():
    assert obstacle(situation()) is None


def test_a_request_stands_for_cooldown_and_triggers():
    busy = Evidence(1.0, TriggerReading(5.0), NOW)
    assert obstacle(situation(asked=True, triggers=(busy,), last_scaled_up=NOW)) is None
    assert obstacle(situation(asked=True, triggers=())) is None


moments = st.sampled_from([-math.inf, NOW - 500, NOW - COOLDOWN, NOW - 99, NOW, NOW + 5])
readings = st.one_of(
    st.none(),
    st.builds(TriggerReading, st.sampled_from([0.0, 0.5, 1.0, 9.0, math.nan]), st.just("")),
)
evidence = st.builds(
    Evidence,
    st.just(1.0),
    readings,
    st.sampled_from([NOW - 200, NOW - 60, NOW - 1, NOW]),
    st.one_of(st.none(), st.sampled_from([NOW - 500, NOW - COOLDOWN, NOW - 99, NOW])),
)
situations = st.builds(
    Situation,
    now=st.just(NOW),
    cooldown=st.just(COOLDOWN),
    created_at=moments,
    last_scaled_up=moments,
    last_traffic=moments,
    last_attempt=moments,
    attempt_ended=st.sampled_from(["", "traffic arrived"]),
    asked=st.booleans(),
    enabled=st.booleans(),
    triggers=st.lists(evidence, max_size=3).map(tuple),
    stale_after=st.just(60.0),
)


@given(situations, st.floats(0.0, 0.9))
def test_the_message_does_not_change_with_the_clock_alone(seen: Situation, later: float):
    after = dataclasses.replace(seen, now=seen.now + later)
    before_it, after_it = obstacle(seen), obstacle(after)
    if before_it is not None and after_it is not None and before_it.reason == after_it.reason:
        assert before_it.message.split("[")[0] == after_it.message.split("[")[0]


def test_a_trigger_that_goes_up_and_down_writes_nothing():
    quiet = Evidence(1.0, TriggerReading(0.0), NOW)
    said = set()
    for at in range(10):
        now = NOW + 30 * at
        quiet = quiet.after(TriggerReading(5.0 * (at % 2)), now, stale_after=60)
        said.add(obstacle(situation(now=now, triggers=(quiet,))))
    assert len(said) == 1


@pytest.mark.parametrize(
    ("changes", "until"),
    [
        ({"created_at": NOW - 40}, NOW + 60),
        ({"last_scaled_up": NOW - 40}, NOW + 60),
        ({"last_attempt": NOW - 40}, NOW + 60),
        ({"keep_awake_until": NOW + 5}, NOW + 5),
        ({"last_traffic": NOW - 40}, None),
        ({"triggers": ()}, None),
    ],
)
def test_an_obstacle_has_its_end_if_that_is_known(changes, until):
    found = obstacle(situation(**changes))
    assert found is not None
    assert found.until == until
