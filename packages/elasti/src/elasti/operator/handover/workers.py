"""Scales the workloads beside a target: workers without a Service, which sleep and wake with it.

No connection waits for them, so none of this delays a wake-up or prevents one: what fails is reported, and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from elasti.api.types import ElastiService
from elasti.logger import get_logger
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import ScaleTarget, ScaleView, UpdateObjInfo
from elasti.operator.report.events import EventReporter
from elasti.operator.scale_handler import NotScalable, ScaleDown, ScaleHandler, ScaleUp
from kubeloop.client.errors import KubeError, NotFound

_log = get_logger(__name__)


class Workers:
    """Parks and wakes; nothing is raised. `known`: what is known of a workload, most often by a cache."""

    def __init__(
        self,
        scales: ScaleHandler,
        known: Callable[[ScaleTarget], Awaitable[UpdateObjInfo | None]],
        writer: ElastiServiceWriter,
        reporter: EventReporter,
    ) -> None:
        self._scales = scales
        self._known = known
        self._writer = writer
        self._reporter = reporter

    async def park(
        self, es: ElastiService, state: ServiceState, targets: Sequence[ScaleTarget]
    ) -> None:
        """Record what each has, then ask for none."""
        found: dict[ScaleTarget, ScaleView] = {}
        failed = False
        for target in targets:
            try:
                found[target] = await self._scales.read(target)
            except (KubeError, NotScalable) as error:
                failed = self._not_scaled(es, target, "to zero", str(error))
        state.workers.note_due({target: view.replicas for target, view in found.items()})
        if not await self._is_recorded(es, state):
            found, failed = {}, True
        for target, view in found.items():
            if view.replicas and (why := await self._zero(target, view)):
                failed = self._not_scaled(es, target, "to zero", why)
                continue
            state.workers.note_asleep(target)
            self._log_scaled(es, target, 0)
        state.workers.parks.note(asyncio.get_running_loop().time(), failed=failed)

    async def wake(
        self, es: ElastiService, state: ServiceState, targets: Sequence[ScaleTarget]
    ) -> None:
        """Give each back what it had; one that another writer scaled up keeps what it has."""
        woken = await asyncio.gather(
            *(self._up(es, target, state.workers.replicas_of(target)) for target in targets)
        )
        for target, done in zip(targets, woken, strict=True):
            if done:
                state.workers.note_awake(target)
        state.workers.wakes.note(asyncio.get_running_loop().time(), failed=not all(woken))

    async def _is_recorded(self, es: ElastiService, state: ServiceState) -> bool:
        try:
            if await self._writer.note_workers(es, state):
                return True
        except KubeError as error:
            _log.warning("status.targets cannot be written", error=str(error))
            return False
        self._reporter.warning(
            es,
            "FailedToScale",
            "the workloads of spec.targets stay awake: the cluster's CustomResourceDefinition is older and drops"
            " status.targets; upgrade it: elasti crd | kubectl apply --server-side --force-conflicts -f -",
        )
        return False

    async def _zero(self, target: ScaleTarget, seen: ScaleView) -> str:
        """Set one to zero; returns why not, or nothing."""
        try:
            outcome, _ = await self._scales.park(target, seen)
        except KubeError as error:
            return str(error)
        return "another writer changed it meanwhile" if outcome is ScaleDown.CHANGED else ""

    async def _up(self, es: ElastiService, target: ScaleTarget, replicas: int) -> bool:
        """Wake one; False if that is to be tried again."""
        try:
            seen = await self._scales.read(target)
            if seen.replicas:
                return True
            known = await self._known(target)
            outcome, _ = await self._scales.scale_up(
                target, replicas, seen=seen, recreates=known is not None and known.recreates
            )
        except NotFound:
            return True
        except (KubeError, NotScalable) as error:
            return not self._not_scaled(es, target, f"to {replicas}", str(error))
        if outcome is ScaleUp.WAITS:
            return False  # its pods are ending, and no new one may run beside them
        self._log_scaled(es, target, replicas)
        return True

    def _not_scaled(self, es: ElastiService, target: ScaleTarget, to: str, why: str) -> bool:
        message = f"{target.kind} {target.name} was not scaled {to}: {why}"
        self._reporter.warning(es, "FailedToScale", message)
        return True

    def _log_scaled(self, es: ElastiService, target: ScaleTarget, replicas: int) -> None:
        meta = es.metadata
        keys: dict[str, Any] = {
            "namespace": meta.namespace,
            "name": meta.name,
            "target": str(target),
        }
        _log.info("worker scaled", replicas=replicas, **keys)
