from __future__ import annotations

import datetime as dt

import msgspec

from kubeloop.objects.conditions import (
    Condition,
    find_condition,
    is_condition_true,
    with_condition,
    without_condition,
)

NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
LATER = NOON + dt.timedelta(hours=1)


def test_a_new_condition_gets_the_present_as_its_transition_time() -> None:
    conditions = with_condition(None, Condition("Ready", "False", "Starting"), now=NOON)
    assert conditions == (Condition("Ready", "False", "Starting", "", "2030-01-01T12:00:00Z"),)


def test_transition_time_stays_while_only_reason_message_and_generation_change() -> None:
    before = with_condition((), Condition("Ready", "False", "Starting"), now=NOON)
    new = Condition("Ready", "False", "Waiting", "still", observed_generation=3)
    (after,) = with_condition(before, new, now=LATER)
    assert after.last_transition_time == "2030-01-01T12:00:00Z"
    assert (after.reason, after.message, after.observed_generation) == ("Waiting", "still", 3)


def test_the_transition_time_moves_with_the_status() -> None:
    before = with_condition((), Condition("Ready", "False"), now=NOON)
    (after,) = with_condition(before, Condition("Ready", "True"), now=LATER)
    assert after.last_transition_time == "2030-01-01T13:00:00Z"


def test_a_transition_time_that_the_caller_gives_is_kept() -> None:
    given = Condition("Ready", "True", last_transition_time="2029-01-01T00:00:00Z")
    (after,) = with_condition((), given, now=NOON)
    assert after == given


def test_setting_the_same_condition_again_changes_nothing() -> None:
    before = with_condition((), Condition("Ready", "True", "Ok"), now=NOON)
    assert with_condition(before, Condition("Ready", "True", "Ok"), now=LATER) == before


def test_other_conditions_keep_their_places() -> None:
    conditions: tuple[Condition, ...] = ()
    for kind in ("A", "B", "C"):
        conditions = with_condition(conditions, Condition(kind, "True"), now=NOON)
    changed = with_condition(conditions, Condition("B", "False"), now=LATER)
    assert [(c.type, c.status) for c in changed] == [("A", "True"), ("B", "False"), ("C", "True")]
    assert [c.type for c in without_condition(changed, "B")] == ["A", "C"]


def test_a_missing_condition_is_not_found_and_not_true() -> None:
    assert find_condition(None, "Ready") is None
    assert not is_condition_true((), "Ready")
    assert not is_condition_true((Condition("Ready", "Unknown"),), "Ready")
    assert is_condition_true((Condition("Ready", "True"),), "Ready")


def test_conditions_are_written_in_camel_case() -> None:
    text = msgspec.json.encode(Condition("Ready", "True", observed_generation=2))
    assert msgspec.json.decode(text) == {"type": "Ready", "status": "True", "observedGeneration": 2}
