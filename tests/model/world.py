"""What a state of the search is made of: the cluster, its nodes, its clients, and what the leader remembers.

Times are kept as far as a decision can see them: a settle is running or over. Versions are kept as how far
a cache is behind: none, one or two changes. Sets of the two resolvers and of the two pods are bits of a
number, since a search of millions of states is as fast as their hashes.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from elasti.api.states import State
from elasti.operator.model.state import Activity, Park

RESOLVERS = (1, 2)
BOTH = 3
NODES = (0, 1)
MOST_PODS = 2
MOST_LAG = 2


class Age(enum.IntEnum):
    """When something began to be so."""

    NEVER = 0
    SETTLING = 1
    SETTLED = 2


class PodPhase(enum.IntEnum):
    """A pod, as its kubelet knows it."""

    NONE = 0
    STARTING = 1
    READY = 2
    UNREADY = 3
    ENDING = 4


class View(NamedTuple):
    """Where one node sends connections of the Service."""

    #: Pods, ready or as a last resort ending, are in it.
    pods: bool
    resolvers: int


class Memory(NamedTuple):
    """What the leader remembers; a new leader begins with `Memory()`."""

    current: State | None = None
    engaged: Age = Age.NEVER
    #: By pod: when its endpoint became ready.
    ready: tuple[Age, ...] = (Age.NEVER,) * MOST_PODS
    activity: Activity = Activity.UNKNOWN
    park: Park = Park.NOT_TRIED
    parked_here: bool = False
    #: The target's replicas were taken while it is at zero.
    owns: bool = False
    #: The replicas of the target that a park was decided on.
    decided_on: int | None = None
    wake: bool = False
    listed: int = 0
    #: Those that have been listed for the engage settle.
    long_listed: int = 0
    to_query: int = 0
    loss_slot: bool = False
    #: Our own last write that the cache may not show: the value, and how many changes it has yet to hear of.
    own_replicas: tuple[int, int] | None = None
    own_slice: tuple[int | None, int] | None = None
    #: The writes that are left of the last plan, in their order.
    todo: tuple[str, ...] = ()


class World(NamedTuple):
    """One state. `replicas`, `pods`, `endpoints` and `slice` are the truth; the rest sees it later."""

    replicas: int = 1
    pods: tuple[PodPhase, ...] = (PodPhase.READY, PodPhase.NONE)
    #: The pods that the Service's own slices have as ready, as their controller last wrote them.
    endpoints: int = 1
    #: The resolvers in our slice; None: it is not there.
    slice: int | None = None
    up: int = BOTH
    views: tuple[View, ...] = (View(pods=True, resolvers=0),) * len(NODES)
    #: Resolvers that hold a connection, or answer over one.
    held: int = 0
    #: Resolvers at which something arrived since the slice was published or a cooldown passed.
    arrived: int = 0
    #: Resolvers at which something arrived since the leader last asked.
    since_asked: int = 0
    #: A pod answers a client directly.
    direct: bool = False
    #: Triggers have been quiet for a cooldown.
    idle: bool = False
    #: Status says that the target sleeps.
    asleep: bool = False
    #: Former values that the leader's caches still show, the oldest first; empty: the cache is current.
    old_replicas: tuple[int, ...] = ()
    old_slices: tuple[int | None, ...] = ()
    seen_up: int = BOTH
    seen_private: int = 1
    #: No resolver has been ready for longer than the grace.
    lost_long: bool = False
    memory: Memory = Memory()
    # What excuses a client that finds no way: it happened, and was not yet repaired.
    by_hand: bool = False
    died: bool = False
    #: How many faults may still happen.
    faults: int = 0


_SWAPPED = (0, 2, 1, 3)
_ONE_OF_TWO = {1, 2}


def canonical(world: World) -> World:
    """Return the one of all worlds that differ only in how nodes and resolvers are numbered."""
    one = _ordered(world)
    signature = _signature(one)
    if not _ONE_OF_TWO & set(signature):
        return one  # both resolvers are alike
    other = _ordered(_swapped(world))
    return one if signature <= _signature(other) else other


def _ordered(world: World) -> World:
    first, second = world.views
    return world if first <= second else world._replace(views=(second, first))


def _signature(world: World) -> tuple[int, ...]:
    memory = world.memory
    own = memory.own_slice[0] if memory.own_slice else None
    slices = [-1 if one is None else one for one in (world.slice, *world.old_slices, own)]
    sets = (world.up, world.held, world.arrived, world.since_asked, world.seen_up)
    listing = (memory.listed, memory.long_listed, memory.to_query)
    return (*sets, *listing, world.views[0].resolvers, world.views[1].resolvers, *slices)


def _swapped(world: World) -> World:
    memory, swap = world.memory, _SWAPPED
    own = memory.own_slice
    if memory.listed or memory.to_query or own:
        memory = memory._replace(
            listed=swap[memory.listed],
            long_listed=swap[memory.long_listed],
            to_query=swap[memory.to_query],
            own_slice=own and (own[0] if own[0] is None else swap[own[0]], own[1]),
        )
    return world._replace(
        slice=None if world.slice is None else swap[world.slice],
        up=swap[world.up],
        views=tuple(View(pods, swap[resolvers]) for pods, resolvers in world.views),
        held=swap[world.held],
        arrived=swap[world.arrived],
        since_asked=swap[world.since_asked],
        old_slices=tuple(None if one is None else swap[one] for one in world.old_slices),
        seen_up=swap[world.seen_up],
        memory=memory,
    )
