"""Counts the sleep that observed targets would have had, after each reading of their triggers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from elasti.api.defaults import stale_after
from elasti.api.types import ElastiServiceSpec
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.model.observing import would_sleep
from kubeloop.controller.reconcile import Request


@dataclasses.dataclass(eq=False, kw_only=True)
class ObservationTally:
    """Counts. One for the leader; `enqueue` has the first readings reported."""

    decisions: Decisions
    enqueue: Callable[[Request], None]

    def look(self, request: Request) -> None:
        """Count the time since the last look at one; does nothing before its first reconcile."""
        known = self.decisions
        state, details = known.states.find(request), known.directory.get(request)
        if state is None or details is None or not state.observing.began:
            return
        evidence = known.evidence(request)
        used = any(item.is_active() for item in evidence)
        asleep = would_sleep(known.together(request), used=used)
        if unseen_use(details.spec):
            asleep = None
        state.observing.look(
            known.clock.now().timestamp(),
            asleep,
            used=used,
            longest=stale_after(known.polling_interval),
        )
        if evidence and not any(item.is_pending for item in evidence) and state.observing.is_new():
            self.enqueue(request)


def unseen_use(spec: ElastiServiceSpec) -> tuple[str, ...]:
    """Return why no trigger can show use while nothing is done; empty if one can."""
    if spec.look_seconds:
        return ("TrafficTrigger",)
    return () if spec.triggers or spec.schedules else ("NoTriggers",)
