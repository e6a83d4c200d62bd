"""Events about ElastiServices: what happened, for people. Each is a line of the log, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from elasti.api.names import API_VERSION, KIND
from elasti.operator.handover.machine import State
from kubeloop.objects.gvk import GroupVersionKind

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from kubeloop.controller.events.recorder import EventRecorder

GVK = GroupVersionKind.of(API_VERSION, KIND)

_log = structlog.get_logger(__name__)


class EventReporter:
    """Records events about ElastiServices."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def moved(self, es: ElastiService, before: State, state: State, why: str) -> None:
        """The hand-over went on; an event where nothing else tells of it."""
        message = f"{state.value}: {why}"
        if is_surprise(before, state, why):
            self._normal(es, state.value, message)
        else:
            _log.info("state changed", **_keys(es, state.value, message))

    def parked(self, es: ElastiService, why: str) -> None:
        """The target sleeps."""
        self._normal(es, "SuccessToScale", f"{_target(es)} was scaled to zero: {why}")

    def woken(self, es: ElastiService, replicas: int, why: str) -> None:
        """The target was asked to wake."""
        self._normal(es, "SuccessToScale", f"{_target(es)} was scaled to {replicas}: {why}")

    def not_parked(self, es: ElastiService, why: str) -> None:
        """The target could not be put to sleep."""
        self.warning(es, "FailedToScale", f"{_target(es)} was not scaled to zero: {why}")

    def sleep_refused(self, es: ElastiService, why: str) -> None:
        """A person's request to put the target to sleep could not be met."""
        self.warning(es, "SleepRefused", f"{_target(es)} was not put to sleep as asked: {why}")

    def not_woken(self, es: ElastiService, why: str) -> None:
        """The target could not be woken."""
        self.warning(es, "FailedToScale", f"{_target(es)} could not be scaled up: {why}")

    def contested(self, es: ElastiService, by: str) -> None:
        """Another writer undoes what we do."""
        self.warning(es, "ScaleContested", contested_text(es, by))

    def warning(self, es: ElastiService, reason: str, message: str) -> None:
        """Something is wrong; the caller says what, and what to do about it."""
        _log.warning("event", **_keys(es, reason, message))
        self._recorder.warning(es, reason, message, gvk=GVK)

    def _normal(self, es: ElastiService, reason: str, message: str) -> None:
        _log.info("event", **_keys(es, reason, message))
        self._recorder.normal(es, reason, message, gvk=GVK)


def is_surprise(before: State, state: State, why: str) -> bool:
    """Whether a change of state is no part of a common cycle.

    The recorder drops the events of an object that has too many: 25 at once, then one in five minutes. Each
    cycle has two, SuccessToScale down and up; what another writer does, and an attempt to sleep that
    ends early, are events of their own.
    """
    match before, state:
        case State.PARKING, State.PROXY:
            return False
        case State.PROXY, State.WAKING:
            return why.startswith("scaled up")
        case State.ENGAGING | State.PARKING, State.RELEASING:
            return True
    return state in (State.PROXY, State.WAKING)


def _keys(es: ElastiService, reason: str, message: str) -> dict[str, str]:
    place = {"namespace": es.metadata.namespace, "elastiservice": es.metadata.name}
    return place | {"reason": reason, "message": message}


def contested_text(es: ElastiService, by: str) -> str:
    """Return the message where another writer keeps undoing parks."""
    return (
        f"{by or 'another writer'} keeps scaling {_target(es)} up after it was put to sleep; let only"
        " one of them own its replicas, or name the autoscaler in spec.autoscaler"
    )


def _target(es: ElastiService) -> str:
    ref = es.spec.scale_target_ref
    return f"{ref.kind} {ref.name}"
