"""From a snapshot and what is remembered to `Facts`, and to what the state machine sees. Pure.

This module reports what is missing and others provide it: resolver ports (`lacks_ports`) and, if no
resolver has been ready for too long, a turn to be woken (`Facts.lacks_loss_slot`). `observer` makes
them, and observes again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from elasti.api.states import State
from elasti.operator.handover.machine import Observation
from elasti.operator.model.children import uncovered
from elasti.operator.model.facts import ClusterSnapshot, Facts, Judgement, Verdict
from elasti.operator.model.findings import refusal, service_findings
from elasti.operator.model.state import Activity, ServiceState
from elasti.operator.settings import OnResolverLoss, OperatorSettings
from kubeloop.objects.core import Service, ServiceEndpoint


def observe(
    snapshot: ClusterSnapshot, state: ServiceState, settings: OperatorSettings, judgement: Judgement
) -> Facts:
    """Return what follows from a snapshot."""
    read = {
        field.name: getattr(snapshot, field.name) for field in dataclasses.fields(ClusterSnapshot)
    }
    # A target that sleeps and whose traffic no resolver holds is woken, each at its own time.
    lost = snapshot.resolvers_lost_for
    unheld = (
        state.current is State.PROXY
        and settings.on_resolver_loss is not OnResolverLoss.WAIT
        and lost > 0.0
        and lost >= settings.resolver_loss_grace
    )
    slot = state.handover.loss_slot
    return Facts(
        **read,
        **judgement._asdict(),
        lost_wake=unheld and slot is not None and snapshot.now >= slot,
        lacks_loss_slot=unheld and slot is None,
        may_undrain=_may_undrain(snapshot, state, settings.release_settle),
    )


def _may_undrain(snapshot: ClusterSnapshot, state: ServiceState, settle: float) -> bool:
    """Whether pods may be selected again: not while one of them may be stopping.

    The EndpointSlice controller notices that later, and would list it as ready.
    """
    if not snapshot.pods_left:
        return True
    match state.current:
        case State.SERVE | State.ENGAGING | State.DRAINING | State.RELEASING:
            return not snapshot.at_zero
        case State.WAKING if not snapshot.at_zero:
            return not snapshot.slices or state.handover.settled_ready(snapshot.now, settle)
    return False


def can_have_ports(service: Service | None) -> bool:
    """Whether resolver ports can stand for a Service's at all."""
    return service is not None and refusal(service_findings(service)) is None


def lacks_ports(snapshot: ClusterSnapshot) -> bool:
    """Whether resolver ports have to be assigned, or freed."""
    if snapshot.service is None or not can_have_ports(snapshot.service):
        return False
    wanted = {port.port for port in snapshot.service.tcp_ports}
    reported = {port.port for port in snapshot.es.status.resolver_ports}
    return snapshot.ports.keys() != wanted or not reported <= wanted


def partners_settled(
    state: ServiceState | None, partners: Iterable[ServiceState | None], now: float, settle: float
) -> bool:
    """Whether every other ElastiService on a target is ready for the next step to the park, or past it."""
    drained = state is None or state.current is not State.ENGAGING or not state.handover.drains
    return all(
        partner is not None
        and partner.may_park(now, max(settle, partner.handover.least_settle), drained=drained)
        for partner in partners
    )


def observation_of(facts: Facts, state: ServiceState, settings: OperatorSettings) -> Observation:
    """Return what the state machine sees."""
    handover, settle = state.handover, max(settings.engage_settle, facts.path.least_settle)
    mode = facts.es.spec.sleep.mode
    holding = state.current in (State.ENGAGING, State.DRAINING, State.PARKING, State.WAKING)
    calm = facts.decision.verdict is Verdict.SLEEP
    nearly = calm or facts.decision.verdict is Verdict.LOOK
    ready = {endpoint.place for endpoint in facts.resolvers}
    standing = [endpoint for endpoint in state.listing.listed if endpoint.place in ready]
    settled = [one for one in standing if state.listing.long_listed(one, facts.now, settle)]
    settled_all = calm and facts.partners_settled and _covers(facts.service, settled)
    # A slice may still list pods that the park stops as ready.
    serving = (facts.ready or frozenset()) - handover.stopping
    long_ready = not facts.drained and (
        facts.leads_elsewhere or handover.settled_ready(facts.now, settings.release_settle)
    )
    return Observation(
        at_zero=facts.at_zero,
        ready=long_ready or (not facts.drained and bool(serving)),
        ready_settled=long_ready,
        slice=bool(facts.slices),
        engage_settled=state.settled_engaging(facts.now, settle) and settled_all,
        resolver=_covers(facts.service, standing if holding else facts.resolvers),
        may_sleep=nearly and not handover.refused and (mode == "Zero" or state.doze.zero_due),
        wake_wanted=state.requests.wake
        or handover.refused
        or facts.lost_wake
        or facts.decision.verdict is Verdict.WAKE,
        unused=calm
        and facts.partners_settled
        and handover.activity is Activity.QUIET
        and mode != "Doze",
        activity=handover.activity,
        park=handover.park,
        drain=handover.drains,
        drain_settled=state.settled_draining(facts.now, settle) and settled_all,
    )


def _covers(service: Service | None, resolvers: Sequence[ServiceEndpoint]) -> bool:
    """Whether these take all of a Service's traffic: in every address family that it has."""
    return bool(resolvers) and (service is None or not uncovered(service, resolvers))
