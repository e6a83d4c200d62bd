"""Whether another writer keeps undoing our parks, and which field manager it is.

A target that is scaled up by another writer may be one user's decision, once. Three times
within an hour it is a conflict, which is reported, and the target is left alone for ever longer
times (`state.ScaleConflict`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from elasti.api.defaults import cooldown_of
from elasti.api.names import FIELD_MANAGER
from elasti.operator.handover.machine import State
from elasti.operator.idleness.decide import Verdict
from elasti.operator.scale_handler import NotScalable
from elasti.operator.watch.targets import target_of
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.reconciler import ReconcilerDeps
    from elasti.operator.handover.state import ServiceState
    from kubeloop.objects.meta import JsonObject


def replicas_manager(obj: JsonObject) -> str:
    """Return the field manager that wrote `spec.replicas` last; "" where nobody is recorded."""
    entries = [
        entry
        for entry in obj.get("metadata", {}).get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    newest = max(entries, key=lambda entry: entry.get("time") or "", default=None)
    return str(newest.get("manager") or "") if newest else ""


_log = structlog.get_logger(__name__)


class ScaleConflicts:
    """Notes what others do to targets. One instance for the leader's reconciler."""

    def __init__(self, parts: ReconcilerDeps) -> None:
        self._deps = parts

    async def scaled_by_another(self, facts: Facts, memory: ServiceState) -> None:
        """Note an awakening that was not ours, and whether it undoes our parks."""
        memory.last_scaled_up = self._wall()
        if not memory.parked_here or memory.wake:
            return
        target = target_of(facts.es)
        try:
            info = await self._deps.scales.resource(target)
            found = await self._deps.client.resource(info.gvr).get(
                target.name, namespace=target.namespace
            )
        except (KubeError, NotScalable) as error:
            # Who it was is good to know; that traffic goes on must not hang on it.
            _log.info("nobody knows who scaled it", target=str(target), error=str(error))
            return
        manager = replicas_manager(found)
        if not manager:
            # Real servers do not record who used /scale. It may be another replica of ours, whose
            # note of it in status is still on its way.
            memory.contest.unclear = True
        elif manager != FIELD_MANAGER:
            self._undone(facts, memory, manager)

    def clear_up(self, facts: Facts, memory: ServiceState) -> bool:
        """Find out, before the next sleep, whose an unclear awakening was; says whether it did."""
        sleeps = memory.state is State.SERVE and facts.decision.verdict is Verdict.SLEEP
        if not memory.contest.unclear or not sleeps:
            return False
        memory.contest.unclear = False
        if facts.es.status.last_scaled_up_time == memory.contest.stamp:
            self._undone(facts, memory, "")
        return True

    def _undone(self, facts: Facts, memory: ServiceState, manager: str) -> None:
        was = memory.contest.is_contested
        memory.contest.record(self._wall(), manager, cooldown_of(facts.es.spec))
        if memory.contest.is_contested and not was:
            self._deps.reporter.contested(facts.es, manager)

    def _wall(self) -> float:
        return self._deps.clock.now().timestamp()
