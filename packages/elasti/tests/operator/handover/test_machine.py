"""The hand-over table: each promise of the protocol, and a model that tries to break it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasti.api.states import State
from elasti.operator.handover.machine import HOLDS, RULES, Observation, Replicas, derive, step
from elasti.operator.model.state import Activity, Park

AWAKE = Observation(
    at_zero=False,
    ready=True,
    ready_settled=True,
    slice=False,
    engage_settled=False,
    resolver=True,
    may_sleep=False,
    wake_wanted=False,
    unused=False,
)


ASKED: dict[str, Any] = {"may_sleep": True, "slice": True, "activity": Activity.QUIET}


def seen(**changes: Any) -> Observation:
    return dataclasses.replace(AWAKE, **changes)


def all_observations():
    flags = [field.name for field in dataclasses.fields(Observation) if field.type == "bool"]
    for values in itertools.product((False, True), repeat=len(flags)):
        for activity, park in itertools.product(Activity, Park):
            facts: dict[str, Any] = dict(zip(flags, values, strict=True))
            if facts["ready_settled"] and not facts["ready"]:
                continue
            if facts["engage_settled"] and not facts["slice"]:
                continue
            if facts["drain_settled"] and not facts["drain"]:
                continue
            yield Observation(**facts, activity=activity, park=park)


@pytest.mark.parametrize(
    ("state", "facts", "expected"),
    [
        (State.SERVE, {}, State.SERVE),
        (State.SERVE, {"may_sleep": True}, State.ENGAGING),
        (State.SERVE, {"may_sleep": True, "resolver": False}, State.SERVE),
        (State.SERVE, {"ready": False, "ready_settled": False}, State.WAKING),
        (State.SERVE, {"at_zero": True, "ready": False, "ready_settled": False}, State.PROXY),
        (State.ENGAGING, {"may_sleep": True, "slice": True}, State.ENGAGING),
        (
            State.ENGAGING,
            {"may_sleep": True, "slice": True, "engage_settled": True, "activity": Activity.QUIET},
            State.PARKING,
        ),
        (
            State.ENGAGING,
            {"may_sleep": True, "slice": True, "engage_settled": True},
            State.RELEASING,
        ),
        (State.ENGAGING, {"may_sleep": True, "activity": Activity.BUSY}, State.RELEASING),
        (State.ENGAGING, {"may_sleep": True, "resolver": False}, State.RELEASING),
        (State.ENGAGING, {"may_sleep": False}, State.RELEASING),
        (State.ENGAGING, ASKED | {"engage_settled": True, "drain": True}, State.DRAINING),
        (State.DRAINING, ASKED, State.DRAINING),
        (State.DRAINING, ASKED | {"drain_settled": True}, State.PARKING),
        (
            State.DRAINING,
            ASKED | {"drain_settled": True, "activity": Activity.UNKNOWN},
            State.WAKING,
        ),
        (State.DRAINING, ASKED | {"activity": Activity.BUSY}, State.WAKING),
        (State.DRAINING, ASKED | {"park": Park.REFUSED}, State.WAKING),
        (State.DRAINING, ASKED | {"resolver": False}, State.WAKING),
        (State.DRAINING, ASKED | {"at_zero": True}, State.PROXY),
        (State.PARKING, {"slice": True, "park": Park.REFUSED}, State.RELEASING),
        (State.PARKING, {"slice": True, "at_zero": True, "ready": False}, State.PROXY),
        (State.PROXY, {"at_zero": True, "wake_wanted": True, "ready": False}, State.WAKING),
        (State.PROXY, {"at_zero": False, "ready": False}, State.WAKING),
        (State.WAKING, {"slice": True, "ready_settled": False}, State.WAKING),
        (State.WAKING, {"slice": True}, State.RELEASING),
        (State.WAKING, {"slice": True, "at_zero": True, "ready": False}, State.PROXY),
        (
            State.WAKING,
            {"slice": True, "ready": False, "ready_settled": False, "unused": True},
            State.PARKING,
        ),
        (State.RELEASING, {"slice": True}, State.RELEASING),
        (State.RELEASING, {"slice": False}, State.SERVE),
        (State.RELEASING, {"ready": False, "ready_settled": False}, State.WAKING),
    ],
)
def test_each_row_of_the_protocol(state, facts, expected):
    assert step(state, seen(**facts)).state is expected


def test_the_table_is_total():
    assert set(RULES) == set(HOLDS) == set(State)
    for state, observation in itertools.product(State, all_observations()):
        assert isinstance(step(state, observation).state, State)


def test_traffic_is_never_left_with_neither_pods_nor_the_resolver():
    for state, observation in itertools.product(State, all_observations()):
        following = step(state, observation).state
        if not observation.ready:
            assert HOLDS[following].slice, (state, observation)


def test_nothing_is_parked_without_a_resolver_or_over_traffic():
    for state, observation in itertools.product(set(State) - {State.PARKING}, all_observations()):
        if step(state, observation).state is State.PARKING:
            assert observation.resolver
            assert observation.activity is not Activity.BUSY or state is State.WAKING
            assert not observation.wake_wanted or observation.unused


def test_no_state_changes_indefinitely_while_the_world_stands_still():
    for start, observation in itertools.product(State, all_observations()):
        # What each state asks for comes true, and nothing else happens.
        state, now, path = start, observation, [start]
        for _ in range(20):
            before, now = now, after_effects(state, now)
            following = step(state, now).state
            path.append(following)
            if following is state and now == before:
                break  # and so it stays
            state = following
        assert path[-1] is path[-2], (start, observation, path)


def after_effects(state: State, now: Observation) -> Observation:
    holds = HOLDS[state]
    changes: dict[str, Any] = {"slice": holds.slice}
    if not holds.slice:
        changes["engage_settled"] = False
    if holds.replicas is Replicas.MINIMUM and now.at_zero:
        changes |= {"at_zero": False, "wake_wanted": False}
    if holds.replicas is Replicas.ZERO and now.park is Park.NOT_TRIED:
        changes |= {"at_zero": True, "ready": False, "ready_settled": False, "may_sleep": False}
    if now.park is Park.REFUSED or state is State.RELEASING:
        # A failed try or an arrival costs a full cooldown, which does not pass here.
        changes |= {"may_sleep": False, "unused": False}
    return dataclasses.replace(now, **changes)


def test_a_restart_finds_the_state_in_the_cluster():
    assert derive(seen()) is State.SERVE
    assert derive(seen(slice=True)) is State.WAKING
    assert derive(seen(ready=False, ready_settled=False)) is State.WAKING
    assert derive(seen(at_zero=True, slice=True, ready=False)) is State.PROXY


class HandOver(RuleBasedStateMachine):
    """A target, its pods, its users and an operator that may restart at any step.

    A slice is there at once and everywhere, and counts though no resolver is alive; the way to the
    nodes is played by tests/e2e, the drain of pods in `test_handover_virtual`.
    """

    @initialize()
    def begin(self) -> None:
        self.state = State.SERVE
        self.replicas = 1
        self.ready = True
        self.ready_for = 9
        self.slice = False
        self.slice_for = 0
        self.resolver = True
        self.idle = False
        self.wanted = False
        self.activity = Activity.QUIET
        self.park = Park.NOT_TRIED
        self.unused = False
        self.exposed = 0

    def observe(self) -> Observation:
        return Observation(
            at_zero=self.replicas == 0,
            ready=self.ready,
            ready_settled=self.ready and self.ready_for >= 2,
            slice=self.slice,
            engage_settled=self.slice and self.slice_for >= 3,
            resolver=self.resolver,
            may_sleep=self.idle and not self.wanted,
            wake_wanted=self.wanted,
            unused=self.unused and not self.ready and not self.wanted,
            activity=self.activity,
            park=self.park,
        )

    @rule()
    def reconcile(self) -> None:
        transition = step(self.state, self.observe())
        if transition.state is not self.state:
            self.park = Park.NOT_TRIED
        self.state = transition.state
        holds = HOLDS[self.state]
        self.slice_for = self.slice_for + 1 if holds.slice and self.slice else 0
        self.slice = holds.slice
        if holds.replicas is Replicas.MINIMUM and self.replicas == 0:
            self.replicas, self.wanted = 1, False
        if holds.replicas is Replicas.ZERO:
            self.try_to_park()
        self.ready_for = self.ready_for + 1 if self.ready else 0
        self.exposed = 0 if self.ready or self.slice else self.exposed + 1

    def try_to_park(self) -> None:
        assert self.slice
        if self.wanted:
            self.park = Park.REFUSED
        else:
            self.replicas, self.ready, self.idle = 0, False, False

    @rule()
    def pod_becomes_ready(self) -> None:
        self.ready = self.ready or self.replicas > 0

    @rule()
    def pod_dies(self) -> None:
        self.ready, self.ready_for = False, 0

    @rule(replicas=st.sampled_from([0, 1, 3]))
    def someone_scales(self, replicas: int) -> None:
        self.replicas = replicas
        self.ready = self.ready and replicas > 0

    @rule(idle=st.booleans())
    def use_changes(self, idle: bool) -> None:
        self.idle = idle

    @rule(unused=st.booleans())
    def clients_leave_or_stay(self, unused: bool) -> None:
        self.unused = unused

    @rule(activity=st.sampled_from(list(Activity)))
    def resolvers_report(self, activity: Activity) -> None:
        self.activity = activity

    @rule()
    def a_connection_is_held(self) -> None:
        self.wanted = self.wanted or self.slice

    @rule(ready=st.booleans())
    def resolver_changes(self, ready: bool) -> None:
        self.resolver = ready

    @rule()
    def operator_restarts(self) -> None:
        self.state = derive(self.observe())
        self.park = Park.NOT_TRIED

    @invariant()
    def traffic_has_somewhere_to_go(self) -> None:
        # One reconcile may pass between the pods' end and the slice, never a second.
        assert getattr(self, "exposed", 0) == 0


TestHandOver = HandOver.TestCase
TestHandOver.settings = settings(stateful_step_count=40)
