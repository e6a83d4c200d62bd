"""What surrounds every reconcile: wake-ups go first, metrics are kept, the start is logged.

`StartupProgress` logs, once, that everything that was there at the start has been reconciled: from
then on only changes count. It is the line to look for after a restart, and what the benchmark of a
restart waits for.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from kubeloop.controller.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.operator.dependencies import LeaderDependencies
    from elasti.operator.handover.reconciler import ElastiServiceReconciler
    from elasti.operator.pacing import BoundedRequeue

_log = structlog.get_logger(__name__)


class StartupProgress:
    """The ElastiServices that were there at the start and have not been reconciled."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = set(requests)
        self._count = len(self._left)
        self._failed = 0
        self._began = time.monotonic()
        if not self._left:
            self._log_summary()

    def reconciled(self, request: Request, *, failed: bool) -> None:
        """One was reconciled, for the first time or again; what failed will be tried again."""
        if request not in self._left:
            return
        self._left.discard(request)
        self._failed += failed
        if not self._left:
            self._log_summary()

    def _log_summary(self) -> None:
        _log.info(
            "startup reconcile complete",
            elastiservices=self._count,
            failed=self._failed,
            seconds=round(time.monotonic() - self._began, 3),
        )


class ReconcileLoop:
    """Reconciles for the controller's workers."""

    def __init__(
        self,
        deps: LeaderDependencies,
        reconciler: ElastiServiceReconciler,
        bounded_requeue: BoundedRequeue,
    ) -> None:
        self._deps = deps
        self._reconciler = reconciler
        self._bounded_requeue = bounded_requeue
        present = deps.caches.elastiservices.all()
        self._progress = StartupProgress(
            Request(es.metadata.namespace, es.metadata.name) for es in present
        )

    async def reconcile(self, request: Request) -> Result | None:
        """Reconcile one ElastiService, in its turn. Raises what failed."""
        clock, metrics = asyncio.get_running_loop().time, self._deps.metrics
        await self._deps.waker.wait_calm()
        began = clock()
        try:
            result = await self._reconciler.reconcile(request)
        except Exception as error:
            metrics.reconciled(request, clock() - began, error)
            self._progress.reconciled(request, failed=True)
            raise
        finally:
            self._bounded_requeue.reconciled(request)
        state = self._deps.states.find(request)
        if state is None:
            metrics.forget(request)
            self._deps.pod_labels.forget(request)
        else:
            metrics.reconciled(request, clock() - began, None)
            metrics.state(request, state.current)
        self._progress.reconciled(request, failed=False)
        return result
