"""The hand-over between pods and resolver, as a table.

Make before break, both ways: the resolver's slice is published before the last pod goes, and
removed only after a pod has been ready for a while. Every state says what must hold in it
(`HOLDS`), and every state has rules, tried in order, that say what it leaves for (`RULES`); where no
rule fits, it stays. So each pair of state and observation has exactly one answer.

The state is never trusted from memory alone: `derive` finds it again from the cluster after a
restart, and whatever it finds converges.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias


class State(enum.Enum):
    """Where a Service's traffic goes, and where it is going to."""

    SERVE = "Serve"
    ENGAGING = "Engaging"
    DRAINING = "Draining"
    PARKING = "Parking"
    PROXY = "Proxy"
    WAKING = "Waking"
    RELEASING = "Releasing"


class Activity(enum.Enum):
    """What the listed resolvers say of arrivals since the slice was published."""

    UNKNOWN = "unknown"
    QUIET = "quiet"
    BUSY = "busy"


class Park(enum.Enum):
    """How far the write of zero replicas has come."""

    NOT_TRIED = "not tried"
    REFUSED = "refused"


class Replicas(enum.Enum):
    """What a state asks of the target's scale."""

    AS_THEY_ARE = "as they are"
    ZERO = "zero"
    MINIMUM = "at least the minimum"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known at one moment.

    `ready`: the public Service's own slices have a ready endpoint; `ready_settled`: for the whole
    release settle. `slice`: ours is published; `engage_settled`: for the whole engage settle.
    `may_sleep`: idle for the cooldown, inside the period, and every trigger agrees. `wake_wanted`:
    a request, a trigger, the schedule or a lost resolver asks for pods. `unused`: no connection is
    held, triggers are quiet, and a cooldown has passed since the last wake request or failed park.
    `drain`: pods are to be out of rotation before they are told to stop; `drain_settled`: they have been
    for the whole engage settle.
    """

    at_zero: bool
    ready: bool
    ready_settled: bool
    slice: bool
    engage_settled: bool
    resolver: bool
    may_sleep: bool
    wake_wanted: bool
    unused: bool
    activity: Activity = Activity.UNKNOWN
    park: Park = Park.NOT_TRIED
    drain: bool = False
    drain_settled: bool = False


class Holds(NamedTuple):
    """What the operator brings about in a state.

    `drained`: the pods are out of the Service's rotation; None: as they are.
    """

    slice: bool
    replicas: Replicas
    mode: str
    drained: bool | None = False


class Rule(NamedTuple):
    """Leave for `to` when the condition holds; `why` goes to the event."""

    when: Callable[[Observation], bool]
    to: State
    why: str


class Transition(NamedTuple):
    """The next state and the reason; the reason is empty where nothing changes."""

    state: State
    why: str


HOLDS: Mapping[State, Holds] = {
    State.SERVE: Holds(slice=False, replicas=Replicas.AS_THEY_ARE, mode="serve"),
    State.ENGAGING: Holds(slice=True, replicas=Replicas.AS_THEY_ARE, mode="serve"),
    State.DRAINING: Holds(slice=True, replicas=Replicas.AS_THEY_ARE, mode="proxy", drained=True),
    State.PARKING: Holds(slice=True, replicas=Replicas.ZERO, mode="proxy", drained=None),
    State.PROXY: Holds(slice=True, replicas=Replicas.AS_THEY_ARE, mode="proxy"),
    State.WAKING: Holds(slice=True, replicas=Replicas.MINIMUM, mode="proxy"),
    State.RELEASING: Holds(slice=False, replicas=Replicas.AS_THEY_ARE, mode="serve"),
}


def _no_pods(seen: Observation) -> bool:
    return not seen.at_zero and not seen.ready


Rules: TypeAlias = tuple[Rule, ...]
_UNUSED = "nothing arrived while the resolver was in rotation"


def _ended(back: State, settled: Callable[[Observation], bool]) -> Rules:
    """Return what ends an attempt to sleep; once it is `settled`, resolvers must have answered."""
    unanswered = Activity.UNKNOWN
    return (
        Rule(lambda seen: not seen.resolver, back, "no resolver is ready"),
        Rule(lambda seen: not seen.may_sleep or seen.wake_wanted, back, "in use again"),
        Rule(lambda seen: seen.activity is Activity.BUSY, back, "traffic arrived"),
        Rule(lambda s: settled(s) and s.activity is unanswered, back, "a resolver did not answer"),
    )


# The order within a state matters: what protects traffic comes before what saves pods.
RULES: Mapping[State, Rules] = {
    State.SERVE: (
        Rule(lambda seen: seen.at_zero, State.PROXY, "scaled to zero"),
        Rule(_no_pods, State.WAKING, "no endpoint is ready"),
        Rule(
            lambda seen: seen.may_sleep and seen.resolver, State.ENGAGING, "idle for the cooldown"
        ),
    ),
    State.ENGAGING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, "scaled to zero"),
        Rule(_no_pods, State.WAKING, "no endpoint is ready"),
        *_ended(State.RELEASING, lambda seen: seen.engage_settled),
        Rule(lambda s: s.slice and s.engage_settled and s.drain, State.DRAINING, _UNUSED),
        Rule(lambda seen: seen.slice and seen.engage_settled, State.PARKING, _UNUSED),
    ),
    # Without pods in rotation the resolver may not leave: an attempt that ends is a wake-up.
    State.DRAINING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, "scaled to zero"),
        *_ended(State.WAKING, lambda seen: seen.drain_settled),
        Rule(lambda seen: seen.park is Park.REFUSED, State.WAKING, "the pods stay in rotation"),
        Rule(lambda seen: seen.slice and seen.drain_settled, State.PARKING, _UNUSED),
    ),
    State.PARKING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, "parked"),
        Rule(
            lambda seen: not seen.ready and (seen.park is Park.REFUSED or seen.wake_wanted),
            State.WAKING,
            "not parked, and no endpoint is ready",
        ),
        Rule(
            lambda seen: seen.park is Park.REFUSED,
            State.RELEASING,
            "the target could not be parked",
        ),
        Rule(lambda seen: seen.wake_wanted, State.RELEASING, "in use again"),
    ),
    State.PROXY: (
        Rule(lambda seen: not seen.at_zero, State.WAKING, "scaled up"),
        Rule(lambda seen: seen.wake_wanted, State.WAKING, "wanted"),
    ),
    State.WAKING: (
        Rule(lambda seen: seen.at_zero and not seen.wake_wanted, State.PROXY, "back at zero"),
        Rule(
            lambda seen: not seen.at_zero and seen.ready_settled,
            State.RELEASING,
            "an endpoint is ready",
        ),
        Rule(
            lambda seen: not seen.at_zero and seen.unused and seen.resolver and not seen.ready,
            State.PARKING,
            "not ready for a cooldown, and no connection is held",
        ),
    ),
    State.RELEASING: (
        Rule(lambda seen: seen.at_zero, State.PROXY, "scaled to zero"),
        Rule(_no_pods, State.WAKING, "ready endpoints vanished"),
        Rule(lambda seen: not seen.slice, State.SERVE, "traffic goes to the pods"),
    ),
}


def step(state: State, seen: Observation) -> Transition:
    """Return what follows from a state and an observation; the state itself where nothing does."""
    for rule in RULES[state]:
        if rule.when(seen):
            return Transition(rule.to, rule.why)
    return Transition(state, "")


def derive(seen: Observation) -> State:
    """Find the state from the cluster alone, after a restart."""
    if seen.at_zero:
        return State.PROXY
    if seen.slice or not seen.ready:
        return State.WAKING
    return State.SERVE
