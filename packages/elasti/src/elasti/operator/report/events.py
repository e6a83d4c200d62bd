"""Events about ElastiServices: what happened, for people. Each is a line of the log, under its reason."""

from __future__ import annotations

from typing import Any

from elasti.api.conditions import TransitionReason, WakeCause
from elasti.api.names import API_VERSION, KIND
from elasti.api.states import State
from elasti.api.types import ElastiService
from elasti.logger import get_logger
from elasti.operator.model.facts import Facts
from elasti.operator.model.findings import Finding
from elasti.operator.model.state import ServiceState
from elasti.operator.report.audit import AuditAction, audit
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.objects.core import Service
from kubeloop.objects.gvk import GroupVersionKind

GVK = GroupVersionKind.of(API_VERSION, KIND)
_SERVICE = GroupVersionKind.of("v1", "Service")

_log = get_logger(__name__)


class EventReporter:
    """Records events about ElastiServices."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def moved(
        self, es: ElastiService, before: State, state: State, reason: TransitionReason, why: str
    ) -> None:
        """The hand-over changed its state; an Event unless another one reports it."""
        keys = _keys(es) | {"state": state.value, "reason": reason.value, "message": why}
        _log.info("state changed", **keys)
        if is_surprise(before, state, reason):
            self._recorder.normal(es, state.value, f"{state.value}: {why}", gvk=GVK)

    def parked(self, es: ElastiService, why: str, cause: WakeCause) -> None:
        """The target was put to sleep."""
        audit(AuditAction.SLEEP, es, cause=cause)
        self._normal(es, "SuccessToScale", f"{_target(es)} was scaled to zero: {why}")

    def woken(
        self,
        es: ElastiService,
        replicas: int,
        why: str,
        cause: WakeCause | None,
        client: str,
        *,
        wake_id: str = "",
    ) -> None:
        """The target was woken."""
        audit(AuditAction.WAKE, es, cause=cause or "", actor=client, wake_id=wake_id)
        self._normal(es, "SuccessToScale", f"{_target(es)} was scaled to {replicas}: {why}")

    def dozes(self, es: ElastiService, pods: int, why: str) -> None:
        """The requests of the target's pods were shrunk; the pods serve."""
        self._normal(es, "DozeStarted", f"{_target(es)} is dozing (pods: {pods}): {why}")

    def grows(self, es: ElastiService, why: str) -> None:
        """The requests of the target's pods are being restored."""
        self._normal(es, "DozeEnded", f"{_target(es)} is getting its requests back: {why}")

    def evicted(self, es: ElastiService, pod: str) -> None:
        """A stuck pod was evicted, since another one is ready."""
        self._normal(
            es, "StuckPodEvicted", f"pod {pod} was evicted: its node has no room for its requests"
        )

    def not_parked(self, es: ElastiService, why: str) -> None:
        """The target could not be put to sleep."""
        self.warning(es, "FailedToScale", f"{_target(es)} was not scaled to zero: {why}")

    def sleep_refused(self, es: ElastiService, why: str) -> None:
        """A person's request to put the target to sleep was refused."""
        self.warning(es, "SleepRefused", f"{_target(es)} was not put to sleep as asked: {why}")

    def not_woken(self, es: ElastiService, why: str) -> None:
        """The target could not be woken."""
        self.warning(es, "FailedToScale", f"{_target(es)} could not be scaled up: {why}")

    def contested(self, es: ElastiService, by: str) -> None:
        """Another writer keeps scaling the target up."""
        audit(AuditAction.CONTEST, es, cause="ScaleContested", actor=by)
        self.warning(es, "ScaleContested", contested_text(es, by))

    def port_contested(self, es: ElastiService, message: str) -> None:
        """Status names a resolver port of another ElastiService."""
        audit(AuditAction.CONTEST, es, cause="PortContested")
        self.warning(es, "PortContested", message)

    def suspended(self, es: ElastiService, *, suspended: bool) -> None:
        """A person suspended the ElastiService, or resumed it."""
        action = AuditAction.SUSPEND if suspended else AuditAction.RESUME
        audit(action, es, cause=WakeCause.MANUAL)
        word = "is left alone" if suspended else "sleeps and wakes again"
        self._normal(
            es,
            "Suspended" if suspended else "Resumed",
            f"{_target(es)} {word}: spec.suspend changed",
        )

    def findings(self, facts: Facts, state: ServiceState) -> None:
        """Something is wrong that neither the last reconcile nor status reported."""
        findings = (*facts.absences, *facts.findings)
        # The previous leader may have put into status what this one has not reported.
        shown = () if state.handover.reported else facts.es.status.warnings
        for finding in findings:
            if finding not in state.handover.reported and finding.reason not in shown:
                self.warning(facts.es, finding.reason, finding.message)
        state.handover.note_reported(frozenset(findings))

    def deletion_waits(self, facts: Facts, state: ServiceState, message: str) -> None:
        """A deletion waits until the target is awake; the message says how to delete at once."""
        wait = Finding(reason="DeletionWaits", message=f"the deletion waits until {message}")
        if facts.es.metadata.deletion_timestamp and wait not in state.handover.reported:
            state.handover.note_reported(state.handover.reported | {wait})
            self._normal(facts.es, "DeletionWaits", wait.message)

    def warning(self, es: ElastiService, reason: str, message: str) -> None:
        """Something is wrong; the caller gives the message and the remedy."""
        _log.warning(str(reason), message=message, **_keys(es))
        self._recorder.warning(es, reason, message, gvk=GVK)

    def enrolment(self, service: Service, reason: str, message: str, *, warn: bool = False) -> None:
        """A Service was enrolled, was not, or no longer is."""
        _log.info(reason, message=message, **_keys(service))
        record = self._recorder.warning if warn else self._recorder.normal
        record(service, reason, message, gvk=_SERVICE)

    def _normal(self, es: ElastiService, reason: str, message: str) -> None:
        _log.info(reason, message=message, **_keys(es))
        self._recorder.normal(es, reason, message, gvk=GVK)


def is_surprise(before: State, state: State, reason: TransitionReason) -> bool:
    """Whether this transition is unusual enough for an Event.

    The recorder drops the events of an object that has too many: 25 at once, then one in five minutes. Each
    cycle has two, SuccessToScale down and up; what another writer does, and an attempt to sleep that
    ends early, are events of their own.
    """
    match before, state:
        case State.PARKING, State.PROXY:
            return False
        case State.PROXY, State.WAKING:
            return reason is TransitionReason.SCALED_UP
        case State.ENGAGING | State.PARKING, State.RELEASING:
            return True
    return state in (State.PROXY, State.WAKING)


def _keys(es: ElastiService | Service) -> dict[str, Any]:
    return {"namespace": es.metadata.namespace, "name": es.metadata.name}


def contested_text(es: ElastiService, by: str) -> str:
    """Return the message if another writer keeps undoing parks."""
    return (
        f"{by or 'another writer'} keeps scaling {_target(es)} up after it was put to sleep; let only"
        " one of them own its replicas, or name the autoscaler in spec.autoscaler"
    )


def _target(es: ElastiService) -> str:
    ref = es.spec.scale_target_ref
    return f"{ref.kind} {ref.name}"
