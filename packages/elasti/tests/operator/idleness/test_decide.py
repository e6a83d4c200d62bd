from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.conditions import Reason
from elasti.operator.idleness.decide import Evidence, Situation, decide, is_quiet, sleeps_at
from elasti.operator.model.facts import Verdict
from elasti.triggers.reader import TriggerReading

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


# Who is heard before whom, the first in force decides; what each says when it does.
PRECEDENCE: tuple[tuple[str, dict[str, Any], Verdict, Reason | None], ...] = (
    ("suspended", {"suspended": True}, Verdict.STAY, Reason.SUSPENDED),
    ("kept awake", {"keep_awake_until": 1001.0}, Verdict.WAKE, Reason.KEPT_AWAKE),
    ("outside the period", {"enabled": False}, Verdict.WAKE, Reason.OUTSIDE_PERIOD),
    ("asked to sleep", {"asked": True}, Verdict.SLEEP, None),
    (
        "in use",
        {"triggers": (watched([(990, TriggerReading(2.0))]),)},
        Verdict.WAKE,
        Reason.IN_USE,
    ),
    ("traffic", {"last_traffic": 950}, Verdict.STAY, Reason.COOLDOWN),
    ("idle", {}, Verdict.SLEEP, None),
)


def test_precedence_holds_in_every_combination():
    for present in itertools.product([True, False], repeat=len(PRECEDENCE) - 1):
        rows = [row for row, there in zip(PRECEDENCE, (*present, True), strict=True) if there]
        changes: dict[str, Any] = {}
        for _, change, _, _ in rows:
            changes |= change
        name, _, verdict, reason = rows[0]
        if name == "in use" and "last_traffic" in changes:
            reason = Reason.COOLDOWN  # the obstacle names the traffic; the verdict is the same
        found = decide(situation(**changes))
        assert found.verdict is verdict, changes
        assert (found.obstacle.reason if found.obstacle else None) == reason, changes


def test_no_override_lets_a_target_sleep():
    busy = situation(last_traffic=950)
    for override in ({"suspended": True}, {"keep_awake_until": 1e9}, {"keep_awake_until": 999.0}):
        assert decide(dataclasses.replace(busy, **override)).verdict is not Verdict.SLEEP


def test_quiet_of_a_sleeping_target_does_not_count_after_the_wake():
    evidence = Evidence(1.0)
    for at in range(0, 100, 30):
        evidence = evidence.after(QUIET, at, stale_after=60, asleep=True)
    # A wake-up: no pod to ask, then the first reading of its counter, then a rate.
    for at in (92, 95):
        pending = TriggerReading(error="not yet", pending=True)
        evidence = evidence.after(pending, at, stale_after=60)
    evidence = evidence.after(TriggerReading(0.0, span=3.0), 98, stale_after=60)
    assert evidence.quiet_for(98, stale_after=60) == 3.0


@pytest.mark.parametrize(("value", "quiet"), [(0.0, 20.0), (0.9, 0.0)])
def test_a_mean_that_is_merely_low_may_end_with_use(value: float, quiet: float):
    evidence = Evidence(1.0).after(TriggerReading(2.0, span=20.0), 80, stale_after=60)
    evidence = evidence.after(TriggerReading(value, span=20.0), 100, stale_after=60)
    assert evidence.quiet_for(100, stale_after=60) == quiet


def test_a_target_quiet_for_the_cooldown_may_sleep():
    assert decide(situation()).verdict is Verdict.SLEEP


@pytest.mark.parametrize(
    ("changes", "verdict", "reason", "named"),
    [
        ({"enabled": False}, Verdict.WAKE, Reason.OUTSIDE_PERIOD, ""),
        ({"triggers": ()}, Verdict.STAY, Reason.NO_TRIGGERS, "spec.triggers"),
        ({"created_at": 950}, Verdict.STAY, Reason.COOLDOWN, "created"),
        ({"last_scaled_up": 950}, Verdict.STAY, Reason.COOLDOWN, "woken"),
        ({"last_traffic": 950}, Verdict.STAY, Reason.COOLDOWN, "traffic"),
        ({"last_attempt": 950}, Verdict.STAY, Reason.ATTEMPT_ENDED, ""),
        (
            {"triggers": (watched([(990, TriggerReading(2.0))]),)},
            Verdict.WAKE,
            Reason.IN_USE,
            "",
        ),
        ({"triggers": (Evidence(1.0),)}, Verdict.STAY, Reason.TRIGGERS_UNREAD, "triggers[0]"),
        ({"triggers": (quiet_until(900),)}, Verdict.STAY, Reason.TRIGGERS_UNREAD, "triggers[0]"),
        (
            {"triggers": (watched([(990, TriggerReading(math.nan))]),)},
            Verdict.STAY,
            Reason.TRIGGERS_FAILING,
            "NaN",
        ),
        (
            {"triggers": (watched([(990, TriggerReading(error="refused"))]),)},
            Verdict.STAY,
            Reason.TRIGGERS_FAILING,
            ": refused",
        ),
        (
            {"triggers": (watched([(990, TriggerReading(error="needs two", pending=True))]),)},
            Verdict.STAY,
            Reason.TRIGGERS_UNREAD,
            "triggers[0]: needs two",
        ),
        (
            {"triggers": (watched([(950, QUIET), (990, QUIET)]),)},
            Verdict.STAY,
            Reason.IN_USE,
            "triggers[0]",
        ),
    ],
)
def test_one_missing_piece_of_evidence_keeps_it_awake(changes, verdict, reason, named):
    decision = decide(situation(**changes))
    assert decision.verdict is verdict
    assert decision.obstacle is not None
    assert decision.obstacle.reason == reason
    assert named in decision.reason


FAILED = TriggerReading(error="timeout")


def test_a_failed_reading_stops_the_clock_and_does_not_set_it_back():
    readings = [(0.0, QUIET), (20.0, QUIET), (40.0, FAILED), (60.0, QUIET), (80.0, QUIET)]
    found = watched(readings)
    assert found.quiet_since == 40.0, "20 s to 60 s do not count"
    assert found.quiet_for(80.0, stale_after=60) == 40.0


def test_nothing_falls_asleep_on_a_failed_reading():
    readings = [*((at, QUIET) for at in range(0, 980, 30)), (990.0, FAILED)]
    assert decide(situation(triggers=(watched(readings),))).verdict is Verdict.STAY


def test_failures_for_too_long_set_the_clock_back():
    readings = [(0.0, QUIET), (30.0, FAILED), (59.0, FAILED), (60.0, FAILED), (61.0, QUIET)]
    assert watched(readings[:3]).quiet_since == 0.0
    assert watched(readings).quiet_since == 61.0


def test_a_clock_that_is_set_back_keeps_what_was_counted():
    before = [(at, QUIET) for at in range(5000, 5091, 30)]
    after = [(at, QUIET) for at in range(1000, 1031, 30)]
    found = watched([*before, *after])
    assert found.quiet_for(1030.0, stale_after=60) == 120.0, "all but the time between two readings"
    noted = {"last_scaled_up": 4900.0, "last_traffic": 4900.0, "last_attempt": 4800.0}
    assert decide(situation(now=1030.0, triggers=(found,), **noted)).verdict is Verdict.SLEEP
    # Another server's clock may be a little ahead.
    ahead = decide(situation(now=1030.0, triggers=(found,), last_scaled_up=1035.0))
    assert ahead.verdict is Verdict.STAY


def test_a_gap_between_readings_starts_the_cooldown_again():
    readings = [(0.0, QUIET), (30.0, QUIET), (990.0, QUIET)]
    assert watched(readings).quiet_since == 990.0


def test_a_rate_is_quiet_since_the_reading_before_it():
    used, idle = TriggerReading(9.0, span=30.0), TriggerReading(0.0, span=30.0)
    assert watched([(30.0, used), (60.0, idle)]).quiet_since == 30.0
    assert watched([(0.0, TriggerReading(0.0, span=70.0))]).quiet_since == 0.0, "too long a mean"


def test_a_rate_over_a_failure_leaves_no_gap():
    idle = TriggerReading(0.0, span=20.0)
    after = TriggerReading(0.0, span=40.0)
    assert watched([(20.0, idle), (40.0, FAILED), (60.0, after)]).quiet_since == 0.0


def test_when_it_will_sleep_is_a_cooldown_after_the_last_use():
    seen = situation(triggers=(watched([(950.0, QUIET), (1000.0, QUIET)]),), last_traffic=960.0)
    assert sleeps_at(seen) == 960.0 + COOLDOWN
    assert decide(dataclasses.replace(seen, now=1059.0)).verdict is Verdict.STAY
    quiet = watched([(950.0, QUIET), (1000.0, QUIET), (1050.0, QUIET)])
    assert decide(dataclasses.replace(seen, now=1060.0, triggers=(quiet,))).verdict is Verdict.SLEEP


def test_what_is_kept_awake_sleeps_at_the_end_of_that():
    assert sleeps_at(situation(keep_awake_until=5000.0)) == 5000.0


@pytest.mark.parametrize(
    "changes",
    [
        {"suspended": True},
        {"enabled": False},
        {"triggers": ()},
        {"triggers": (quiet_until(900),)},
        {"triggers": (dataclasses.replace(quiet_until(1000), veto=True),)},
        {"triggers": (quiet_until(1000), watched([(990.0, TriggerReading(2.0))]))},
        {"triggers": (watched([(970.0, QUIET), (990.0, FAILED)]),)},
    ],
)
def test_the_time_of_the_next_sleep_is_unknown(changes):
    assert sleeps_at(situation(**changes)) is None


def test_any_active_trigger_wakes_and_all_must_be_quiet_to_sleep():
    active = watched([(990, TriggerReading(5.0))])
    assert decide(situation(triggers=(quiet_until(1000), active))).verdict is Verdict.WAKE


def vetoing(evidence: Evidence) -> Evidence:
    return dataclasses.replace(evidence, veto=True)


def test_a_veto_keeps_awake_and_wakes_nothing():
    busy = vetoing(watched([(990, TriggerReading(5.0))]))
    found = decide(situation(triggers=(quiet_until(1000), busy)))
    assert (found.verdict, found.obstacle and found.obstacle.reason) == (
        Verdict.STAY,
        Reason.IN_USE,
    )
    failing = vetoing(watched([(990, FAILED)]))
    assert decide(situation(triggers=(quiet_until(1000), failing))).verdict is Verdict.STAY
    quiet = vetoing(quiet_until(1000))
    assert decide(situation(triggers=(quiet_until(1000), quiet))).verdict is Verdict.SLEEP


def test_vetoes_alone_never_let_a_target_sleep():
    found = decide(situation(triggers=(vetoing(quiet_until(1000)),)))
    assert found.verdict is Verdict.STAY
    assert found.obstacle is not None
    assert found.obstacle.reason == Reason.NO_SIGNAL


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
def test_sleep_always_means_a_whole_cooldown_of_known_quiet(steps):
    now, history, evidence = 0.0, [], Evidence(1.0)
    for delay, reading in steps:
        now += delay
        history.append((now, reading))
        evidence = evidence.after(reading, now, stale_after=60)
    seen = situation(now=now, created_at=-1000, triggers=(evidence,))
    if decide(seen).verdict is Verdict.SLEEP:
        assert history[-1][1].usable
        # Only time between two good readings counts, back to the last use or too long a gap.
        quiet, known = 0.0, now
        for (at, reading), (before, earlier) in itertools.pairwise(reversed(history)):
            if not earlier.usable:
                continue
            if earlier.value >= 1.0 or known - before >= 60:
                break
            quiet += at - before if reading.usable else 0.0
            known = before
        assert quiet >= COOLDOWN - 1e-6
