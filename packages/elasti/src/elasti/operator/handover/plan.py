"""From a state and the facts to the writes that bring it about, and when to reconcile again.

Pure. The order of the writes is the order in which they are made, and it is the protocol: what
takes traffic is there before what took it goes. A crash between any two leaves something that
`derive` finds and the same plan completes.

Time enters a hand-over only in `requeue_after`: the settles, unanswered probes, a resolver that
is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from elasti.api.defaults import DEPENDENCY_TIMEOUT
from elasti.api.states import State
from elasti.operator.handover.machine import HOLDS, Replicas
from elasti.operator.model.children import adopted, private_differs, private_service
from elasti.operator.model.facts import Facts
from elasti.operator.model.records import AutoscalerRef
from elasti.operator.model.state import AWAKE, ServiceState
from elasti.operator.model.targets import ScaleTarget, wake_replicas
from elasti.operator.model.workers import Tries
from elasti.operator.settings import OnResolverLoss, OperatorSettings
from kubeloop.objects.core import Service


class PutPrivate(NamedTuple):
    """Create the private Service, or write it onto the one that is there."""

    service: Service
    exists: bool


class PublishSlices(NamedTuple):
    """Put every resolver that answers for this Service into its rotation."""


class RemoveSlices(NamedTuple):
    """Take the resolver out of the rotation."""


class SetDrained(NamedTuple):
    """Take the pods out of the public Service's rotation, or let them in again."""

    drained: bool


class Wake(NamedTuple):
    """Ask for at least that many replicas."""

    minimum: int


class ParkTarget(NamedTuple):
    """Ask for no replicas, unless another writer changed the target."""


class OwnReplicas(NamedTuple):
    """Take the replicas of a target at zero: another writer set them, or a version that left them without an owner."""


class ResumeAutoscaler(NamedTuple):
    """Take back a pause that we may have left."""

    autoscaler: AutoscalerRef


class ParkWorkers(NamedTuple):
    """Note what each of these has, then ask for none: the target sleeps."""

    targets: tuple[ScaleTarget, ...]


class WakeWorkers(NamedTuple):
    """Give each of these back what it had."""

    targets: tuple[ScaleTarget, ...]


Write: TypeAlias = (
    PutPrivate
    | PublishSlices
    | RemoveSlices
    | SetDrained
    | Wake
    | ParkTarget
    | OwnReplicas
    | ResumeAutoscaler
    | ParkWorkers
    | WakeWorkers
)


def plan(current: State, facts: Facts, state: ServiceState) -> tuple[Write, ...]:
    """Return the writes that a state asks for, given what is there."""
    holds = HOLDS[current]
    writes: list[Write] = []
    if holds.slice:
        writes.append(PublishSlices())
    if holds.drained and not facts.drained:
        writes.append(SetDrained(drained=True))
    writes += _replicas(holds.replicas, facts)
    writes += resumes(current, facts, state)
    if holds.drained is False and facts.drained and facts.may_undrain:
        writes.append(SetDrained(drained=False))
    if not holds.slice and facts.slices:
        writes.append(RemoveSlices())
    sleeps = current is State.PROXY and facts.at_zero
    if sleeps and facts.target is not None and facts.target.uid != state.handover.owned_uid:
        writes.append(OwnReplicas())
    # Last: no connection waits for them.
    return (*writes, *workers(current, facts, state))


def workers(current: State | None, facts: Facts, state: ServiceState) -> tuple[Write, ...]:
    """Return what is due for the workloads beside the target, unless it failed a moment ago."""
    due = _due_workers(current, facts, state)
    return tuple(one for one in due if facts.now >= _tries(one, state).next_at)


def _tries(due: ParkWorkers | WakeWorkers, state: ServiceState) -> Tries:
    return state.workers.parks if isinstance(due, ParkWorkers) else state.workers.wakes


def _due_workers(
    current: State | None, facts: Facts, state: ServiceState
) -> tuple[ParkWorkers | WakeWorkers, ...]:
    """They sleep while the target does, and wake once it is up.

    In a sleep each is parked once. One that another writer scales up is left alone.
    """
    owed = state.workers.owed
    awake = current not in (State.PARKING, State.PROXY) and not facts.at_zero
    wanted = tuple(one.target for one in owed if awake or one.target not in facts.workers)
    writes: tuple[ParkWorkers | WakeWorkers, ...] = (WakeWorkers(wanted),) if wanted else ()
    # Traffic that came with the park wakes it in the next step.
    if current is State.PROXY and facts.at_zero and not state.requests.wake:
        done = {*facts.lost_workers, *(one.target for one in owed if one.asleep)}
        due = tuple(target for target in facts.workers if target not in done)
        writes += (ParkWorkers(due),) if due else ()
    return writes


def resumes(current: State, facts: Facts, state: ServiceState) -> list[Write]:
    """Return the resumes that are due: autoscalers that must work again in a state."""
    if facts.now < state.autoscaler.retry_at:
        return []
    return [ResumeAutoscaler(owed) for owed in _owed(current, facts, state)]


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
    if facts.target is None:
        return []
    # The writer that scaled it up meant that many: what it had before is for a target at zero.
    spec, status = facts.es.spec, facts.es.status
    minimum = wake_replicas(spec, status) if facts.at_zero else spec.min_target_replicas
    match wanted:
        case Replicas.ZERO if not facts.at_zero:
            return [ParkTarget()]
        case Replicas.MINIMUM if facts.at_zero and facts.waits_for:
            return []
        case Replicas.MINIMUM if facts.target.spec_replicas < minimum:
            return [Wake(minimum)]
        case _:
            return []


def _owed(current: State | None, facts: Facts, state: ServiceState) -> tuple[AutoscalerRef, ...]:
    """Return the autoscalers that must work again in a state, and may not do so yet."""
    return state.autoscaler.owed(facts.autoscaler) if current in AWAKE else ()


_SOON = 0.01
_PROBE_PAUSE = 0.1
_LONGEST_PROBE_PAUSE = 5.0
_PARTNER_PAUSE = 1.0
_SLICE_PAUSE = 1.0
_ENDING_PAUSE = 0.5
_KIND_PAUSE = 0.5
_LONGEST_KIND_PAUSE = 60.0


def requeue_after(
    facts: Facts, state: ServiceState, settings: OperatorSettings, *, now: float, lost_for: float
) -> float | None:
    """Return after how many seconds to reconcile again; None for never."""
    pauses: list[float] = []
    handover, settle = state.handover, max(settings.engage_settle, facts.path.least_settle)
    match state.current:
        case State.ENGAGING if handover.engaged_at is not None:
            left = handover.engaged_at + state.look(settle) - now
            pauses.append(left if left > 0 else _PARTNER_PAUSE)
            if (due := state.ask_due(settle)) is not None:
                pauses.append(due - now)
        case State.DRAINING:
            # The public Service's slices are not watched.
            since = handover.drained_at
            left = _SLICE_PAUSE if since is None else since + settle - now
            pauses.append(left if left > 0 else _PARTNER_PAUSE)
        case State.WAKING | State.RELEASING if handover.ready_since:
            first = min(handover.ready_since.values())
            pauses.append(max(first + settings.release_settle - now, 0.05))
        case State.WAKING if facts.waits_for or facts.waits_for_pods:
            # Pods are not watched. That a dependency serves is an event; that it is late is not.
            began = handover.waking_since or now
            late = max(began + DEPENDENCY_TIMEOUT - now, 0.0)
            pauses.append(late if facts.waits_for else _ENDING_PAUSE)
        case State.WAKING if facts.ready_soon:
            # The public Service's slices are not watched, and may be written after the private ones.
            pauses.append(_SLICE_PAUSE)
        case State.PROXY if not facts.resolvers and handover.loss_slot is not None:
            pauses.append(handover.loss_slot - now)
        case State.PROXY if (
            not facts.resolvers and settings.on_resolver_loss is not OnResolverLoss.WAIT
        ):
            # The grace may have ended since it was observed: then it is time to reserve a slot.
            pauses.append(settings.resolver_loss_grace - lost_for)
    if state.current is not None and HOLDS[state.current].slice and state.listing.probe_failures:
        failures = state.listing.probe_failures
        pauses.append(_exponential(_PROBE_PAUSE, failures, _LONGEST_PROBE_PAUSE))
    if state.current is State.WAKING and handover.held_due is not None:
        pauses.append(handover.held_due - now)
    if handover.kind_failures:
        # No watch tells when a kind is installed, or allowed.
        pauses.append(_exponential(_KIND_PAUSE, handover.kind_failures, _LONGEST_KIND_PAUSE))
    pauses += (at - now for at in _retries(facts, state))
    return max(min(pauses), _SOON) if pauses else None


def _retries(facts: Facts, state: ServiceState) -> Iterator[float]:
    """Yield when to try again what failed and is still due."""
    if state.autoscaler.failures and _owed(state.current, facts, state):
        yield state.autoscaler.retry_at
    for due in _due_workers(state.current, facts, state):
        if (tries := _tries(due, state)).failed:
            yield tries.next_at


def _exponential(first: float, failures: int, longest: float) -> float:
    return min(first * 2.0 ** min(failures - 1, 10), longest)
