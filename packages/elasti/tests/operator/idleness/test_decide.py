from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.operator.idleness.decide import (
    Evidence,
    Situation,
    Verdict,
    decide,
    is_quiet,
)
from elasti.triggers.registry import TriggerReading

QUIET = TriggerReading(0.0)
COOLDOWN = 100.0


def watched(readings: Sequence[tuple[float, TriggerReading]], threshold: float = 1.0) -> Evidence:
    evidence = Evidence(threshold)
    for at, reading in readings:
        evidence = evidence.after(reading, at, stale_after=60)
    return evidence


def quiet_until(now: float) -> Evidence:
    return watched([(at, QUIET) for at in range(0, int(now) + 1, 30)])


def situation(**changes: Any) -> Situation:
    base = Situation(
        now=1000, cooldown=COOLDOWN, created_at=0, triggers=(quiet_until(1000),), stale_after=60
    )
    return dataclasses.replace(base, **changes)


def test_a_target_quiet_for_the_cooldown_may_sleep():
    assert decide(situation()).verdict is Verdict.SLEEP


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"enabled": False}, Verdict.WAKE, "enabled period"),
        ({"triggers": ()}, Verdict.STAY, "triggers is empty"),
        ({"created_at": 950}, Verdict.STAY, "created"),
        ({"last_scaled_up": 950}, Verdict.STAY, "woken"),
        ({"last_traffic": 950}, Verdict.STAY, "traffic"),
        ({"last_attempt": 950}, Verdict.STAY, "attempt"),
        ({"triggers": (watched([(990, TriggerReading(2.0))]),)}, Verdict.WAKE, "threshold"),
        ({"triggers": (Evidence(1.0),)}, Verdict.STAY, "not been read"),
        ({"triggers": (quiet_until(900),)}, Verdict.STAY, "not been read"),
        (
            {"triggers": (watched([(990, TriggerReading(math.nan))]),)},
            Verdict.STAY,
            "TriggersHealthy",
        ),
        (
            {"triggers": (watched([(990, TriggerReading(error="refused"))]),)},
            Verdict.STAY,
            "TriggersHealthy",
        ),
        ({"triggers": (watched([(950, QUIET), (990, QUIET)]),)}, Verdict.STAY, "whole cooldown"),
    ],
)
def test_one_missing_piece_of_evidence_keeps_it_awake(changes, verdict, words):
    decision = decide(situation(**changes))
    assert decision.verdict is verdict
    assert words in decision.reason


def test_an_error_in_the_middle_starts_the_cooldown_again():
    readings = [(at, QUIET) for at in range(0, 1001, 30)]
    readings[-2] = (readings[-2][0], TriggerReading(error="timeout"))
    assert decide(situation(triggers=(watched(readings),))).verdict is Verdict.STAY


def test_a_gap_between_readings_starts_the_cooldown_again():
    readings = [(0.0, QUIET), (30.0, QUIET), (990.0, QUIET)]
    assert watched(readings).quiet_since == 990.0


def test_any_active_trigger_wakes_and_all_must_be_quiet_to_sleep():
    active = watched([(990, TriggerReading(5.0))])
    assert decide(situation(triggers=(quiet_until(1000), active))).verdict is Verdict.WAKE


def test_zero_is_quiet_even_at_a_threshold_of_zero():
    assert is_quiet(0.0, 0.0)
    assert not is_quiet(0.1, 0.0)


def test_an_error_never_wakes():
    broken = watched([(990, TriggerReading(error="refused"))])
    assert decide(situation(triggers=(broken,))).verdict is not Verdict.WAKE


steps = st.lists(
    st.tuples(
        st.floats(0.1, 90),
        st.one_of(
            st.floats(0, 3).map(TriggerReading),
            st.just(TriggerReading(math.nan)),
            st.just(TriggerReading(error="down")),
        ),
    ),
    max_size=40,
)


@given(steps)
def test_sleep_always_means_a_whole_cooldown_of_unbroken_quiet(steps):
    now, history, evidence = 0.0, [], Evidence(1.0)
    for delay, reading in steps:
        now += delay
        history.append((now, reading))
        evidence = evidence.after(reading, now, stale_after=60)
    seen = situation(now=now, created_at=-1000, triggers=(evidence,))
    if decide(seen).verdict is Verdict.SLEEP:
        recent = [item for item in history if item[0] > now - COOLDOWN]
        before = [item for item in history if item[0] <= now - COOLDOWN]
        covering = [*before[-1:], *recent]
        assert all(reading.usable and reading.value < 1.0 for _, reading in covering)
        times = [at for at, _ in covering]
        assert times[0] <= now - COOLDOWN
        assert all(later - earlier < 60 for earlier, later in itertools.pairwise(times))
