"""Whether somebody else keeps undoing our parks, and who.

A target that wakes by another hand than ours may be a person's wish, once. Three times within an hour it
is a fight, which is told, and left alone for ever longer times (`memory.Contest`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from elasti.operator.contest import replicas_manager
from elasti.operator.decisions import cooldown_of
from elasti.operator.modes import State
from elasti.operator.ops_informer import target_of
from elasti.scaling.decide import Verdict
from elasti.scaling.scale_handler import FIELD_MANAGER, NotScalable
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from elasti.operator.memory import Memory
    from elasti.operator.observation import Facts
    from elasti.operator.parts import Parts

_log = structlog.get_logger(__name__)


class Contests:
    """Notes what others do to targets. One instance for the leader's reconciler."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def scaled_by_another(self, facts: Facts, memory: Memory) -> None:
        """Note an awakening that was not ours, and whether it undoes our parks."""
        memory.last_scaled_up = self._wall()
        if not memory.parked_here or memory.wake:
            return
        target = target_of(facts.es)
        try:
            info = await self._parts.scales.resource(target)
            found = await self._parts.client.resource(info.gvr).get(
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

    def clear_up(self, facts: Facts, memory: Memory) -> bool:
        """Find out, before the next sleep, whose an unclear awakening was; says whether it did."""
        sleeps = memory.state is State.SERVE and facts.decision.verdict is Verdict.SLEEP
        if not memory.contest.unclear or not sleeps:
            return False
        memory.contest.unclear = False
        if facts.es.status.last_scaled_up_time == memory.contest.stamp:
            self._undone(facts, memory, "")
        return True

    def _undone(self, facts: Facts, memory: Memory, manager: str) -> None:
        was = memory.contest.is_contested
        memory.contest.record(self._wall(), manager, cooldown_of(facts.es.spec))
        if memory.contest.is_contested and not was:
            self._parts.reporter.contested(facts.es, manager)

    def _wall(self) -> float:
        return self._parts.clock.now().timestamp()
