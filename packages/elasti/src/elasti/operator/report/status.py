"""What people are told: events when something happens, conditions for what holds.

Status is written only where it differs, `lastReconciledTime` with it, so that an ElastiService at
rest costs no write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from elasti.api.conditions import (
    MAY_SLEEP,
    READY,
    RESOLVER_AVAILABLE,
    SCALE_CONTESTED,
    SERVICE_FOUND,
    TARGET_FOUND,
    TRIGGERS_HEALTHY,
    Reason,
)
from elasti.api.names import API_VERSION, KIND
from elasti.api.types import ElastiServiceStatus, ResolverPort
from elasti.operator.handover.children import uncovered
from elasti.operator.handover.machine import HOLDS, State
from elasti.operator.idleness.decide import obstacle_of
from elasti.operator.report import conditions
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from elasti.api.conditions import Obstacle
    from elasti.api.types import ElastiService, StatusCondition
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.idleness.decide import Evidence
    from kubeloop.controller.events.recorder import EventRecorder
    from kubeloop.objects.core import Service

GVK = GroupVersionKind.of(API_VERSION, KIND)
_UNREAD = frozenset({Reason.NOT_READ_YET, Reason.TRIGGERS_UNREAD})
_WITHOUT_OBSTACLE: dict[State | None, str] = {
    State.PROXY: Reason.ASLEEP,
    State.ENGAGING: Reason.FALLING_ASLEEP,
    State.PARKING: Reason.FALLING_ASLEEP,
}

_log = structlog.get_logger(__name__)


class EventReporter:
    """Records events about ElastiServices."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def moved(self, es: ElastiService, state: State, why: str) -> None:
        """The hand-over went on."""
        self._normal(es, state.value, f"{state.value}: {why}")

    def parked(self, es: ElastiService) -> None:
        """The target sleeps."""
        self._normal(es, "SuccessToScale", f"{_target(es)} was scaled to zero")

    def woken(self, es: ElastiService, replicas: int) -> None:
        """The target was asked to wake."""
        self._normal(es, "SuccessToScale", f"{_target(es)} was scaled to {replicas}")

    def not_parked(self, es: ElastiService, why: str) -> None:
        """The target could not be put to sleep."""
        self._warning(es, "FailedToScale", f"{_target(es)} was not scaled to zero: {why}")

    def sleep_refused(self, es: ElastiService, why: str) -> None:
        """A person's request to put the target to sleep could not be met."""
        self._warning(es, "SleepRefused", f"{_target(es)} was not put to sleep as asked: {why}")

    def not_woken(self, es: ElastiService, why: str) -> None:
        """The target could not be woken."""
        self._warning(es, "FailedToScale", f"{_target(es)} could not be scaled up: {why}")

    def keda_failed(self, es: ElastiService, why: str) -> None:
        """KEDA could not be told to work again."""
        self._warning(es, "FailedToResumeKEDA", f"the ScaledObject could not be resumed: {why}")

    def contested(self, es: ElastiService, by: str) -> None:
        """Somebody undoes what we do."""
        self._warning(es, "ScaleContested", _contested(es, by))

    def finding(self, es: ElastiService, finding: conditions.Finding) -> None:
        """Something is wrong with what the user asked for."""
        self._warning(es, finding.reason, finding.message)

    def no_resolver(self, es: ElastiService, message: str) -> None:
        """Nobody holds the traffic of a sleeping target."""
        self._warning(es, "NoResolver", message)

    def _normal(self, es: ElastiService, reason: str, message: str) -> None:
        _log.info(message, namespace=es.metadata.namespace, elastiservice=es.metadata.name)
        self._recorder.normal(es, reason, message, gvk=GVK)

    def _warning(self, es: ElastiService, reason: str, message: str) -> None:
        _log.warning(message, namespace=es.metadata.namespace, elastiservice=es.metadata.name)
        self._recorder.warning(es, reason, message, gvk=GVK)


def status_of(
    facts: Facts, memory: ServiceState, evidence: Sequence[Evidence], now: dt.datetime
) -> ElastiServiceStatus:
    """Return the status that an ElastiService should have."""
    es, state = facts.es, memory.state
    return ElastiServiceStatus(
        mode=HOLDS[state].mode if state else "",  # type: ignore[arg-type]  # the table has only these words
        last_reconciled_time=es.status.last_reconciled_time,
        last_scaled_up_time=es.status.last_scaled_up_time,
        observed_generation=es.metadata.generation,
        state=state.value if state else "",
        replicas=facts.target.spec_replicas if facts.target else 0,
        resolver_ports=port_statuses(facts.service, facts.ports) or es.status.resolver_ports,
        conditions=conditions.merged(
            es.status.conditions, _conditions(facts, memory, evidence), now=format_time(now)
        ),
    )


def port_statuses(service: Service | None, ports: Mapping[int, int]) -> tuple[ResolverPort, ...]:
    """Return the resolver's ports as status shows them."""
    return tuple(
        ResolverPort(port=port.port, resolver_port=ports[port.port], name=port.name)
        for port in (service.tcp_ports if service else ())
        if port.port in ports
    )


def status_patch(
    old: ElastiServiceStatus, new: ElastiServiceStatus, now: dt.datetime
) -> dict[str, Any] | None:
    """Return the merge patch from one status to another; None where nothing differs.

    `lastScaledUpTime` is left out: any replica writes it, each when it wakes.
    """
    if old == new:
        return None
    fields: dict[str, Any] = {
        "mode": new.mode,
        "observedGeneration": new.observed_generation,
        "state": new.state,
        "replicas": new.replicas,
        "resolverPorts": msgspec.to_builtins(new.resolver_ports),
        "conditions": msgspec.to_builtins(new.conditions),
        "lastReconciledTime": format_time(now),
    }
    return {"status": fields}


def _conditions(
    facts: Facts, memory: ServiceState, evidence: Sequence[Evidence]
) -> list[StatusCondition]:
    generation = facts.es.metadata.generation
    known = {} if _all_read(evidence) else _left_by_former_leader(facts.es, memory)
    entries = [
        _ready(facts),
        _target_found(facts),
        _service_found(facts),
        _resolver_available(facts),
        _triggers_healthy(facts, evidence),
        _scale_contested(facts, memory),
        _may_sleep(facts, memory),
    ]
    return [
        known[entry.type]
        if entry.reason in _UNREAD and entry.type in known
        else msgspec.structs.replace(entry, observed_generation=generation)
        for entry in entries
    ]


def _all_read(evidence: Sequence[Evidence]) -> bool:
    return bool(evidence) and all(item.last is not None for item in evidence)


def _left_by_former_leader(es: ElastiService, memory: ServiceState) -> dict[str, StatusCondition]:
    """Return what status says of the same object in the same state.

    A new leader knows nothing of the triggers for a moment; to write that into every status, and a
    second later what was there before, would be two writes for each ElastiService at every start.
    """
    state, generation = memory.state.value if memory.state else "", es.metadata.generation
    if es.status.state != state:
        return {}
    return {old.type: old for old in es.status.conditions if old.observed_generation == generation}


def absences(facts: Facts) -> list[conditions.Finding]:
    """Return what everything else stands on and is not there."""
    found = []
    if facts.target is None:
        found.append(conditions.Finding(Reason.TARGET_MISSING, facts.target_problem))
    if facts.service is None:
        found.append(conditions.Finding(Reason.SERVICE_MISSING, _no_service(facts)))
    return found


def _ready(facts: Facts) -> StatusCondition:
    # What is wrong with the spec may be why the rest cannot be found.
    invalid = [finding for finding in facts.findings if finding.reason == Reason.INVALID_SPEC]
    if (refused := conditions.refusal((*invalid, *absences(facts), *facts.findings))) is not None:
        return conditions.condition(
            READY, holds=False, reason=refused.reason, message=refused.message
        )
    warnings = " ".join(f"{finding.message}." for finding in facts.findings)
    return conditions.condition(READY, holds=True, reason=Reason.IN_ORDER, message=warnings)


def _target_found(facts: Facts) -> StatusCondition:
    found = facts.target is not None
    return conditions.condition(
        TARGET_FOUND,
        holds=found,
        reason=Reason.FOUND if found else Reason.NOT_FOUND,
        message=facts.target_problem,
    )


def _service_found(facts: Facts) -> StatusCondition:
    found = facts.service is not None
    return conditions.condition(
        SERVICE_FOUND,
        holds=found,
        reason=Reason.FOUND if found else Reason.NOT_FOUND,
        message="" if found else _no_service(facts),
    )


def _resolver_available(facts: Facts) -> StatusCondition:
    found = bool(facts.resolvers)
    message = (
        "no resolver is ready, so nothing is put to sleep, and sleeping targets are not reachable;"
        " look at the pods of the resolver's Deployment"
    )
    return conditions.condition(
        RESOLVER_AVAILABLE,
        holds=found,
        reason=Reason.AVAILABLE if found else Reason.NONE_READY,
        message="" if found else message,
    )


def _triggers_healthy(facts: Facts, evidence: Sequence[Evidence]) -> StatusCondition:
    if not facts.es.spec.triggers:
        return conditions.condition(
            TRIGGERS_HEALTHY,
            holds=False,
            reason=Reason.NO_TRIGGERS,
            message="spec.triggers is empty, so nothing can show that the target is idle",
        )
    if not _all_read(evidence):
        return conditions.condition(TRIGGERS_HEALTHY, holds=None, reason=Reason.NOT_READ_YET)
    broken = [
        f"triggers[{index}]: {item.last.error or 'its value is NaN'}"
        for index, item in enumerate(evidence)
        if item.last is not None and not item.last.usable
    ]
    return conditions.condition(
        TRIGGERS_HEALTHY,
        holds=not broken,
        reason=Reason.FAILING if broken else Reason.HEALTHY,
        message="; ".join(broken),
    )


def _scale_contested(facts: Facts, memory: ServiceState) -> StatusCondition:
    contested = memory.contest.is_contested
    return conditions.condition(
        SCALE_CONTESTED,
        holds=contested,
        reason=Reason.UNDONE_REPEATEDLY if contested else Reason.NOT_CONTESTED,
        message=_contested(facts.es, memory.contest.by) if contested else "",
    )


def _may_sleep(facts: Facts, memory: ServiceState) -> StatusCondition:
    found = obstacle(facts, memory)
    reason = found.reason if found else _WITHOUT_OBSTACLE.get(memory.state, Reason.IDLE)
    return conditions.condition(
        MAY_SLEEP,
        holds=found is None if memory.state else None,
        reason=reason,
        message=found.message if found else "",
    )


def obstacle(facts: Facts, memory: ServiceState) -> Obstacle | None:
    """Return what keeps a target awake."""
    missing = uncovered(facts.service, facts.resolvers) if facts.service else ()
    return obstacle_of(
        memory.state, facts.decision, resolvers=bool(facts.resolvers), uncovered=missing
    )


def _no_service(facts: Facts) -> str:
    return f"there is no Service {facts.es.spec.service} in namespace {facts.namespace}"


def _contested(es: ElastiService, by: str) -> str:
    return (
        f"{by or 'another writer'} keeps scaling {_target(es)} up after it was put to sleep; let only"
        " one of them own its replicas, or name the autoscaler in spec.autoscaler"
    )


def _target(es: ElastiService) -> str:
    ref = es.spec.scale_target_ref
    return f"{ref.kind} {ref.name}"
