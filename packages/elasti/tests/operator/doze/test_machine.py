"""The doze's table: every state and every observation has one answer, and all of them lead somewhere."""

from __future__ import annotations

import itertools

import pytest

from elasti.api.states import DozeState
from elasti.api.types import DozeStatus
from elasti.operator.doze.machine import RULES, Seen, Wish, derive, step

FLAGS = ("shrinkable", "shrunk", "refused", "grown", "overdue", "spare", "gone")
EVERYTHING = [
    Seen(wish=wish, **dict(zip(FLAGS, flags, strict=True)))
    for wish in Wish
    for flags in itertools.product([False, True], repeat=len(FLAGS))
]
DOZED = (DozeState.SHRINKING, DozeState.DOZING)


def test_every_state_has_rules():
    assert set(RULES) == set(DozeState)


@pytest.mark.parametrize("state", DozeState)
def test_whatever_is_seen(state: DozeState):
    for seen in EVERYTHING:
        to, why = step(state, seen)
        assert (to is state) == (why is None)
        if seen.wish is Wish.WAKE:
            assert to not in DOZED, "use never shrinks anything, and ends every doze"
        if seen.wish is Wish.KEEP and state in DOZED and not seen.gone and not seen.refused:
            assert to in DOZED, "nothing new ends no doze"
        if to is DozeState.FULL and state is not DozeState.FULL and not seen.gone:
            assert seen.grown, "originals are forgotten only when every pod has them"
            assert not seen.spare
        if to is DozeState.SHRINKING:
            assert seen.wish is Wish.DOZE or state is DozeState.SHRINKING
        if to is DozeState.STUCK and state is not DozeState.STUCK:
            assert state is DozeState.GROWING
            assert seen.overdue
            assert not seen.grown


@pytest.mark.parametrize("state", DozeState)
def test_a_constant_decision_comes_to_rest(state: DozeState):
    """No observation makes the table go round in circles."""
    possible = [
        seen
        for seen in EVERYTHING
        if seen.shrunk is not seen.shrinkable
        and not (seen.gone and seen.shrinkable)
        # A refusal is forgotten with the state in which it was made.
        and not seen.refused
    ]
    assert len(possible) > 50
    for seen in possible:
        passed = [state]
        while (to := step(passed[-1], seen)[0]) is not passed[-1]:
            assert to not in passed, (passed, to, seen)
            passed.append(to)


@pytest.mark.parametrize("state", [state for state in DozeState if state is not DozeState.FULL])
def test_a_state_is_found_again(state: DozeState):
    assert derive(DozeStatus(state.value, "2030-01-01T00:00:00Z")) is state


def test_without_originals_nothing_dozes_and_an_unknown_state_grows_back():
    assert derive(None) is DozeState.FULL
    assert derive(DozeStatus("FromTheFuture", "2030-01-01T00:00:00Z")) is DozeState.GROWING
