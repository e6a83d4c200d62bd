"""The hand-over between pods and resolver, as a table.

Make before break, both ways: the resolver's slice is published before the last pod goes, and
removed only after a pod has been ready for a while. Every state says what must hold in it
(`HOLDS`), and every state has rules, tried in order, that say what it leaves for (`RULES`); if no
rule fits, it stays. So each pair of state and observation has exactly one answer.

The state is never trusted from memory alone: `derive` finds it again from the cluster after a
restart, and whatever it finds converges.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from elasti.api.conditions import TransitionReason as Why
from elasti.api.states import State
from elasti.operator.model.state import Activity, Park


class Replicas(enum.Enum):
    """The scale that a state requires of the target."""

    AS_THEY_ARE = "unchanged"
    ZERO = "zero"
    MINIMUM = "at least the minimum"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state machine's input at one moment."""

    at_zero: bool
    ready: bool  #: the public Service's own slices have a ready endpoint
    ready_settled: bool  #: for the whole release settle
    slice: bool  #: ours is published
    engage_settled: bool  #: for the whole engage settle
    resolver: bool  #: resolvers cover every address family
    may_sleep: bool  #: idle for the cooldown, inside the period, and every trigger agrees
    wake_wanted: bool  #: a request, a trigger, the schedule or a lost resolver asks for pods
    #: no connection is held, triggers are quiet, a cooldown has passed since the last wake request or failed park
    unused: bool
    activity: Activity = Activity.UNKNOWN
    park: Park = Park.NOT_TRIED
    drain: bool = False  #: pods are to be out of rotation before they stop
    drain_settled: bool = False  #: they have been for the whole engage settle


class Holds(NamedTuple):
    """The operator's goals in a state.

    `drained`: the pods are out of the Service's rotation; None: unchanged.
    """

    slice: bool
    replicas: Replicas
    drained: bool | None = False


class Rule(NamedTuple):
    """Leave for `to` when the condition holds."""

    when: Callable[[Observation], bool]
    to: State
    why: Why


class Transition(NamedTuple):
    """The next state and why; `why` is None if the state stays."""

    state: State
    why: Why | None


HOLDS: Mapping[State, Holds] = {
    State.SERVE: Holds(slice=False, replicas=Replicas.AS_THEY_ARE),
    State.ENGAGING: Holds(slice=True, replicas=Replicas.AS_THEY_ARE),
    State.DRAINING: Holds(slice=True, replicas=Replicas.AS_THEY_ARE, drained=True),
    State.PARKING: Holds(slice=True, replicas=Replicas.ZERO, drained=None),
    State.PROXY: Holds(slice=True, replicas=Replicas.AS_THEY_ARE),
    State.WAKING: Holds(slice=True, replicas=Replicas.MINIMUM),
    State.RELEASING: Holds(slice=False, replicas=Replicas.AS_THEY_ARE),
}


def _no_pods(seen: Observation) -> bool:
    return not seen.at_zero and not seen.ready


Rules: TypeAlias = tuple[Rule, ...]


def _ended(back: State, settled: Callable[[Observation], bool]) -> Rules:
    """Return what ends an attempt to sleep; once it is `settled`, resolvers must have answered."""
    unanswered = Activity.UNKNOWN
    return (
        Rule(lambda seen: not seen.resolver, back, Why.NO_RESOLVER),
        Rule(lambda seen: not seen.may_sleep or seen.wake_wanted, back, Why.IN_USE),
        Rule(lambda seen: seen.activity is Activity.BUSY, back, Why.TRAFFIC_ARRIVED),
        Rule(lambda s: settled(s) and s.activity is unanswered, back, Why.RESOLVER_SILENT),
    )


# The order within a state matters: what protects traffic comes before what saves pods.
RULES: Mapping[State, Rules] = {
    State.SERVE: (
        Rule(lambda seen: seen.at_zero, State.PROXY, Why.SCALED_TO_ZERO),
        Rule(_no_pods, State.WAKING, Why.NO_ENDPOINT),
        Rule(lambda seen: seen.may_sleep and seen.resolver, State.ENGAGING, Why.IDLE),
    ),
    State.ENGAGING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, Why.SCALED_TO_ZERO),
        Rule(_no_pods, State.WAKING, Why.NO_ENDPOINT),
        *_ended(State.RELEASING, lambda seen: seen.engage_settled),
        Rule(lambda s: s.slice and s.engage_settled and s.drain, State.DRAINING, Why.UNUSED),
        Rule(lambda seen: seen.slice and seen.engage_settled, State.PARKING, Why.UNUSED),
    ),
    # Without pods in rotation the resolver may not leave: an attempt that ends is a wake-up.
    State.DRAINING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, Why.SCALED_TO_ZERO),
        *_ended(State.WAKING, lambda seen: seen.drain_settled),
        Rule(lambda seen: seen.park is Park.REFUSED, State.WAKING, Why.NOT_DRAINED),
        Rule(lambda seen: seen.slice and seen.drain_settled, State.PARKING, Why.UNUSED),
    ),
    State.PARKING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, Why.PARKED),
        Rule(
            lambda seen: not seen.ready and (seen.park is Park.REFUSED or seen.wake_wanted),
            State.WAKING,
            Why.NOT_PARKED,
        ),
        Rule(lambda seen: seen.park is Park.REFUSED, State.RELEASING, Why.NOT_PARKED),
        Rule(lambda seen: seen.wake_wanted, State.RELEASING, Why.IN_USE),
    ),
    State.PROXY: (
        Rule(lambda seen: not seen.at_zero, State.WAKING, Why.SCALED_UP),
        Rule(lambda seen: seen.wake_wanted, State.WAKING, Why.WANTED),
    ),
    State.WAKING: (
        Rule(lambda seen: seen.at_zero and not seen.wake_wanted, State.PROXY, Why.BACK_AT_ZERO),
        Rule(
            lambda seen: not seen.at_zero and seen.ready_settled,
            State.RELEASING,
            Why.ENDPOINT_READY,
        ),
        Rule(
            lambda seen: not seen.at_zero and seen.unused and seen.resolver and not seen.ready,
            State.PARKING,
            Why.STUCK,
        ),
    ),
    State.RELEASING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, Why.SCALED_TO_ZERO),
        Rule(_no_pods, State.WAKING, Why.NO_ENDPOINT),
        Rule(lambda seen: not seen.slice, State.SERVE, Why.RELEASED),
    ),
}


def step(state: State, seen: Observation) -> Transition:
    """Return the transition from a state by an observation; to the state itself if no rule fits."""
    for rule in RULES[state]:
        if rule.when(seen):
            return Transition(rule.to, rule.why)
    return Transition(state, None)


def derive(seen: Observation) -> State:
    """Find the state from the cluster alone, after a restart."""
    if seen.at_zero:
        return State.PROXY
    if seen.slice or not seen.ready:
        return State.WAKING
    return State.SERVE
