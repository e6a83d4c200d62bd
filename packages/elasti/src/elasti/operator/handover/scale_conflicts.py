"""Whether another writer keeps undoing our parks, and which field manager it is.

A target that is scaled up by another writer may be one user's decision, once. Three times within an
hour it is a conflict, which is reported, and the target is left alone, longer each time.
"""

from __future__ import annotations

import dataclasses

from elasti.api.names import FIELD_MANAGER
from elasti.api.states import State
from elasti.logger import get_logger
from elasti.operator.model.facts import Facts, Verdict
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import target_of
from elasti.operator.report.events import EventReporter
from elasti.operator.scale_handler import NotScalable, ScaleHandler
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import unix_seconds

_log = get_logger(__name__)


def replicas_writer(obj: JsonObject, now: float) -> tuple[str, float]:
    """Return the field manager that wrote `spec.replicas` last, and when; "" and now if none is recorded."""
    entries = [
        entry
        for entry in obj.get("metadata", {}).get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    newest: JsonObject = max(entries, key=lambda entry: entry.get("time") or "", default={})
    at = unix_seconds(newest.get("time"))
    return str(newest.get("manager") or ""), min(at, now) if at > 0 else now


@dataclasses.dataclass(eq=False, kw_only=True)
class ScaleConflicts:
    """Notes what others do to targets. One instance for the leader."""

    client: Client
    scales: ScaleHandler
    reporter: EventReporter
    clock: Clock

    def _wall(self) -> float:
        return self.clock.now().timestamp()

    async def scaled_by_another(self, facts: Facts, state: ServiceState) -> tuple[str, float]:
        """Note that the target was scaled up, not by us, and whether it undoes our parks.

        Returns the field manager that did it, "" if unknown; and when.
        """
        state.requests.note_scaled_up(self._wall())
        if state.requests.wake:
            return FIELD_MANAGER, self._wall()
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
        """Ask the server who wrote the target's replicas last, and when; "" if unknown."""
        target = target_of(facts.es)
        try:
            info = await self.scales.resource(target)
            found = await self.client.resource(info.gvr).get(
                target.name, namespace=target.namespace
            )
        except (KubeError, NotScalable) as error:
            # Who it was is good to know; that traffic goes on must not hang on it.
            _log.info("field manager of replicas unknown", target=str(target), error=str(error))
            return "", self._wall()
        return replicas_writer(found, self._wall())

    def clear_up(self, facts: Facts, state: ServiceState) -> bool:
        """Find out, before the next sleep, who scaled it up; says whether it did."""
        sleeps = facts.decision.verdict in (Verdict.SLEEP, Verdict.LOOK)
        if state.current is not State.SERVE or not sleeps or not state.conflict.take_unclear():
            return False
        if facts.es.status.last_scaled_up_time == state.conflict.stamp:
            self._undone(facts, state, "")
        return True

    def _undone(self, facts: Facts, state: ServiceState, manager: str) -> None:
        was = state.conflict.is_contested
        state.conflict.record(self._wall(), manager, facts.es.spec.cooldown)
        if state.conflict.is_contested and not was:
            self.reporter.contested(facts.es, manager)
