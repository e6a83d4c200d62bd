"""The leader's reconcile, cut where it waits for the API server.

Where to go and what to write is the operator's own code: `observe`, `observation_of`, `step`, `derive`, `plan`
and the methods of its records; whom to ask and when, and how a park ends, is its executor's (`executor`). Here is what
is around it: what the caches show, and what a write does to the cluster.

What the operator does in coroutines between these is written here once more, since the search cuts it into events:

- The order of a reconcile (`ElastiServiceReconciler._step`), in `decide` and `_end`.
- What a slice that is published has in it: every resolver that answered once, or what is left (`_wanted_slice`), as
  `SlicePublisher`; what a removal forgets.
- That a wake-up asks for one replica at least, and that `OwnReplicas` fails on an older version, as `ScaleHandler`.

The swarm runs all of these as they are, and mutants of each are found there: [tests/swarm](../swarm/README.md).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from elasti.api.states import State
from elasti.operator.handover import plan as plans
from elasti.operator.handover.machine import derive, step
from elasti.operator.handover.observe import observation_of, observe
from elasti.operator.model.facts import ClusterSnapshot, Decision, Judgement, Verdict
from elasti.operator.model.state import AWAKE, Activity
from tests.model import executor
from tests.model.records import (
    ES,
    NOW,
    PORT,
    RESOLVER_PORT,
    SERVICE,
    SETTINGS,
    endpoints,
    memory_of,
    records_of,
    slices,
    target,
)
from tests.model.world import MOST_LAG, MOST_PODS, Memory, PodPhase, World

WHY = "model"


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def shown_replicas(world: World) -> int:
    """Return the replicas that the leader believes in: its own last write, or its cache."""
    if world.memory.own_replicas is not None:
        return world.memory.own_replicas[0]
    return world.old_replicas[0] if world.old_replicas else world.replicas


def shown_slice(world: World) -> int | None:
    """Return our slice as the leader believes it."""
    if world.memory.own_slice is not None:
        return world.memory.own_slice[0]
    return world.old_slices[0] if world.old_slices else world.slice


def write_replicas(world: World, replicas: int, *, own: bool) -> World:
    """Change the target; `own`: the leader knows that it did."""
    if replicas == world.replicas:
        return world
    old = (*world.old_replicas, world.replicas)
    world = world._replace(replicas=replicas, old_replicas=old)
    if own:
        memory = world.memory._replace(own_replicas=(replicas, len(old)))
        world = world._replace(memory=memory)
    while len(world.old_replicas) > MOST_LAG:
        world = hear_replicas(world)
    return world


def write_slice(world: World, resolvers: int | None, *, own: bool) -> World:
    """Change our slice; `own`: the leader knows that it did."""
    if resolvers != world.slice:
        old = (*world.old_slices, world.slice)
        world = world._replace(slice=resolvers, old_slices=old)
        if own:
            memory = world.memory._replace(own_slice=(resolvers, len(old)))
            world = world._replace(memory=memory)
        while len(world.old_slices) > MOST_LAG:
            world = hear_slice(world)
    return world._replace(by_hand=world.by_hand and not resolvers)


def hear_replicas(world: World) -> World:
    """Let the cache hear of one change more."""
    memory, own = world.memory, world.memory.own_replicas
    if own is not None:
        memory = memory._replace(own_replicas=(own[0], own[1] - 1) if own[1] > 1 else None)
    return world._replace(old_replicas=world.old_replicas[1:], memory=memory)


def hear_slice(world: World) -> World:
    """Let the cache hear of one change more."""
    memory, own = world.memory, world.memory.own_slice
    if own is not None:
        memory = memory._replace(own_slice=(own[0], own[1] - 1) if own[1] > 1 else None)
    return world._replace(old_slices=world.old_slices[1:], memory=memory)


# A reconcile


class Seen(NamedTuple):
    """All that a reconcile depends on."""

    memory: Memory
    replicas: int
    slice: int | None
    up: int
    ready: int | None
    lost_long: bool
    idle: bool
    asleep: bool
    activity: Activity


class Outcome(NamedTuple):
    """What follows from it."""

    memory: Memory
    asked: bool
    #: An attempt to park begins: it is about the target as it was seen.
    decides: bool
    #: An attempt to park has ended, or traffic was seen: the cooldown begins again.
    used: bool
    engages: bool


def seen_of(world: World) -> Seen:
    """Return what the leader reads: its caches, and from the server what it asks for."""
    current, replicas, shown = world.memory.current, shown_replicas(world), shown_slice(world)
    ready: int | None = None
    if replicas or current not in (None, State.PROXY):
        if current in (None, State.SERVE) and shown is None and world.seen_private:
            ready = world.seen_private
        else:
            # Slices are read from the server, and so are the pods behind them.
            ready = world.endpoints & ready_pods(world)
    memory = world.memory._replace(decided_on=None, own_replicas=None, own_slice=None)
    return Seen(
        memory,
        replicas,
        shown,
        world.seen_up,
        ready,
        world.lost_long,
        world.idle,
        world.asleep,
        activity(world),
    )


def ready_pods(world: World) -> int:
    """Return the pods that are ready now."""
    return sum(1 << pod for pod, phase in enumerate(world.pods) if phase is PodPhase.READY)


def activity(world: World) -> Activity:
    """Return what the resolvers that the leader asks answer together."""
    asked = world.memory.to_query if world.memory.listed else 0
    return executor.activity(asked, world.up, world.held, world.arrived)


@functools.cache
def decide(seen: Seen) -> Outcome:
    """Observe, ask, go a step, and plan."""
    state = records_of(seen.memory)
    ready = None
    if seen.ready is not None:
        ready = frozenset(str(pod) for pod in range(MOST_PODS) if seen.ready >> pod & 1)
    snapshot = ClusterSnapshot(
        es=ES,
        now=NOW,
        service=SERVICE,
        target=target(seen.replicas),
        slices=slices(seen.slice),
        ready=ready,
        resolvers=endpoints(seen.up),
        resolvers_lost_for=100.0 if seen.lost_long else 0.0,
        ports={PORT: RESOLVER_PORT},
    )
    state.note(snapshot)
    judgement = Judgement(Decision(Verdict.SLEEP if seen.idle else Verdict.STAY, "model"))
    facts = observe(snapshot, state, SETTINGS, judgement)
    if facts.lacks_loss_slot:
        state.handover.reserve_loss_slot(NOW)
        facts = observe(snapshot, state, SETTINGS, judgement)
    asked = executor.ask(facts, state, seen.activity)
    used = asked and seen.activity is Activity.BUSY
    observation = observation_of(facts, state, SETTINGS)
    if state.current is None:
        state.enter(State.PROXY if seen.asleep else derive(observation), WHY)
    before = state.current
    assert before is not None
    current = step(before, observation).state
    decides = (before, current) in (
        (State.SERVE, State.ENGAGING),
        (State.WAKING, State.PARKING),
    )
    if current is not before:
        used = used or (before in (State.ENGAGING, State.PARKING) and current in AWAKE)
        state.enter(current, WHY)
    names = [type(write).__name__ for write in plans.plan(current, facts, state)]
    todo = (*names, "AtZero" if facts.at_zero else "Up")
    engages = current is not before and current is State.ENGAGING
    memory = memory_of(state, seen.memory)._replace(todo=todo)
    return Outcome(memory, asked, decides, used, engages)


def reconcile(world: World) -> World:
    """Observe and decide, and leave the plan's writes to be made."""
    outcome = decide(seen_of(world))
    before = world.memory
    decided_on = before.decided_on
    if outcome.decides:
        decided_on = shown_replicas(world)
    memory = outcome.memory._replace(
        decided_on=decided_on, own_replicas=before.own_replicas, own_slice=before.own_slice
    )
    return _without_waits(
        world._replace(
            memory=memory,
            idle=world.idle and not outcome.used,
            since_asked=0 if outcome.asked else world.since_asked,
            arrived=0 if outcome.engages else world.arrived,
        )
    )


def _is_current(world: World) -> bool:
    """Whether the target that the leader sees is the one that is there."""
    own = world.memory.own_replicas
    return len(world.old_replicas) == (own[1] if own else 0)


def _without_waits(world: World) -> World:
    """Go on with what writes nothing, and so waits for nothing."""
    match world.memory.todo[:1]:
        case ("AtZero",) | ("Up",):
            return write(world, "ok")
        case ("PublishSlices",) if _wanted_slice(world) == shown_slice(world):
            return write(world, "ok")
    return world


def write(world: World, outcome: str) -> World:
    """Make the next write of the plan: `ok`, `failed`, or `lied`: it was made and reported as failed."""
    world = _write(world, outcome)
    return _without_waits(world) if world.memory.todo else world


def _write(world: World, outcome: str) -> World:
    name, *rest = world.memory.todo
    world = world._replace(memory=world.memory._replace(todo=tuple(rest)))
    if outcome != "ok":
        # An error ends the reconcile; only the park takes it for an answer.
        left = world.memory.todo if name == "ParkTarget" else ()
        world = world._replace(memory=world.memory._replace(todo=left))
    own = outcome == "ok"
    match name:
        case "PublishSlices":
            return _publish(world, outcome)
        case "RemoveSlices":
            if outcome != "failed":
                world = write_slice(world, None, own=own)
                # See "Bounds" in `search`: something was faster than a release that was under way.
                # Only if it was one: a slice that is removed for any other reason is not excused.
                releases = world.memory.current is State.RELEASING
                if releases and not world.replicas:
                    world = world._replace(by_hand=True)
                elif releases and not ready_pods(world):
                    world = world._replace(died=True)
            if own:
                memory = world.memory._replace(listed=0, long_listed=0, to_query=0)
                world = world._replace(memory=memory)
        case "Wake":
            if outcome != "failed":
                world = write_replicas(world, max(world.replicas, 1), own=own)
            if own:
                world = world._replace(idle=False)
        case "ParkTarget":
            world = _park(world, outcome)
        case "OwnReplicas":
            # Its value is the same; it fails if the leader saw an older target.
            if own and _is_current(world):
                world = world._replace(memory=world.memory._replace(owns=True))
        case "AskAgain":
            if executor.wakes_again(_plain(world.memory), activity(world)):
                world = world._replace(idle=False, memory=world.memory._replace(wake=True))
        case "AtZero" | "Up":
            world = _end(world, at_zero=name == "AtZero")
        case _:
            raise AssertionError(name)
    return world


def _answering(world: World) -> int:
    # Those that were listed have confirmed their port, and are not asked again.
    return world.seen_up & (world.up | world.memory.listed)


def _wanted_slice(world: World) -> int | None:
    shown = shown_slice(world)
    return _answering(world) or (None if shown is None else shown & world.seen_up)


def _publish(world: World, outcome: str) -> World:
    shown, wanted = shown_slice(world), _wanted_slice(world)
    memory = executor.listing(_plain(world.memory), shown, _answering(world), world.seen_up)
    before = world.memory
    world = world._replace(memory=before._replace(listed=memory.listed, to_query=memory.to_query))
    if wanted != shown and outcome != "failed":
        world = write_slice(world, wanted, own=outcome == "ok")
    if wanted == shown or outcome == "ok":
        after = executor.published(_plain(world.memory))
        world = world._replace(memory=world.memory._replace(long_listed=after.long_listed))
    return world


def _park(world: World, outcome: str) -> World:
    seen = executor.Seen(world.replicas, shown_replicas(world), world.idle)
    park = executor.park(_plain(world.memory), seen, outcome)
    if park.wrote:
        if unasked := world.held & ~world.since_asked:
            raise Broken("NeverParkedWithHeld", f"resolvers {unasked:02b} hold a connection")
        world = write_replicas(world, 0, own=outcome == "ok")
    after = park.memory
    todo = ("AskAgain", *world.memory.todo) if park.asks else world.memory.todo
    memory = world.memory._replace(
        park=after.park, parked_here=after.parked_here, owns=after.owns, todo=todo
    )
    return world._replace(memory=memory)


def _plain(memory: Memory) -> Memory:
    """Return it without what the executor does not see."""
    return memory._replace(own_replicas=None, own_slice=None, todo=())


def _end(world: World, *, at_zero: bool) -> World:
    own = world.memory
    plain = own._replace(decided_on=None, own_replicas=None, own_slice=None)
    memory = _ended(plain, at_zero)._replace(
        decided_on=own.decided_on, own_replicas=own.own_replicas, own_slice=own.own_slice
    )
    asleep = world.asleep
    if memory.current is State.PROXY and at_zero:
        asleep = True
    elif memory.current in (State.SERVE, State.RELEASING):
        asleep = False
    return world._replace(memory=memory, asleep=asleep)


@functools.cache
def _ended(memory: Memory, at_zero: bool) -> Memory:
    state = records_of(memory)
    state.handover.note_step(NOW, listed=bool(state.listing.listed), at_zero=at_zero)
    if state.current in AWAKE and not at_zero:
        state.requests.note_awake()
    return memory_of(state, memory)
