"""Reports of a reconcile: the ElastiService's status, events, and the ends of requests."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.conditions import Obstacle, Reason, TransitionReason
from elasti.api.states import State
from elasti.operator.idleness.decide import obstacle
from elasti.operator.model.state import Activity, is_in_force
from elasti.operator.report.status import may_wait, status_of, status_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.api.types import ElastiServiceStatus
    from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
    from elasti.operator.handover.ports import PortBook
    from elasti.operator.handover.quarantine import PortQuarantine
    from elasti.operator.idleness.decide import Evidence
    from elasti.operator.idleness.decisions import Decisions
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.model.facts import Facts
    from elasti.operator.model.requests import SleepRequest
    from elasti.operator.model.state import ServiceState
    from elasti.operator.report.events import EventReporter
    from elasti.operator.report.notifications import Notifier
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.waking.waker import Waker
    from kubeloop.controller.reconcile import Request

_MIN_LIFETIME = 120.0
"""A request is valid for a cooldown, and for at least this many seconds: a hand-over takes its time."""
_METRICS_LAG = 60.0
"""Seconds by which triggers may lag: what they show until then may be the use of before the sleep."""


@dataclasses.dataclass(eq=False, kw_only=True)
class StatusReport:
    """Reports. One for the leader; `read_soon` asks for a reading of triggers that were never read."""

    writer: ElastiServiceWriter
    ports: PortBook
    quarantine: PortQuarantine
    decisions: Decisions
    read_soon: Callable[[Request], None]
    waker: Waker
    settings: OperatorSettings
    metrics: OperatorMetrics
    reporter: EventReporter
    notifier: Notifier | None  #: None without a URL

    async def report(self, facts: Facts, state: ServiceState) -> float | None:
        """Clear what was asked for and is done, and write what holds now, or say in how many seconds."""
        await self.writer.clear_ended(facts.es, state)
        evidence = self.decisions.evidence(facts.request)
        if facts.es.spec.triggers and not evidence:
            self.read_soon(facts.request)
        self._end_sleep_request(facts, state, evidence)
        state.conflict.calm(self.decisions.clock.now().timestamp())
        now = self.decisions.clock.now()
        self.reporter.findings(facts, state)
        sleeps_at = self.decisions.sleeps_at(facts.request)
        new = status_of(facts, state, evidence, now, sleeps_at=sleeps_at)
        fields = status_patch(facts.es.status, new, now)
        longest = may_wait(facts, state, new, self.settings) if fields is not None else 0.0
        due = state.handover.withhold(asyncio.get_running_loop().time(), longest)
        if fields is not None and not due:
            await self.quarantine.note_freed(self.ports)
            await self.writer.patch_status(facts.es, state, fields)
            state.requests.note_reported()
            if (suspended := _is_suspended(new)) != _is_suspended(facts.es.status):
                self.reporter.suspended(facts.es, suspended=suspended)
        if not due:
            self.waker.reported(facts.es, state, new)
            if self.notifier is not None:
                self.notifier.look(facts.es, new, state)
        self.metrics.sleeps_at(facts.request, sleeps_at if new.sleeps_at else None)
        self.metrics.released(facts.request, new)
        state.handover.note_judged(self.decisions.judge(facts.request, facts.decision))
        await self.writer.clear_sleep_request(facts.es, state)
        return due or None

    def _end_sleep_request(
        self, facts: Facts, state: ServiceState, evidence: Sequence[Evidence]
    ) -> None:
        """End a request to sleep that is done or cannot be done."""
        now, cooldown = self.decisions.clock.now().timestamp(), facts.es.spec.cooldown
        end = sleep_end(facts, state, evidence, now=now, cooldown=cooldown)
        if end is None:
            return
        state.requests.end_sleep(end.refusal)
        if end.refusal is not None:
            self.reporter.sleep_refused(facts.es, end.refusal.message)


def _is_suspended(status: ElastiServiceStatus) -> bool:
    return any(condition.reason == Reason.SUSPENDED for condition in status.conditions)


class SleepEnd(NamedTuple):
    """The end of a request to sleep; `refusal` is None if the target fell asleep."""

    refusal: Obstacle | None = None


def sleep_end(
    facts: Facts, state: ServiceState, evidence: Sequence[Evidence], *, now: float, cooldown: float
) -> SleepEnd | None:
    """Return how a request to sleep ends; None while it is in force, or without a request."""
    request = state.requests.sleep
    if request is None:
        return None
    expired = now - request.since >= max(cooldown, _MIN_LIFETIME)
    if request.asleep_at is not None:
        # A trigger may show the use of before for a while, or not show it yet.
        calm_from = request.asleep_at + _METRICS_LAG
        calm = len(evidence) == len(facts.es.spec.triggers) and all(
            item.is_quiet_after(calm_from) for item in evidence
        )
        return SleepEnd() if expired or calm or not is_in_force(state) else None
    refusal = _refusal(facts, state, request)
    if refusal is None and expired:
        refusal = Obstacle(Reason.EXPIRED, "the target could not be put to sleep in time")
    return SleepEnd(refusal) if refusal is not None else None


def _refusal(facts: Facts, state: ServiceState, request: SleepRequest) -> Obstacle | None:
    if request.superseded:
        return Obstacle(Reason.SUPERSEDED, "a wake-up was requested meanwhile")
    if state.requests.last_attempt >= request.since:
        return state.requests.attempt_ended
    if state.current is State.WAKING:
        held = Obstacle(TransitionReason.TRAFFIC_ARRIVED, "connections are waiting for it")
        return held if state.handover.activity is Activity.BUSY else None
    return obstacle(facts, state)
