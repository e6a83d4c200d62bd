"""The verdict about an observed ElastiService: its table, its words, its edges."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.observed import (
    DAY,
    QUIET_SHARE,
    REASONS,
    RECOMMENDED,
    VERDICTS,
    WAITING_A_DAY,
    Observation,
    cold_start,
    explained,
    judged,
    policy_patch,
)
from elasti.api.types import ColdStartStatus

GOOD = Observation(
    observed_seconds=14 * DAY,
    asleep_seconds=7 * DAY,
    wakes=31,
    cold_start=ColdStartStatus(4.0, 10.0),
)


@pytest.mark.parametrize(
    ("change", "verdict", "reasons"),
    [
        ({}, RECOMMENDED, ()),
        ({"hazards": ("HostNetwork",), "cold_start": None}, "Unsafe", ("HostNetwork",)),
        ({"unseen": ("TrafficTrigger",)}, "NotEnoughData", ("TrafficTrigger",)),
        ({"observed_seconds": DAY - 1}, "NotEnoughData", ("LessThanADay",)),
        ({"observed_seconds": DAY}, RECOMMENDED, ()),
        (
            {"observed_seconds": 0.0, "cold_start": None},
            "NotEnoughData",
            ("LessThanADay", "ColdStartUnknown"),
        ),
        ({"asleep_seconds": QUIET_SHARE * 14 * DAY - 1}, "TooBusy", ("RarelyQuiet",)),
        ({"asleep_seconds": QUIET_SHARE * 14 * DAY}, RECOMMENDED, ()),
        ({"wakes": 14 * 60}, RECOMMENDED, ()),
        ({"wakes": 14 * 60 + 1}, "TooSlow", ("PeopleWait",)),
    ],
)
def test_each_row_and_its_edge(change, verdict, reasons):
    assert WAITING_A_DAY == 60 * 10.0
    assert judged(dataclasses.replace(GOOD, **change)) == (verdict, reasons)


@given(
    st.floats(0, 1e9),
    st.floats(0, 1),
    st.integers(0, 10**6),
    st.one_of(st.none(), st.floats(0, 600).map(lambda s: ColdStartStatus(s, s))),
)
def test_every_observation_has_one_verdict_with_a_remedy(known, share, wakes, start):
    seen = Observation(
        observed_seconds=known, asleep_seconds=known * share, wakes=wakes, cold_start=start
    )
    verdict, reasons = judged(seen)
    assert verdict in {row.verdict for row in VERDICTS} | {RECOMMENDED}
    assert bool(reasons) == (verdict != RECOMMENDED)
    assert all(reason in REASONS for reason in reasons)


def test_cold_starts_are_nearest_ranks_of_those_that_are_starts():
    assert cold_start([]) is None
    assert cold_start([-1.0, float("nan"), 9000.0]) is None
    assert cold_start([5.0]) == ColdStartStatus(5.0, 5.0, "Rollouts")
    assert cold_start([float(n) for n in range(1, 101)]) == ColdStartStatus(50.0, 95.0, "Rollouts")


def test_an_unknown_reason_leads_to_its_condition():
    assert explained(["HeadlessService"]) == "HeadlessService: see condition Ready"
    assert "rollout restart once" in explained(["ColdStartUnknown"])


def test_both_fields_are_always_written():
    assert policy_patch(observe=True) == {"spec": {"policy": "Observe", "suspend": True}}
    assert policy_patch(observe=False) == {"spec": {"policy": "Enforce", "suspend": False}}
