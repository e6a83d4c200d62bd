"""Whether another writer keeps undoing our parks, and which field manager it is.

A target that is scaled up by another writer may be one user's decision, once. Three times within an
hour it is a conflict, which is reported, and the target is left alone, longer each time.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import structlog

from elasti.api.defaults import cooldown_of
from elasti.api.names import FIELD_MANAGER
from elasti.operator.handover.machine import State
from elasti.operator.idleness.decide import Verdict
from elasti.operator.scale_handler import NotScalable
from elasti.operator.watch.targets import target_of
from kubeloop.client.errors import KubeError
from kubeloop.objects.times import unix_seconds

if TYPE_CHECKING:
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.leader import LeaderDependencies
    from kubeloop.objects.meta import JsonObject

_CONFLICT_WINDOW = 3600.0
_CONTESTED_AT = 3
_LONGEST_BACKOFF = 86400.0

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(slots=True)
class ScaleConflict:
    """Parks that another writer undid, and how long to leave the target alone for it.

    `stamp` is the `lastScaledUpTime` that the last park found: every replica of ours that wakes a
    target writes a new one. `unclear`: it was scaled up, and the server did not record the field manager.
    Times are seconds since 1970.
    """

    undone: tuple[float, ...] = ()
    until: float = -math.inf
    by: str = ""
    stamp: str | None = None
    unclear: bool = False

    @property
    def is_contested(self) -> bool:
        """Whether three parks within an hour were undone."""
        return len(self.undone) >= _CONTESTED_AT

    def record(self, now: float, by: str, cooldown: float) -> None:
        """Note that a park was undone; from the third within an hour on, wait ever longer."""
        self.undone = (*_recent(self.undone, now), now)
        self.by = by
        if self.is_contested:
            doublings = len(self.undone) - _CONTESTED_AT + 1
            self.until = now + min(max(cooldown, 60.0) * 2.0**doublings, _LONGEST_BACKOFF)

    def calm(self, now: float) -> None:
        """Forget what is long ago, once the wait is over."""
        if now >= self.until:
            self.undone = _recent(self.undone, now)

    def note_park(self, last_scaled_up: str | None) -> None:
        """A park was made; the ElastiService says that it was last scaled up then."""
        self.stamp = last_scaled_up

    def leave_unclear(self) -> None:
        """It was scaled up; the field manager is to be found out."""
        self.unclear = True

    def take_unclear(self) -> bool:
        """Return whether something is to be found out, and leave it at that."""
        unclear, self.unclear = self.unclear, False
        return unclear


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < _CONFLICT_WINDOW)


def replicas_writer(obj: JsonObject, now: float) -> tuple[str, float]:
    """Return the field manager that wrote `spec.replicas` last, and when; "" and now where none is recorded."""
    entries = [
        entry
        for entry in obj.get("metadata", {}).get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    newest: JsonObject = max(entries, key=lambda entry: entry.get("time") or "", default={})
    at = unix_seconds(newest.get("time"))
    return str(newest.get("manager") or ""), min(at, now) if at > 0 else now


class ScaleConflicts:
    """Notes what others do to targets. One instance for the leader."""

    def __init__(self, deps: LeaderDependencies) -> None:
        self._deps = deps

    async def scaled_by_another(self, facts: Facts, state: ServiceState) -> tuple[str, float]:
        """Note that the target was scaled up, not by us, and whether it undoes our parks.

        Returns the field manager that did it, "" where that is not known; and when.
        """
        state.requests.note_scaled_up(self._deps.wall())
        if state.requests.wake:
            return FIELD_MANAGER, self._deps.wall()
        manager, at = await self.replicas_writer(facts)
        if not state.handover.parked_here:
            return manager, at
        if not manager:
            # Real servers do not always record who used /scale. It may be another replica of ours,
            # whose note of it in status is still on its way.
            state.conflict.leave_unclear()
        elif manager != FIELD_MANAGER:
            self._undone(facts, state, manager)
        return manager, at

    async def replicas_writer(self, facts: Facts) -> tuple[str, float]:
        """Ask the server who wrote the target's replicas last, and when; "" where that is not known."""
        target = target_of(facts.es)
        try:
            info = await self._deps.scales.resource(target)
            found = await self._deps.client.resource(info.gvr).get(
                target.name, namespace=target.namespace
            )
        except (KubeError, NotScalable) as error:
            # Who it was is good to know; that traffic goes on must not hang on it.
            _log.info("field manager of replicas unknown", target=str(target), error=str(error))
            return "", self._deps.wall()
        return replicas_writer(found, self._deps.wall())

    def clear_up(self, facts: Facts, state: ServiceState) -> bool:
        """Find out, before the next sleep, who scaled it up; says whether it did."""
        sleeps = state.current is State.SERVE and facts.decision.verdict is Verdict.SLEEP
        if not sleeps or not state.conflict.take_unclear():
            return False
        if facts.es.status.last_scaled_up_time == state.conflict.stamp:
            self._undone(facts, state, "")
        return True

    def _undone(self, facts: Facts, state: ServiceState, manager: str) -> None:
        was = state.conflict.is_contested
        state.conflict.record(self._deps.wall(), manager, cooldown_of(facts.es.spec))
        if state.conflict.is_contested and not was:
            self._deps.reporter.contested(facts.es, manager)
