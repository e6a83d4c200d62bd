"""From a snapshot and what is remembered to `Facts`, and to what the state machine sees. Pure.

What is lacking is said here and made elsewhere: resolver ports (`lacks_ports`) and, where no
resolver has been ready for too long, a turn to be woken (`Facts.lacks_loss_slot`). `observer` makes
them, and observes again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from elasti.operator.handover.children import is_drained, uncovered
from elasti.operator.handover.machine import Activity, Observation, State
from elasti.operator.idleness.decide import Decision, Verdict
from elasti.operator.report.conditions import Finding, refusal, service_findings
from elasti.operator.settings import OnResolverLoss, OperatorSettings
from kubeloop.controller.reconcile import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elasti.api.types import CapacityStatus, ElastiService
    from elasti.operator.autoscalers.base import AutoscalerRef
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.watch.targets import UpdateObjInfo
    from kubeloop.objects.core import EndpointSlice, Service, ServiceEndpoint


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """What was read of one ElastiService.

    `target_problem` says why there is no target; `kind_unusable`: its kind cannot be watched.
    `slices` are the ones that point at the resolver, ours or KubeElasti's, after our own writes.
    `ready` names the ready endpoints that decide, None where nothing depends on them; `ready_soon`:
    there is none, but the private Service's slices have one. While the Service is drained `ready` is about
    the private Service's, and `in_rotation` says whether its own still have one. `pods_left`: the private
    ones have an endpoint, which a pod has until it is gone. `capacity`: what a sleep releases, where it is counted. `cached_slices` and `cached_scale` are
    the versions that the caches had ("" for none); `lost_slices` we wrote, and the server has not;
    `unlabelled` no cache shows, None where the server was not asked.
    """

    es: ElastiService
    now: float
    service: Service | None = None
    private: Service | None = None
    target: UpdateObjInfo | None = None
    target_problem: str = ""
    kind_unusable: bool = False
    autoscaler: AutoscalerRef | None = None
    slices: tuple[EndpointSlice, ...] = ()
    cached_slices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cached_scale: str = ""
    lost_slices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unlabelled: tuple[EndpointSlice, ...] | None = None
    ready: frozenset[str] | None = None
    ready_soon: bool = False
    in_rotation: bool = False
    pods_left: bool = False
    capacity: CapacityStatus | None = None
    resolvers: tuple[ServiceEndpoint, ...] = ()
    resolvers_lost_for: float = 0.0
    ports: Mapping[int, int] = dataclasses.field(default_factory=dict)
    owned: bool = True
    findings: tuple[Finding, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.es.metadata.namespace

    @property
    def request(self) -> Request:
        """Its name, to be reconciled by."""
        return Request(self.es.metadata.namespace, self.es.metadata.name)

    @property
    def waits_for_pods(self) -> bool:
        """Whether a target that is to wake has to stay at zero until its pods are gone."""
        return self.at_zero and self.target is not None and self.target.recreates

    @property
    def at_zero(self) -> bool:
        """Whether the target asks for no pods."""
        return self.target is not None and self.target.at_zero

    @property
    def drained(self) -> bool:
        """Whether our key keeps the pods out of the Service's rotation."""
        return is_drained(self.service)

    @property
    def is_refused(self) -> bool:
        """Whether the target cannot sleep at all, as things are, or its user wants us out of it."""
        return self.es.spec.suspend or refusal(self.findings) is not None


UNDECIDED = Decision(Verdict.STAY, "not decided")


class Judgement(NamedTuple):
    """What every ElastiService on the same target says together.

    `partners_settled`: every other one is ready for the park.
    """

    decision: Decision = UNDECIDED
    partners_settled: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts(ClusterSnapshot):
    """Everything that is known of one ElastiService at one moment.

    `lost_wake`: no resolver for too long, and it is this one's turn; `lacks_loss_slot`: it has no turn
    yet. `may_undrain`: pods may come back into rotation.
    """

    decision: Decision = UNDECIDED
    partners_settled: bool = True
    lost_wake: bool = False
    lacks_loss_slot: bool = False
    may_undrain: bool = False


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
    """Whether pods may be selected again: not while one of them may have been told to stop.

    Who writes slices hears of that later, and would list it as ready.
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
        partner is not None and partner.may_park(now, settle, drained=drained)
        for partner in partners
    )


def observation_of(facts: Facts, state: ServiceState, settings: OperatorSettings) -> Observation:
    """Return what the state machine sees."""
    handover, settle = state.handover, settings.engage_settle
    holding = state.current in (State.ENGAGING, State.DRAINING, State.PARKING, State.WAKING)
    calm = facts.decision.verdict is Verdict.SLEEP
    nearly = calm or facts.decision.verdict is Verdict.LOOK
    ready = {endpoint.place for endpoint in facts.resolvers}
    standing = [endpoint for endpoint in state.listing.listed if endpoint.place in ready]
    settled = [one for one in standing if state.listing.long_listed(one, facts.now, settle)]
    settled_all = calm and facts.partners_settled and _covers(facts.service, settled)
    return Observation(
        at_zero=facts.at_zero,
        ready=bool(facts.ready) and not facts.drained,
        ready_settled=not facts.drained
        and handover.settled_ready(facts.now, settings.release_settle),
        slice=bool(facts.slices),
        engage_settled=state.settled_engaging(facts.now, settle) and settled_all,
        resolver=_covers(facts.service, standing if holding else facts.resolvers),
        may_sleep=nearly and not handover.refused,
        wake_wanted=state.requests.wake
        or handover.refused
        or facts.lost_wake
        or facts.decision.verdict is Verdict.WAKE,
        unused=calm and handover.activity is Activity.QUIET,
        activity=handover.activity,
        park=handover.park,
        drain=handover.drains,
        drain_settled=state.settled_draining(facts.now, settle) and settled_all,
    )


def _covers(service: Service | None, resolvers: Sequence[ServiceEndpoint]) -> bool:
    """Whether these take all of a Service's traffic: in every address family that it has."""
    return bool(resolvers) and (service is None or not uncovered(service, resolvers))
