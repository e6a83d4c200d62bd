"""Reports observed ElastiServices: their status, when it is due, and Events.

Nothing else is written. The status says nothing that may change soon: no quiet triggers, no time of the next sleep.
The next leader believes what it finds there, and would find it an hour old.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import math
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from elasti.api.conditions import TRIGGERS_HEALTHY, Reason
from elasti.api.observed import OBSERVED, Observation, cold_start, judged
from elasti.api.types import ColdStartStatus, ElastiService, ElastiServiceStatus
from elasti.operator.idleness.decide import Evidence
from elasti.operator.model.facts import Facts
from elasti.operator.model.state import ServiceState
from elasti.operator.observing.tally import unseen_use
from elasti.operator.report.events import EventReporter
from elasti.operator.report.status import status_of, status_patch
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import PODS, Pod
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.selectors import LabelSelector, SelectorError
from kubeloop.objects.times import unix_seconds

_BUDGETS = "policy/v1/poddisruptionbudgets"
_PERIOD = 3600.0
_SPREAD = 360
"""Seconds by which reports of a fleet that was created at once are spread."""


@dataclasses.dataclass(eq=False, kw_only=True)
class ObservationReport:
    """Reports. One for the leader."""

    client: Client
    patch_status: Callable[[ElastiService, ServiceState, dict[str, Any]], Awaitable[None]]
    evidence: Callable[[Request], Sequence[Evidence]]
    read_soon: Callable[[Request], None]
    reporter: EventReporter
    clock: Clock

    def __post_init__(self) -> None:
        self._pods = self.client.resource(PODS, Pod)
        self._budgets: dict[str, tuple[float, list[LabelSelector]]] = {}
        self._reading = asyncio.Lock()

    async def report(self, facts: Facts, state: ServiceState) -> float:
        """Write what was found if that is due; returns in how many seconds it is due again. Raises KubeError."""
        es, now, evidence = facts.es, self.clock.now(), self.evidence(facts.request)
        state.observing.begin(es.status.observed, now)
        asleep_already = facts.target is None or facts.at_zero
        state.observing.note_target(
            can_sleep=facts.unready is None and not asleep_already, capacity=facts.capacity
        )
        if es.spec.triggers and not evidence:
            self.read_soon(facts.request)
        if state.requests.sleep is not None:
            state.requests.end_sleep(OBSERVED)
            self.reporter.sleep_refused(es, OBSERVED.message)
        self.reporter.findings(facts, state)
        if (left := _seconds_left(es, evidence, now)) > 0:
            return left
        start, found = await self._cold_start(facts), list(hazards(facts))
        if facts.target is not None and facts.target.pod_labels:
            selectors = await self._forbidding(facts.namespace)
            if any(one.matches(facts.target.pod_labels) for one in selectors):
                found.append("DisruptionBudget")
        new = observed_status(facts, state, evidence, now, start=start, risks=found)
        if (fields := status_patch(es.status, new, now)) is not None:
            await self.patch_status(es, state, fields)
        return _period(es)

    async def _cold_start(self, facts: Facts) -> ColdStartStatus | None:
        """Return how long starts take; what status says if it cannot be found out now."""
        measured = [one.seconds for one in facts.es.status.recent if one.seconds is not None]
        if found := cold_start(measured, "Measured"):
            return found
        before = facts.es.status.observed
        known = before.cold_start_seconds if before is not None else None
        labels = facts.target.pod_labels if facts.target is not None else {}
        if not labels:
            return known
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        try:
            listed = self._pods.items(selector=selector, namespace=facts.namespace)
            return cold_start([s async for pod in listed for s in _start(pod)]) or known
        except KubeError:
            return known

    async def _forbidding(self, namespace: str) -> list[LabelSelector]:
        """Return whose disruption is forbidden in a namespace; it is listed once an hour at most."""
        now = self.clock.now().timestamp()
        async with self._reading:
            at, known = self._budgets.get(namespace, (-math.inf, []))
            if 0 <= now - at < _PERIOD:
                return known
            try:
                listed = self.client.resource(_BUDGETS).items(namespace=namespace)
                specs = [one.get("spec") or {} async for one in listed]
                known = [
                    LabelSelector.from_json(one.get("selector")) for one in specs if forbids(one)
                ]
            except (KubeError, SelectorError):
                pass  # the right may be missing; what was known an hour ago stays
            self._budgets[namespace] = (now, known)
        return known


def forbids(budget: JsonObject) -> bool:
    """Whether the spec of a PodDisruptionBudget allows no disruption, whatever the number of pods."""
    most, least = budget.get("maxUnavailable"), budget.get("minAvailable")
    return most in (0, "0", "0%") or least == "100%"


def observed_status(
    facts: Facts,
    state: ServiceState,
    evidence: Sequence[Evidence],
    now: dt.datetime,
    *,
    start: ColdStartStatus | None,
    risks: Sequence[str],
) -> ElastiServiceStatus:
    """Return the status of an observed ElastiService."""
    es, totals = facts.es, state.observing.totals()
    verdict, reasons = judged(
        Observation(
            observed_seconds=state.observing.observed,
            asleep_seconds=state.observing.asleep_for,
            wakes=totals.wakes,
            cold_start=start,
            hazards=tuple(risks),
            unseen=unseen_use(es.spec),
        )
    )
    found = status_of(facts, state, evidence, now)
    return msgspec.structs.replace(
        found,
        quiet_since=None,
        triggers=tuple(msgspec.structs.replace(one, quiet_since=None) for one in found.triggers),
        usage=es.status.usage,
        resolver_ports=(),
        observed=msgspec.structs.replace(
            totals, cold_start_seconds=start, verdict=verdict, reasons=reasons
        ),
    )


def hazards(facts: Facts) -> Iterator[str]:
    """Yield reasons why a sleep of this target would do harm."""
    if (unready := facts.unready) is not None:
        yield unready.reason
    target = facts.target
    if target is None:
        return
    if target.host_network:
        yield "HostNetwork"
    if target.probed is False:
        yield "NoReadinessProbe"
    if target.recreates and not target.has_claims:
        yield "RecreateStrategy"


def _start(pod: Pod) -> Iterator[float]:
    """Yield how long a pod took from its creation to Ready, if it is."""
    ready = pod.condition("Ready")
    if ready is not None and ready.is_true:
        yield unix_seconds(ready.last_transition_time) - unix_seconds(
            pod.metadata.creation_timestamp
        )


def _period(es: ElastiService) -> float:
    return _PERIOD + zlib.crc32(es.metadata.uid.encode()) % _SPREAD


def _seconds_left(es: ElastiService, evidence: Sequence[Evidence], now: dt.datetime) -> float:
    """Return in how many seconds status is due: at the beginning, with the first readings, then every hour."""
    status, period = es.status, _period(es)
    if status.observed is None or status.observed_generation != es.metadata.generation:
        return 0.0
    health = (one.reason for one in status.conditions if one.type == TRIGGERS_HEALTHY)
    unread = next(health, "") == Reason.NOT_READ_YET
    if unread and evidence and not any(item.is_pending for item in evidence):
        return 0.0
    left = unix_seconds(status.last_reconciled_time) + period - now.timestamp()
    # A time further ahead was written before the clock was set back.
    return left if 0 < left <= period else 0.0
