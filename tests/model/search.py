"""The search: every order of events from every point of a whole cycle, to a depth, each state once.

    python -m tests.model.search --depth 14 --faults 2

A state that breaks an invariant is printed with the shortest way to it. From every state a fair continuation
(all is delivered, nothing more goes wrong, clients get their answers) must become stable: awake with pods in
rotation alone, or asleep with the resolver in rotation alone.

Bounds, where the promise is weaker than the invariant's name:

ScaledByHand: a person who scales to zero while the resolver is not in rotation gives no notice. Until the slice
is published, only the pods that are ending answer.

ReleaseUnderWay: the same, if the resolver leaves the rotation at that moment: the leader has decided to release,
its DELETE of the slice is on its way, and the target is at zero, or its last pod unready, before it arrives. No
precondition of the DELETE can see that, since the slice is another object than target and pods. The gap lasts for
as long as the DELETE and one reconcile take, which the change has already asked for:
`test_a_scale_to_zero_during_a_release_is_repaired_at_once`. In code: `RemoveSlices` in `tests.model.leader`.

The claims of two Services for one port are searched apart, in `ports`: all of their states.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from elasti.api.states import State
from tests.model import events as happen
from tests.model import ports as claims
from tests.model.events import events
from tests.model.leader import (
    Broken,
    hear_replicas,
    hear_slice,
    ready_pods,
    reconcile,
    write,
    write_replicas,
)
from tests.model.world import NODES, PodPhase, World, canonical

_MOST_ROUNDS = 40
# Deeper than the longest way to any state of two claims.
_ALL = 30


class Search:
    """A breadth-first search. `states` and `transitions` count what was seen."""

    def __init__(self, faults: int) -> None:
        self.transitions = 0
        self.depth = 0
        self._roots = cycle(faults)
        self._parents = {
            hash(root): (0, f"point {number} of a cycle: {name}")
            for number, (name, root) in enumerate(self._roots)
        }
        self._stable: set[int] = set()

    @property
    def states(self) -> int:
        """How many states were seen, apart from how nodes and resolvers are numbered."""
        return len(self._parents)

    def run(self, depth: int, seconds: float = float("inf")) -> None:
        """Search to a depth, or until time is over. Raises Found."""
        frontier = [root for _, root in self._roots]
        until = time.monotonic() + seconds
        while frontier and self.depth < depth:
            following: list[World] = []
            for world in frontier:
                following += self._expand(world)
                if time.monotonic() > until:
                    return
            frontier = following
            self.depth += 1

    def _expand(self, world: World) -> list[World]:
        found = []
        name = ""
        try:
            self._check_stable(world)
            for name, after in events(world):
                self.transitions += 1
                after = canonical(after)
                key = hash(after)
                if key not in self._parents:
                    self._parents[key] = (hash(world), name)
                    found.append(after)
        except Broken as broken:
            raise Found(str(broken), self._way(world), world) from None
        return found

    def _way(self, world: World) -> list[str]:
        names = []
        key = hash(world)
        while key:
            key, name = self._parents[key]
            names.append(name)
        return names[::-1]

    def _check_stable(self, world: World) -> None:
        """Raise Broken unless a fair continuation becomes stable."""
        path = []
        for _ in range(_MOST_ROUNDS):
            key = hash(world)
            if key in self._stable:
                break
            path.append(key)
            after = fair_round(world)
            if after == world:
                check_end(world)
                break
            world = after
        else:
            raise Broken("BecomesStable", f"it still changes after {_MOST_ROUNDS} rounds: {world}")
        self._stable.update(path)


# What a calm cluster does next, the first that fits: everybody hears of everything before time goes on.
_CALM = (
    "the leader writes",
    "the leader hears",
    "the workload's",
    "pod 0 becomes ready",
    "pod 1 becomes ready",
    "pod 0 ends",
    "pod 1 ends",
    "the Service's",
    "node",
    "resolver 1 has it woken by the leader",
    "the client of",
    "the leader reconciles",
    "the release settle",
    "the engage settle",
)


def cycle(faults: int) -> list[tuple[str, World]]:
    """Return the points of a target's life without faults: awake, asleep, woken by a client. Raises Found."""
    found = [("point 0 of a cycle", canonical(World(faults=faults)))]
    try:
        for cause in ("a cooldown has passed", "a client of node 0 reaches resolver"):
            possible = (after for name, after in events(found[-1][1]) if name.startswith(cause))
            if (after := next(possible, None)) is None:
                raise Broken("SleepsAndWakes", f"{cause!r} cannot happen after a calm cycle so far")
            found.append((cause, canonical(after)))
            while (following := _calm(found[-1][1])) is not None:
                found.append(following)
    except Broken as broken:
        raise Found(str(broken), [name for name, _ in found], found[-1][1]) from None
    return found


def _calm(world: World) -> tuple[str, World] | None:
    happening = list(events(world))
    for wanted in _CALM:
        for name, after in happening:
            if name.startswith(wanted) and (after := canonical(after)) != world:
                return name, after
    return None


class Found(Exception):
    """An invariant was broken, and this is how."""

    def __init__(self, what: str, way: Iterable[str], world: World) -> None:
        self.way = list(way)
        steps = "\n".join(f"  {number:2} {name}" for number, name in enumerate(self.way, 1))
        super().__init__(f"{what}\n{steps}\n  {world}")


def fair_round(world: World) -> World:
    """Return the world after a while in which all that is under way comes to its end."""
    while world.memory.todo:
        world = write(world, "ok")
    while world.old_replicas:
        world = hear_replicas(world)
    while world.old_slices:
        world = hear_slice(world)
    world = happen.hear_resolvers(happen.controlled(world))
    for pod, phase in enumerate(world.pods):
        if phase in (PodPhase.STARTING, PodPhase.UNREADY):
            world = happen.with_pod(world, pod, PodPhase.READY)
    ready = ready_pods(world)
    world = world._replace(endpoints=ready, seen_private=ready)
    for node in NODES:
        world = happen.node_hears(world, node)
    for node in NODES:
        happen.check_way(world, node, world.views[node])
    if ready:
        world = world._replace(held=0)
    elif world.held & world.up and not world.replicas:
        world = write_replicas(world, 1, own=False)
    world = world._replace(held=world.held & world.up, direct=False)
    for pod, phase in enumerate(world.pods):
        if phase is PodPhase.ENDING and happen.may_end(world, pod):
            world = happen.with_pod(world, pod, PodPhase.NONE)
    world = happen.release_settled(happen.engage_settled(world))
    if not world.up:
        world = world._replace(lost_long=True)
    world = world._replace(since_asked=0)
    world = reconcile(world)
    while world.memory.todo:
        world = write(world, "ok")
    return world


def check_end(world: World) -> None:
    """Raise Broken unless a world in which nothing changes any more is one to stay in."""
    awake = (
        world.memory.current is State.SERVE
        and world.slice is None
        and world.replicas == 1
        and bool(world.endpoints)
    )
    asleep = (
        world.memory.current is State.PROXY
        and world.slice == world.up
        and bool(world.up)
        and world.replicas == 0
        and not any(world.pods)
    )
    if not (awake or asleep) or world.held:
        raise Broken(
            "BecomesStable", f"nothing changes, and it is neither awake nor asleep: {world}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=12, help="events in a row (%(default)s)")
    parser.add_argument("--faults", type=int, default=2, help="faults in a run (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    chosen = parser.parse_args()
    began = time.monotonic()
    try:
        search = Search(chosen.faults)
        search.run(chosen.depth, chosen.seconds)
        ports = claims.search(_ALL)
    except (Found, Broken) as found:
        print(found, file=sys.stderr)
        return 1
    took = time.monotonic() - began
    print(
        f"{search.states} states, {search.transitions} transitions, every order of {search.depth} events"
        f" from every point of a cycle, {chosen.faults} faults at most: no invariant is broken ({took:.0f} s)"
    )
    print(
        f"{ports} states of two Services that claim one port, which are all: no invariant is broken"
    )
    print("excused (see the head of tests/model/search.py): ScaledByHand, ReleaseUnderWay")
    return 0


if __name__ == "__main__":
    sys.exit(main())
