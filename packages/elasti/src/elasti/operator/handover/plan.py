"""From a state and the facts to the writes that bring it about, and when to reconcile again.

Pure. The order of the writes is the order in which they are made, and it is the protocol: what
takes traffic is there before what took it goes. A crash between any two leaves something that
`derive` finds and the same plan completes.

Time enters a hand-over only in `requeue_after`: the settles, unanswered probes, a resolver that
is lost.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from elasti.operator.handover.children import adopted, private_differs, private_service
from elasti.operator.handover.machine import HOLDS, Replicas, State

if TYPE_CHECKING:
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.settings import OperatorSettings
    from kubeloop.objects.core import Service


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


def plan(state: State, facts: Facts, memory: ServiceState) -> tuple[Write, ...]:
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


def _autoscaler(state: State, facts: Facts, memory: ServiceState) -> list[Write]:
    if facts.now < memory.keda_again:
        return []
    return [ResumeKeda(name) for name in owed_to_keda(state, facts, memory)]


def owed_to_keda(state: State | None, facts: Facts, memory: ServiceState) -> tuple[str, ...]:
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


_SOON = 0.01
_PROBE_PAUSE = 0.1
_LONGEST_PROBE_PAUSE = 5.0
_PARTNER_PAUSE = 1.0
_SLICE_PAUSE = 1.0
_KEDA_PAUSE = 0.5
_LONGEST_KEDA_PAUSE = 60.0
_KIND_PAUSE = 0.5
_LONGEST_KIND_PAUSE = 60.0


def requeue_after(
    facts: Facts, memory: ServiceState, settings: OperatorSettings, *, now: float, lost_for: float
) -> float | None:
    """Return after how many seconds to look again; None for never."""
    pauses: list[float] = []
    match memory.state:
        case State.ENGAGING if memory.engaged_at is not None:
            left = memory.engaged_at + settings.engage_settle - now
            pauses.append(left if left > 0 else _PARTNER_PAUSE)
        case State.WAKING | State.RELEASING if memory.ready_since:
            first = min(memory.ready_since.values())
            pauses.append(max(first + settings.release_settle - now, 0.05))
        case State.WAKING if facts.ready_soon:
            # The public Service's slices are not watched, and may be written after the private ones.
            pauses.append(_SLICE_PAUSE)
        case State.PROXY if not facts.resolvers and memory.loss_slot is not None:
            pauses.append(memory.loss_slot - now)
        case State.PROXY if not facts.resolvers and lost_for < settings.resolver_loss_grace:
            pauses.append(settings.resolver_loss_grace - lost_for)
    if memory.state is not None and HOLDS[memory.state].slice and memory.probe_failures:
        pauses.append(_exponential(_PROBE_PAUSE, memory.probe_failures, _LONGEST_PROBE_PAUSE))
    if memory.kind_failures:
        # No watch tells when a kind is installed, or allowed.
        pauses.append(_exponential(_KIND_PAUSE, memory.kind_failures, _LONGEST_KIND_PAUSE))
    if memory.keda_failures and owed_to_keda(memory.state, facts, memory):
        pauses.append(memory.keda_again - now)
    return max(min(pauses), _SOON) if pauses else None


def keda_retry_delay(failures: int) -> float:
    """Return how long to wait before KEDA is asked again to go on, after so many failures."""
    return _exponential(_KEDA_PAUSE, failures, _LONGEST_KEDA_PAUSE)


def _exponential(first: float, failures: int, longest: float) -> float:
    return min(first * 2.0 ** min(failures - 1, 10), longest)
