"""Whether a target may sleep: each ElastiService's own decision, and that of all with the same target.

Sleeping needs all of them, waking needs one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.conditions import Obstacle, Reason
from elasti.api.defaults import cooldown_of, look_of, stale_after
from elasti.operator.handover.machine import State
from elasti.operator.handover.requests import is_in_force
from elasti.operator.idleness.decide import (
    Decision,
    Evidence,
    Situation,
    Verdict,
    decide,
    format_moment,
    is_enabled,
    sleeps_at,
)
from elasti.triggers.registry import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elasti.api.types import ElastiServiceSpec
    from elasti.operator.handover.state import ServiceState, StateStore
    from elasti.operator.watch.directory import CRDDetails, Directory
    from kubeloop.aio.clock import Clock
    from kubeloop.controller.reconcile import Request


def combined_decision(decisions: Iterable[Decision]) -> Decision:
    """Return what several deciders of one target decide together."""
    known = list(decisions)
    for verdict in (Verdict.WAKE, Verdict.STAY, Verdict.LOOK):
        for decision in known:
            if decision.verdict is verdict:
                return decision
    return known[0] if known else Decision(Verdict.STAY, "no ElastiService is for it")


class TriggerJudgement(NamedTuple):
    """All that time and triggers change about one ElastiService.

    Where it is what it was at the last reconcile, no other is needed. `calm`: which triggers have been
    quiet for long enough that status says so.
    """

    decision: Decision
    health: tuple[str | None, ...]
    calm: tuple[bool, ...] = ()


def trigger_health(evidence: Sequence[Evidence]) -> tuple[str | None, ...]:
    """Return what is wrong with each trigger: nothing (""), an error, or None where it was not read."""
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

    def judge(self, request: Request) -> TriggerJudgement:
        """Return what follows from time and triggers now."""
        evidence, now = self.evidence(request), self.clock.now().timestamp()
        calm = tuple(item.is_calm(now) for item in evidence)
        return TriggerJudgement(self.together(request), trigger_health(evidence), calm)

    def together(self, request: Request) -> Decision:
        """Decide for a target with everyone who shares it; its own obstacle comes before others'."""
        found: list[Decision] = []
        for other in sorted(self.directory.sharing(request), key=lambda one: one != request):
            details = self.directory.get(other)
            if details is not None:
                decision = self.alone(details)
                found.append(decision if other == request else _of_other(other, decision))
        obstacle = next((item.obstacle for item in found if item.obstacle), None)
        return dataclasses.replace(combined_decision(found), obstacle=obstacle)

    def sleeps_at(self, request: Request) -> float | None:
        """Return when a target can sleep if it is used no more; None where that is not known."""
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
        refused = state is not None and state.handover.refused and not details.spec.suspend
        if state is None or refused or details.problems:
            return Obstacle(
                Reason.NOT_IN_ORDER, f"{details.name} is not in order; its condition Ready says why"
            )
        if self.clock.now().timestamp() < state.conflict.until:
            return Obstacle(
                Reason.CONTESTED,
                "another writer keeps undoing it, so it is left alone until"
                f" {format_moment(state.conflict.until)}, longer each time",
            )
        return state

    def _situation(self, details: CRDDetails, state: ServiceState) -> Situation:
        now = self.clock.now()
        return Situation(
            now=now.timestamp(),
            cooldown=cooldown_of(details.spec),
            created_at=details.created_at,
            last_scaled_up=max(state.requests.last_scaled_up, details.last_scaled_up),
            last_traffic=state.requests.last_traffic,
            last_attempt=state.requests.last_attempt,
            attempt_ended=state.requests.attempt_ended,
            asked=is_in_force(state),
            suspended=details.spec.suspend,
            keep_awake_until=details.keep_awake_until,
            enabled=is_enabled(details.spec.enabled_period, now),
            triggers=self.evidence(details.request) or _unread(details.spec),
            stale_after=stale_after(self.polling_interval),
            look=look_of(details.spec),
            looking=state.current in (State.ENGAGING, State.DRAINING),
        )


def _of_other(other: Request, decision: Decision) -> Decision:
    if decision.obstacle is None:
        return decision
    message = (
        f"ElastiService {other.name} has the same target, and there {decision.obstacle.message}"
    )
    return dataclasses.replace(decision, obstacle=Obstacle(Reason.SHARED_TARGET, message))


def _unread(spec: ElastiServiceSpec) -> tuple[Evidence, ...]:
    """Return what triggers have shown before the first round: nothing, but they are there."""
    return tuple(
        Evidence(threshold=math.inf, veto=trigger.effective_role is Role.VETO)
        for trigger in spec.triggers
    )
