"""From a state and the facts to the writes that bring it about. Pure.

The order of the writes is the order in which they are made, and it is the protocol: what takes
traffic is there before what took it goes. A crash between any two leaves something that `derive`
finds and the same plan completes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from elasti.operator.children import adopted, private_differs, private_service
from elasti.operator.modes import HOLDS, Replicas, State

if TYPE_CHECKING:
    from elasti.operator.memory import Memory
    from elasti.operator.observation import Facts
    from elasti.operator.projections import Service


@dataclasses.dataclass(frozen=True, slots=True)
class PutPrivate:
    """Create the private Service, or write it onto the one that is there."""

    service: Service
    exists: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PublishSlices:
    """Put every resolver that answers for this Service into its rotation."""


@dataclasses.dataclass(frozen=True, slots=True)
class RemoveSlices:
    """Take the resolver out of the rotation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """Ask for at least so many replicas."""

    minimum: int


@dataclasses.dataclass(frozen=True, slots=True)
class ParkTarget:
    """Ask for no replicas, unless somebody else changed the target."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeKeda:
    """Take back a pause that we may have left."""

    name: str


Write: TypeAlias = PutPrivate | PublishSlices | RemoveSlices | Wake | ParkTarget | ResumeKeda


def plan(state: State, facts: Facts, memory: Memory) -> tuple[Write, ...]:
    """Return the writes that a state asks for, given what is there."""
    holds = HOLDS[state]
    writes: list[Write] = []
    if holds.slice:
        writes.append(PublishSlices())
    writes += _replicas(holds.replicas, facts)
    writes += _autoscaler(state, facts, memory)
    if not holds.slice and facts.slices:
        writes.append(RemoveSlices())
    return tuple(writes)


def companions(facts: Facts) -> tuple[Write, ...]:
    """Return the writes that every state asks for: the private Service, as it should be."""
    if facts.service is None:
        return ()
    wanted = private_service(facts.service)
    if facts.private is None:
        return (PutPrivate(wanted, exists=False),)
    if not private_differs(facts.private, wanted):
        return ()
    onto = msgspec.structs.replace(wanted, metadata=adopted(wanted, facts.private))
    return (PutPrivate(onto, exists=True),)


def _replicas(wanted: Replicas, facts: Facts) -> list[Write]:
    minimum = facts.es.spec.min_target_replicas
    if facts.target is None:
        return []
    match wanted:
        case Replicas.ZERO if not facts.at_zero:
            return [ParkTarget()]
        case Replicas.MINIMUM if facts.target.spec_replicas < minimum:
            return [Wake(minimum)]
        case _:
            return []


def _autoscaler(state: State, facts: Facts, memory: Memory) -> list[Write]:
    if facts.now < memory.keda_again:
        return []
    return [ResumeKeda(name) for name in owed_to_keda(state, facts, memory)]


def owed_to_keda(state: State | None, facts: Facts, memory: Memory) -> tuple[str, ...]:
    """Return the ScaledObjects that must work again and may not do so yet.

    One that was paused and is not named any more is among them.
    """
    if state not in (State.SERVE, State.WAKING, State.RELEASING):
        return ()
    autoscaler = facts.es.spec.autoscaler
    names = set(memory.keda_paused)
    if autoscaler is not None and autoscaler.type == "keda" and not memory.keda_resumed:
        names.add(autoscaler.name)
    return tuple(sorted(names))
