"""Everything that may happen next in a world, by name."""

from __future__ import annotations

from collections.abc import Iterator

from elasti.api.states import State
from tests.model.leader import (
    Broken,
    hear_replicas,
    hear_slice,
    ready_pods,
    reconcile,
    write,
    write_replicas,
)
from tests.model.world import (
    NODES,
    RESOLVERS,
    Age,
    Memory,
    PodPhase,
    View,
    World,
)

# A write of an empty plan waits for nothing, so nothing can happen to it.
_NOT_WRITES = ("AtZero", "Up", "AskAgain")
Event = tuple[str, World]


def events(world: World) -> Iterator[Event]:
    """Return what may happen, and what follows. Raises Broken."""
    yield from _operator(world)
    yield from _cluster(world)
    yield from _time(world)
    yield from _clients(world)
    yield from _people(world)
    if world.faults:
        yield from _faults(world._replace(faults=world.faults - 1))


def members(resolvers: int) -> Iterator[int]:
    return (one for one in RESOLVERS if one & resolvers)


# The operator


def _operator(world: World) -> Iterator[Event]:
    memory = world.memory
    if memory.todo:
        yield f"the leader writes {memory.todo[0]}", write(world, "ok")
    else:
        yield "the leader reconciles", reconcile(world)
    if world.old_replicas:
        yield "the leader hears of the target", hear_replicas(world)
    if world.old_slices:
        yield "the leader hears of the slice", hear_slice(world)
    if world.seen_up != world.up:
        yield "the leader hears of resolvers", hear_resolvers(world)
    if world.seen_private != world.endpoints:
        yield "the leader hears of pods", world._replace(seen_private=world.endpoints)
    for resolver in members(world.held & world.up):
        if world.replicas == 0:
            up = write_replicas(world, 1, own=False)
            yield f"resolver {resolver} has it woken by a follower", up
            yield f"resolver {resolver} has it woken by the leader", woken_by_leader(world)


def woken_by_leader(world: World) -> World:
    """The replica that leads wakes: it notes the request, and its reconciler hears of it."""
    world = write_replicas(world, 1, own=False)
    return world._replace(idle=False, memory=world.memory._replace(wake=True))


def hear_resolvers(world: World) -> World:
    lost_long = world.lost_long and not world.up
    return world._replace(seen_up=world.up, lost_long=lost_long)


# The cluster


def synced(world: World) -> View:
    """Return what a node sends connections to that has heard of everything."""
    resolvers = world.slice or 0
    ending = PodPhase.ENDING in world.pods
    # With nothing else, service proxies send connections to pods that are ending.
    return View(pods=bool(world.endpoints) or (not resolvers and ending), resolvers=resolvers)


def _cluster(world: World) -> Iterator[Event]:
    for node in NODES:
        if world.views[node] != synced(world):
            yield f"node {node} hears of endpoints", node_hears(world, node)
    ready = ready_pods(world)
    if ready != world.endpoints:
        yield "the Service's slices are written", world._replace(endpoints=ready)
    if (scaled := controlled(world)) != world:
        yield "the workload's pods are made or ended", scaled
    for pod, phase in enumerate(world.pods):
        if phase in (PodPhase.STARTING, PodPhase.UNREADY):
            yield f"pod {pod} becomes ready", with_pod(world, pod, PodPhase.READY)
        elif phase is PodPhase.ENDING and may_end(world, pod):
            yield f"pod {pod} ends", with_pod(world, pod, PodPhase.NONE)


def node_hears(world: World, node: int) -> World:
    views = list(world.views)
    views[node] = synced(world)
    whole = all(view == views[node] and any(view) for view in views)
    dead = world.endpoints & ~ready_pods(world) or (world.slice or 0) & ~world.up
    healed = whole and not dead
    return world._replace(views=tuple(views), died=world.died and not healed)


def controlled(world: World) -> World:
    """Return the world after the workload's controller has made or ended pods."""
    live = [p for p, phase in enumerate(world.pods) if PodPhase.NONE < phase < PodPhase.ENDING]
    if world.replicas == 0:
        for pod in live:
            world = with_pod(world, pod, PodPhase.ENDING)
    elif not live and PodPhase.NONE in world.pods:
        world = with_pod(world, world.pods.index(PodPhase.NONE), PodPhase.STARTING)
    return world


def with_pod(world: World, pod: int, phase: PodPhase) -> World:
    pods = list(world.pods)
    pods[pod] = phase
    direct = world.direct and any(one in (PodPhase.READY, PodPhase.ENDING) for one in pods)
    return world._replace(pods=tuple(pods), direct=direct)


def may_end(world: World, pod: int) -> bool:
    """Whether a pod's grace may be over: it is longer than nodes need to hear, and than its last answer."""
    others = [phase for one, phase in enumerate(world.pods) if one != pod]
    if world.direct and not any(p in (PodPhase.READY, PodPhase.ENDING) for p in others):
        return False
    # A person who scales to zero gives no notice: until we have reacted, the pod is all there is.
    if world.by_hand and PodPhase.READY not in others:
        return False
    return not world.endpoints >> pod & 1 and all(view == synced(world) for view in world.views)


# Time


def _time(world: World) -> Iterator[Event]:
    memory = world.memory
    settles = memory.engaged is Age.SETTLING or memory.listed & ~memory.long_listed
    # The settle is longer than nodes need.
    if settles and all(view == synced(world) for view in world.views):
        yield "the engage settle is over", engage_settled(world)
    if Age.SETTLING in memory.ready:
        yield "the release settle is over", release_settled(world)
    if not world.idle and not world.held and not world.direct:
        yield "a cooldown has passed", world._replace(idle=True, arrived=0)
    if world.idle and (world.held or world.direct):
        yield "triggers see use", world._replace(idle=False)
    if not world.seen_up and not world.lost_long:
        yield "no resolver was ready for the grace", world._replace(lost_long=True)


def engage_settled(world: World) -> World:
    engaged = Age.SETTLED if world.memory.engaged else Age.NEVER
    memory = world.memory._replace(engaged=engaged, long_listed=world.memory.listed)
    return world._replace(memory=memory)


def release_settled(world: World) -> World:
    ready = tuple(Age.SETTLED if age else Age.NEVER for age in world.memory.ready)
    return world._replace(memory=world.memory._replace(ready=ready))


# Clients


def _clients(world: World) -> Iterator[Event]:
    for node, view in enumerate(world.views):
        check_way(world, node, view)
        for resolver in members(view.resolvers & world.up & ~world.held):
            yield f"a client of node {node} reaches resolver {resolver}", arrive(world, resolver)
        if view.pods and not world.direct and _answers(world):
            yield f"a client of node {node} reaches a pod", world._replace(direct=True)
    for resolver in members(world.held):
        if PodPhase.READY in world.pods:
            left = world._replace(held=world.held & ~resolver)
            yield f"the client of resolver {resolver} has its answer", left
    if world.direct:
        yield "the client of a pod has its answer", world._replace(direct=False)


def arrive(world: World, resolver: int) -> World:
    return world._replace(
        held=world.held | resolver,
        arrived=world.arrived | resolver,
        since_asked=world.since_asked | resolver,
    )


def _answers(world: World) -> bool:
    return any(phase in (PodPhase.READY, PodPhase.ENDING) for phase in world.pods)


def check_way(world: World, node: int, view: View) -> None:
    """Raise Broken if a connection through a node could meet nothing that answers."""
    if world.died or world.by_hand:
        return
    if not view.pods and not view.resolvers:
        raise Broken("NeverNobodyInRotation", f"node {node} has no endpoint")
    if view.pods and not _answers(world):
        raise Broken("NeverSentToTheDead", f"node {node} sends connections to pods that are gone")


# People, and what goes wrong


def _people(world: World) -> Iterator[Event]:
    if world.faults:
        less = world._replace(faults=world.faults - 1)
        if world.replicas:
            by_hand = not world.slice
            down = write_replicas(less, 0, own=False)._replace(by_hand=by_hand)
            yield "a person scales to zero", down
        else:
            yield "a person scales up", write_replicas(less, 1, own=False)


def _faults(world: World) -> Iterator[Event]:
    """Return what happens for one fault; it is paid for already."""
    memory = world.memory
    fresh = Memory()
    if memory != fresh:
        yield "another replica leads", world._replace(memory=fresh)
    if memory.todo and memory.todo[0] not in _NOT_WRITES:
        for outcome in ("failed", "lied"):
            yield f"the write {memory.todo[0]} {outcome}", write(world, outcome)
    for resolver in RESOLVERS:
        if world.up & resolver:
            yield f"resolver {resolver} dies", resolver_dies(world, resolver)
        else:
            up = world.up | resolver
            yield f"resolver {resolver} is back", world._replace(up=up)
    for pod, phase in enumerate(world.pods):
        # A pod that serves while the target is awake: what it costs is Kubernetes' own affair.
        if phase is PodPhase.READY and memory.current is not State.SERVE:
            unready = with_pod(world, pod, PodPhase.UNREADY)
            yield f"pod {pod} becomes unready", unready._replace(died=True)


def resolver_dies(world: World, resolver: int) -> World:
    used = (world.slice or 0) | world.views[0].resolvers | world.views[1].resolvers
    return world._replace(
        up=world.up & ~resolver,
        held=world.held & ~resolver,
        arrived=world.arrived & ~resolver,
        since_asked=world.since_asked & ~resolver,
        died=world.died or bool(used & resolver),
    )
