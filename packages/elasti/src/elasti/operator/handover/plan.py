"""From a state and the facts to the writes that bring it about, and when to reconcile again.

Pure. The order of the writes is the order in which they are made, and it is the protocol: what
takes traffic is there before what took it goes. A crash between any two leaves something that
`derive` finds and the same plan completes.

Time enters a hand-over only in `requeue_after`: the settles, unanswered probes, a resolver that
is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from elasti.operator.handover.children import adopted, private_differs, private_service
from elasti.operator.handover.machine import HOLDS, Replicas, State
from elasti.operator.handover.state import AWAKE, ServiceState
from elasti.operator.settings import OnResolverLoss, OperatorSettings

if TYPE_CHECKING:
    from elasti.api.types import ElastiServiceSpec, ElastiServiceStatus
    from elasti.operator.autoscalers.base import AutoscalerRef
    from elasti.operator.handover.observe import Facts
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
    """Ask for at least so many replicas."""

    minimum: int


class ParkTarget(NamedTuple):
    """Ask for no replicas, unless another writer changed the target."""


class ResumeAutoscaler(NamedTuple):
    """Take back a pause that we may have left."""

    autoscaler: AutoscalerRef


Write: TypeAlias = (
    PutPrivate | PublishSlices | RemoveSlices | SetDrained | Wake | ParkTarget | ResumeAutoscaler
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
    if facts.now >= state.autoscaler.retry_at:
        writes += [ResumeAutoscaler(owed) for owed in _owed(current, facts, state)]
    if holds.drained is False and facts.drained and facts.may_undrain:
        writes.append(SetDrained(drained=False))
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
    if facts.target is None:
        return []
    # The writer that scaled it up meant that many: what it had before is for a target at zero.
    spec, status = facts.es.spec, facts.es.status
    minimum = wake_replicas(spec, status) if facts.at_zero else spec.min_target_replicas
    match wanted:
        case Replicas.ZERO if not facts.at_zero:
            return [ParkTarget()]
        case Replicas.MINIMUM if facts.target.spec_replicas < minimum:
            return [Wake(minimum)]
        case _:
            return []


def wake_replicas(spec: ElastiServiceSpec, status: ElastiServiceStatus) -> int:
    """Return what a target that sleeps is scaled up to."""
    # An autoscaler knows better than a number from before the sleep.
    previous = spec.wake.replicas == "Previous" and spec.autoscaler is None
    return max(spec.min_target_replicas, status.previous_replicas if previous else 0)


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
    handover = state.handover
    match state.current:
        case State.ENGAGING if handover.engaged_at is not None:
            settle = settings.engage_settle
            left = handover.engaged_at + state.look(settle) - now
            pauses.append(left if left > 0 else _PARTNER_PAUSE)
            if (due := state.ask_due(settle)) is not None:
                pauses.append(due - now)
        case State.DRAINING:
            # The public Service's slices are not watched.
            since = handover.drained_at
            left = _SLICE_PAUSE if since is None else since + settings.engage_settle - now
            pauses.append(left if left > 0 else _PARTNER_PAUSE)
        case State.WAKING | State.RELEASING if handover.ready_since:
            first = min(handover.ready_since.values())
            pauses.append(max(first + settings.release_settle - now, 0.05))
        case State.WAKING if facts.waits_for_pods:
            # Pods are not watched.
            pauses.append(_ENDING_PAUSE)
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
    if handover.kind_failures:
        # No watch tells when a kind is installed, or allowed.
        pauses.append(_exponential(_KIND_PAUSE, handover.kind_failures, _LONGEST_KIND_PAUSE))
    if state.autoscaler.failures and _owed(state.current, facts, state):
        pauses.append(state.autoscaler.retry_at - now)
    return max(min(pauses), _SOON) if pauses else None


def _exponential(first: float, failures: int, longest: float) -> float:
    return min(first * 2.0 ** min(failures - 1, 10), longest)
