"""Whether a target may sleep: each ElastiService's own decision, and that of all with the same target.

Sleeping needs all of them, waking needs one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from elasti.api.conditions import Obstacle, Reason
from elasti.api.defaults import ENGAGE_SETTLE, stale_after
from elasti.api.observed import OBSERVED
from elasti.api.schedules import NO_LEVEL, Level, changes, lead_of, level_at
from elasti.api.states import State
from elasti.api.triggers.registry import Role
from elasti.api.types import ElastiServiceSpec, Schedule
from elasti.api.usage import damped_cooldown
from elasti.operator.idleness.decide import (
    INVALID,
    Evidence,
    Situation,
    decide,
    is_enabled,
    sleeps_at,
)
from elasti.operator.model.facts import Decision, TriggerJudgement, Verdict
from elasti.operator.model.state import AWAKE, ServiceState, StateStore, is_in_force
from elasti.operator.watch.directory import CRDDetails, Directory
from kubeloop.aio.clock import Clock
from kubeloop.controller.reconcile import Request
from kubeloop.objects.times import unix_seconds


def combined_decision(decisions: Iterable[Decision]) -> Decision:
    """Return what several deciders of one target decide together."""
    known = list(decisions)
    for verdict in (Verdict.WAKE, Verdict.STAY, Verdict.LOOK):
        for decision in known:
            if decision.verdict is verdict:
                return decision
    return known[0] if known else Decision(Verdict.STAY, "no ElastiService has this name")


def trigger_health(evidence: Sequence[Evidence]) -> tuple[str | None, ...]:
    """Return what is wrong with each trigger: nothing (""), an error, or None if it was not read."""
    return tuple(
        None if item.is_pending or item.last is None else item.last.error for item in evidence
    )


@dataclasses.dataclass(eq=False, kw_only=True)
class Decisions:
    """Decides from the directory, what is remembered, and the triggers' evidence."""

    directory: Directory
    states: StateStore
    evidence: Callable[[Request], Sequence[Evidence]]
    clock: Clock
    polling_interval: float
    engage_settle: float = ENGAGE_SETTLE

    def __post_init__(self) -> None:
        # By schedules and lead: objects that a template made share the search.
        self._scheduled: dict[tuple[tuple[Schedule, ...], float], _Scheduled] = {}

    def judge(self, request: Request, decision: Decision | None = None) -> TriggerJudgement:
        """Return what follows from time and triggers now, with what was decided a moment ago."""
        evidence, now = self.evidence(request), self.clock.now().timestamp()
        calm = tuple(item.is_calm(now) for item in evidence)
        return TriggerJudgement(decision or self.together(request), trigger_health(evidence), calm)

    def together(self, request: Request) -> Decision:
        """Decide for a target with everyone who shares it; its own obstacle comes before others'."""
        found: list[Decision] = []
        own = self.directory.get(request)
        enforced = own is not None and not own.spec.observes
        for other in sorted(self.directory.sharing(request), key=lambda one: one != request):
            details = self.directory.get(other)
            if details is not None:
                decision = self.alone(details)
                if enforced and details.spec.observes:
                    # No resolver would hold what arrives at its Service.
                    decision = Decision(Verdict.STAY, OBSERVED.message, OBSERVED)
                found.append(decision if other == request else _of_other(other, decision))
        obstacle = next((item.obstacle for item in found if item.obstacle), None)
        return dataclasses.replace(combined_decision(found), obstacle=obstacle)

    def sleeps_at(self, request: Request) -> float | None:
        """Return when a target can sleep if it stays unused; None if unknown."""
        ends = []
        for other in self.directory.sharing(request):
            details = self.directory.get(other)
            found = self._standing(details) if details is not None else None
            if details is not None and found is not None and not isinstance(found, Obstacle):
                ends.append(sleeps_at(self._situation(details, found)))
            else:
                ends.append(None)
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    def seconds_left(self, request: Request) -> float | None:
        """Return in how many seconds a target can sleep, as `sleeps_at` does."""
        end = self.sleeps_at(request)
        return None if end is None else end - self.clock.now().timestamp()

    def alone(self, details: CRDDetails) -> Decision:
        """Decide for one ElastiService."""
        found = self._standing(details)
        if isinstance(found, Obstacle):
            return Decision(Verdict.STAY, found.message, found)
        return decide(self._situation(details, found))

    def _standing(self, details: CRDDetails) -> ServiceState | Obstacle:
        """Return what is known of one that may be decided about at all, or why it may not."""
        state = self.states.find(details.request)
        # One that is suspended is refused as well, and has its own obstacle.
        refused = state is not None and state.handover.refused and not details.spec.suspended
        if state is None or refused or details.problems:
            return INVALID
        if self.clock.now().timestamp() < state.conflict.until:
            return Obstacle(
                Reason.CONTESTED,
                "another writer keeps scaling it up, so Elasti leaves it alone, for longer each time",
                state.conflict.until,
            )
        return state

    def _situation(self, details: CRDDetails, state: ServiceState) -> Situation:
        now, scheduled = self.clock.now(), self._schedule(details)
        return Situation(
            now=now.timestamp(),
            cooldown=_cooldown(details, state),
            created_at=details.created_at,
            last_scaled_up=max(state.requests.last_scaled_up, details.last_scaled_up),
            last_traffic=state.requests.last_traffic,
            last_attempt=state.requests.last_attempt,
            attempt_ended=state.requests.attempt_ended.message,
            asked=is_in_force(state),
            suspended=details.spec.suspended,
            keep_awake_until=details.keep_awake_until,
            enabled=is_enabled(details.spec.enabled_period, now),
            schedule=scheduled.level,
            schedule_until=scheduled.end,
            **self._dependents(details),
            triggers=self.evidence(details.request) or _unread(details.spec),
            stale_after=stale_after(self.polling_interval),
            look=self._look(details, state),
            looking=state.current in (State.ENGAGING, State.DRAINING),
            dozing=state.doze.status is not None
            or (details.spec.sleep.mode != "Zero" and state.current is State.SERVE),
        )

    def _look(self, details: CRDDetails, state: ServiceState) -> float:
        """Return how long before the end of the cooldown the resolver joins: its settle ends with the cooldown.

        Never in the first half, nor in a cooldown below the settle, so that a target with steady traffic is left alone.
        """
        cooldown, settle = _cooldown(details, state), self.engage_settle
        settle = min(settle, cooldown / 2) if cooldown >= settle else 0.0
        return max(details.spec.look_seconds, settle if details.spec.sleep.mode == "Zero" else 0.0)

    def seconds_to_reading(self, request: Request) -> float | None:
        """Return in how many seconds a reading decides: before the resolver joins, or at the end of the cooldown."""
        left, details = self.seconds_left(request), self.directory.get(request)
        state = self.states.find(request)
        if left is None or details is None or state is None:
            return left
        look = self._look(details, state)
        return left - look if left > look else left

    def _dependents(self, details: CRDDetails) -> dict[str, Any]:
        """Return what dependents mean for a decision: whether one is awake, and when the last fell asleep."""
        dependents = self.directory.graph.dependents(details.request)
        if not dependents:
            return {}
        found: dict[str, Any] = {"depended_on": details.spec.given_triggers == ()}
        asleep = -math.inf
        for request in dependents:
            state, other = self.states.find(request), self.directory.get(request)
            if details.spec.observes and state is not None and state.observing.asleep:
                # In what is only observed, both would be asleep.
                asleep = max(asleep, state.observing.asleep_since or -math.inf)
            elif state is None or state.current is not State.PROXY:
                # One that this leader has not reconciled may sleep: it wakes nothing.
                now = state is not None and state.current in AWAKE
                if now or "needed_by" not in found:
                    found |= {"needed_by": request.name, "needed_now": now}
            elif other is not None:
                # Its status may not say so yet.
                since = unix_seconds(other.status.asleep_since)
                asleep = max(
                    asleep, since if math.isfinite(since) else self.clock.now().timestamp()
                )
        return found | {"dependents_asleep": asleep}

    def seconds_to_change(self, request: Request) -> float | None:
        """Return in how many seconds schedules ask for something else; None if not within a year."""
        details = self.directory.get(request)
        if details is None or not details.spec.schedules:
            return None
        end = self._schedule(details).end
        return None if end is None else end - self.clock.now().timestamp()

    def _schedule(self, details: CRDDetails) -> _Scheduled:
        """Return what schedules ask for now; the search for its end is made once for each change."""
        if not details.spec.schedules:
            return _UNSCHEDULED
        schedules, lead, now = details.spec.schedules, _lead(details), self.clock.now()
        known = self._scheduled.get((schedules, lead))
        if known is not None and known.since <= now.timestamp() < known.until:
            return known
        ahead = changes(schedules, now, lead)
        level, first = level_at(schedules, now, lead), next(ahead, None)
        found = first
        while found is not None and found.level.keep == level.keep:
            found = next(ahead, None)
        # Also if nothing changes: a day later there may be more to see.
        until = first.at if first is not None else now + dt.timedelta(days=1)
        if len(self._scheduled) >= _MOST_SCHEDULED:
            self._scheduled.clear()
        end = found.at.timestamp() if found is not None else None
        known = _Scheduled(now.timestamp(), until.timestamp(), level, end)
        self._scheduled[schedules, lead] = known
        return known


class _Scheduled(NamedTuple):
    """A level that holds from `since` to `until`; `end`: when it is Awake, Asleep or by use no longer."""

    since: float = math.inf
    until: float = -math.inf
    level: Level = NO_LEVEL
    end: float | None = None


_UNSCHEDULED = _Scheduled()
_MOST_SCHEDULED = 10_000


def _cooldown(details: CRDDetails, state: ServiceState) -> float:
    cooldown = details.spec.cooldown
    return damped_cooldown(cooldown) if state.requests.flapping else cooldown


def _lead(details: CRDDetails) -> float:
    warm = any(one.warm_by for one in details.spec.schedules)
    return lead_of(details.status, str(details.request)) if warm else 0.0


def _of_other(other: Request, decision: Decision) -> Decision:
    if decision.obstacle is None:
        return decision
    found = decision.obstacle
    message = f"ElastiService {other.name} has the same target and keeps it awake: {found.message}"
    shared = Obstacle(Reason.SHARED_TARGET, message, found.until)
    return dataclasses.replace(decision, obstacle=shared)


def _unread(spec: ElastiServiceSpec) -> tuple[Evidence, ...]:
    """Return what triggers have shown before the first round: nothing, but they are there."""
    return tuple(
        Evidence(threshold=math.inf, veto=trigger.effective_role is Role.VETO)
        for trigger in spec.triggers
    )
