"""A controller: sources fill its queue, workers empty it by calling a reconciler.

    controller = Controller("web", reconcile, workers=4)
    controller.watch(deployments, predicates=[generation_changed()])
    controller.watch(pods, mapping=for_owner(DEPLOYMENT, controller_only=True))
    await controller.run()

`run` registers on the informers and waits until every initial object has been seen by its handler,
so that no reconcile ever judges by half a cache; then the workers start. It goes on until it is
cancelled. The first cancellation starts no further reconcile and waits for the running ones; a
second one cancels them, and waits for their end all the same. `_settle` is the whole retry policy.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from kubeloop.aio.tasks import TimeBudget, finish
from kubeloop.client.errors import KubeError
from kubeloop.client.retry import server_delay
from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.queue.workqueue import QueueShutDown
from kubeloop.controller.reconcile import (
    ControllerMetrics,
    NoControllerMetrics,
    Outcome,
    Reconcile,
    ReconcileTimeout,
    Request,
    Result,
    TerminalError,
    call_reconciler,
    check_is_async,
)
from kubeloop.controller.sources import EventSource, InformerFactory, Mapping, Source, for_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeloop.controller.predicates import Predicate
    from kubeloop.controller.queue.ratelimiters import RateLimiter
    from kubeloop.controller.writes import ConsistencyGuard

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SyncTimeout(TimeoutError):
    """A controller could not start: caches did not sync in time."""


class Controller:
    """Calls `reconcile` for every object that its sources name, and again as it asks for.

    `timeout` bounds one reconcile, `sync_timeout` the start. `consistency` holds a reconcile back
    until the caches show what the previous one wrote.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 1,
        queue: PriorityQueue[Request] | None = None,
        rate_limiter: RateLimiter[Request] | None = None,
        timeout: float | None = None,
        sync_timeout: float = 120.0,
        consistency: ConsistencyGuard | None = None,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name}: workers={workers} must be at least 1")
        if queue is not None and rate_limiter is not None:
            raise ValueError(f"controller {name}: give the rate_limiter to the queue, not both")
        check_is_async(reconcile)
        self.name = name
        self.queue = PriorityQueue(rate_limiter=rate_limiter) if queue is None else queue
        self._reconcile = reconcile
        self._workers = workers
        self._timeout = timeout
        self._sync_timeout = sync_timeout
        self._consistency = consistency
        self._metrics = metrics or NoControllerMetrics()
        self._sources: list[Source[Any]] = []
        self._starting = asyncio.Lock()
        self._warm = False
        self._started = False
        self._stopping = False
        self._busy = 0

    def __repr__(self) -> str:
        return f"<Controller {self.name} [{self._busy}/{self._workers} busy] {self.queue!r}>"

    # Sources

    def watch(
        self,
        informer: EventSource[T] | InformerFactory[T],
        *,
        mapping: Mapping[T] | None = None,
        predicates: Sequence[Predicate[T]] = (),
        name: str | None = None,
    ) -> None:
        """Reconcile what `mapping` says of an informer's notifications, by default the object.

        Only notifications that pass all predicates count. An async function in place of the informer
        is called at the start, again and again until it succeeds. A watch added later starts at
        once, and needs an informer.
        """
        source = Source(
            informer,
            name=name or f"{self.name}/watch-{len(self._sources)}",
            mapping=mapping or for_object(),
            predicates=predicates,
        )
        if self._warm and source.is_deferred:
            raise RuntimeError(
                f"{source.name}: a watch added to a running controller needs an informer"
            )
        self._sources.append(source)
        if self._warm:
            source.start_now(self.queue.add)

    async def warm_up(self) -> None:
        """Start the sources and wait until their initial objects are in the queue.

        For standbys that want a full queue before they lead; `run` does it otherwise. May be
        repeated, and is not done twice. Raises SyncTimeout. Undone by `close`.
        """
        async with self._starting:
            if not self._warm:
                await self._start_sources()
                self._warm = True

    async def close(self) -> None:
        """Stop taking work and leave the informers; `run` ends with it."""
        self._stopping = True
        self.queue.shutdown()
        for source in self._sources:
            await source.stop()

    async def _start_sources(self) -> None:
        try:
            async with asyncio.timeout(self._sync_timeout), asyncio.TaskGroup() as group:
                for source in self._sources:
                    group.create_task(self._start(source), name=source.name)
        except TimeoutError as error:
            raise self._sync_timed_out() from error
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _start(self, source: Source[Any]) -> None:
        await source.start(self.queue.add)
        await source.wait_synced()

    def _sync_timed_out(self) -> SyncTimeout:
        late = [
            f"{source.name} ({source.last_error})" if source.last_error else source.name
            for source in self._sources
            if not source.has_synced
        ]
        return SyncTimeout(
            f"controller {self.name}: not synced after {self._sync_timeout:g} s: {', '.join(late)}"
        )

    # Workers

    async def run(self) -> None:
        """Sync, then reconcile until cancelled; returns only when all of it has stopped.

        Raises RuntimeError on a second call, SyncTimeout if the caches do not sync.
        """
        if self._started:
            raise RuntimeError(f"controller {self.name} was started before; make a new one")
        self._started = True
        try:
            await self.warm_up()
            await self._run_workers()
        finally:
            await self.close()

    async def _run_workers(self) -> None:
        workers = [
            asyncio.create_task(self._work(), name=f"{self.name}/worker-{number}")
            for number in range(self._workers)
        ]
        try:
            await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self._stopping = True
            self.queue.shutdown()
            await finish(workers, cancel=False)
        for worker in workers:
            worker.result()

    async def _work(self) -> None:
        budget = TimeBudget()
        while True:
            try:
                request, priority = await self.queue.get_with_priority()
            except QueueShutDown:
                return
            try:
                if self._stopping:
                    return
                await self._process(request, priority)
            finally:
                self.queue.done(request)
            if budget.spent():
                await budget.rest()

    async def _process(self, request: Request, priority: int) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        self._count_busy(+1)
        try:
            outcome = self._settle(request, priority, await self._attempt(request))
        finally:
            self._count_busy(-1)
        self._metrics.reconciled(outcome, clock() - began)

    async def _attempt(self, request: Request) -> Result | Outcome | Exception:
        try:
            if self._consistency is not None and self._consistency.lagging(request):
                return Outcome.LAGGING
            return await call_reconciler(self._reconcile, request, self._timeout)
        except Exception as error:  # noqa: BLE001 -- whatever a reconciler raises is its answer
            return error

    def _settle(
        self, request: Request, priority: int, answer: Result | Outcome | Exception
    ) -> Outcome:
        """Act on a reconciler's result: the whole retry policy."""
        match answer:
            case TerminalError():
                self._log_failure(request, answer, "not tried again until it changes")
                return Outcome.TERMINAL
            case Exception():
                # A server that names a delay is not asked before, however few failures there were.
                hint = server_delay(answer) if isinstance(answer, KubeError) else None
                self.queue.add(request, rate_limited=True, at_least=hint or 0.0, priority=priority)
                self._log_failure(request, answer, "will be tried again")
                return Outcome.TIMEOUT if isinstance(answer, ReconcileTimeout) else Outcome.ERROR
            case Outcome():
                self.queue.add(request, rate_limited=True, priority=priority)
                return answer
            case Result(requeue_after=seconds) if seconds is not None and seconds > 0:
                self.queue.forget(request)
                self.queue.add(request, after=seconds, priority=_next_priority(answer, priority))
                return Outcome.REQUEUE_AFTER
            case Result(requeue=True):
                next_priority = _next_priority(answer, priority)
                self.queue.add(request, rate_limited=True, priority=next_priority)
                return Outcome.REQUEUE
            case Result():
                self.queue.forget(request)
                return Outcome.SUCCESS

    def _log_failure(self, request: Request, error: Exception, consequence: str) -> None:
        # An API server's error explains itself; any other gets its traceback.
        expected = isinstance(error, KubeError | TerminalError | ReconcileTimeout)
        _log.error(
            "controller %s: reconcile of %s failed, %s: %s",
            *(self.name, request, consequence, error),
            exc_info=None if expected else error,
        )

    def _count_busy(self, change: int) -> None:
        self._busy += change
        self._metrics.busy(self._busy)


def _next_priority(result: Result, present: int) -> int:
    return present if result.priority is None else result.priority
