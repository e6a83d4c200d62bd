"""Waking a target because traffic waits. Works on every replica, leader or not.

The reply is given after acting and says what is true: it comes from the API server, not from a
cache. Many targets are woken a few at a time, over few connections, and what follows waits
until all are. Namespaces take turns, so that one whose targets hang or are many delays no
other's (`FairSemaphore`). Callers that ask for the same target at the same time share one
answer. The autoscaler is resumed beside it and may fail; when the target was scaled is written into
status afterwards, without keeping the caller.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Self

import structlog

from elasti.api.conditions import WakeCause
from elasti.api.defaults import cooldown_of
from elasti.api.names import ELASTISERVICES, FIELD_MANAGER
from elasti.api.usage import is_end_noted
from elasti.api.wire import IncomingReply, WakeOutcome
from elasti.operator.handover.plan import wake_replicas
from elasti.operator.pacing import DeferredWork
from elasti.operator.report.status import wake_note
from elasti.operator.scale_handler import (
    PODS_ENDING,
    NotScalable,
    ScaleHandler,
    ScaleTarget,
    ScaleUp,
)
from kubeloop.aio.fairness import FairSemaphore
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client.errors import KubeError
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from elasti.operator.autoscalers.base import Autoscalers
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.report.events import EventReporter
    from elasti.operator.watch.directory import CRDDetails, Directory
    from elasti.operator.watch.targets import UpdateObjInfo
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.controller.reconcile import Request
    from kubeloop.objects.meta import JsonObject


_TIMEOUT = 10.0
_FRESH = 60.0
_LONGEST_WAIT = 0.5
_NOTES_AT_ONCE = 4

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(eq=False, kw_only=True)
class TargetWaker:
    """Wakes targets. Used as an `async with` block, which owns what is done after a reply.

    `known` is what is known of a target, most often by a cache: enough to write onto, never to answer by.
    """

    client: Client
    directory: Directory
    scales: ScaleHandler
    autoscalers: Autoscalers
    metrics: OperatorMetrics
    reporter: EventReporter
    clock: Clock
    is_synced: Callable[[], bool]
    known: Callable[[ScaleTarget], Awaitable[UpdateObjInfo | None]]

    def __post_init__(self) -> None:
        self._objects = self.client.resource(ELASTISERVICES)
        self._wake_slots = FairSemaphore()
        self._note_slots = FairSemaphore(at_once=_NOTES_AT_ONCE, most_late=8, per_late_group=2)
        self._deferred = DeferredWork()
        self._tasks = BackgroundTasks(on_error=_log_failure)
        self._under_way: dict[Request, asyncio.Task[IncomingReply]] = {}
        self._before: Callable[[Request, str], None] | None = None
        self._after: Callable[[Request], None] | None = None
        self._asked: Callable[[Request, bool], bool] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._deferred.flush()
        await self._tasks.__aexit__(*exc)

    def listen(
        self,
        *,
        before: Callable[[Request, str], None] | None,
        after: Callable[[Request], None] | None,
        asked: Callable[[Request, bool], bool] | None = None,
    ) -> None:
        """Tell the leader's reconciler, where it runs here, of every wake-up.

        `asked`: a target was scaled up, or was up already; says whether the leader reports the scale-up
        with what follows from it, so that no note of ours has to be written before.
        """
        self._before, self._after, self._asked = before, after, asked

    async def wait_calm(self) -> None:
        """Let a crowd that is being woken go first, for a moment at most.

        For reconciles, which each of those wake-ups asks for, and which would take the processor from
        the rest.
        """
        await self._wake_slots.wait_calm(_LONGEST_WAIT)

    async def wake(self, namespace: str, service: str, client: str = "") -> IncomingReply:
        """Wake what is behind a Service for this client, and say what happened.

        Never raises for the server's sake.
        """
        reply = await self._answer(namespace, service, client)
        self.metrics.wake_answered(reply.outcome.value)
        return reply

    async def _answer(self, namespace: str, service: str, client: str) -> IncomingReply:
        if not self.is_synced():
            return IncomingReply(WakeOutcome.UNAVAILABLE, "the operator is starting")
        details = self.directory.owner(namespace, service)
        if details is None:
            message = f"no ElastiService names Service {namespace}/{service}"
            return IncomingReply(WakeOutcome.NOT_FOUND, message)
        task = self._under_way.get(details.request)
        if task is None:
            task = self._tasks.start(self._act(details, client), name=f"wake {details.request}")
            self._under_way[details.request] = task
            task.add_done_callback(lambda _done: self._done(details.request))
        return await asyncio.shield(task)

    def _done(self, request: Request) -> None:
        self._under_way.pop(request, None)
        if not self._under_way:
            self._deferred.flush()

    async def _act(self, details: CRDDetails, client: str) -> IncomingReply:
        if self._before is not None:
            self._before(details.request, client)
        try:
            return await self._scale(details, client)
        finally:
            self._deferred.add(lambda: self._notify_leader(details.request))

    def _notify_leader(self, request: Request) -> None:
        if self._after is not None:
            self._after(request)

    async def _scale(self, details: CRDDetails, client: str) -> IncomingReply:
        ref = details.spec.scale_target_ref
        target = ScaleTarget.of(details.namespace, ref.api_version, ref.kind, ref.name)
        self._resume_autoscaler(details)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_TIMEOUT), self._wake_slots.slot(details.namespace):
                found = await self.known(target)
                outcome, view = await self.scales.scale_up(
                    target,
                    wake_replicas(details.spec, details.status),
                    seen=found.view if found is not None else None,
                    recreates=found is not None and found.recreates,
                )
        except (KubeError, NotScalable, TimeoutError) as error:
            self.metrics.scaled(details.request, details.spec, error)
            _log.warning("wake-up failed", target=str(target), error=str(error))
            return IncomingReply(WakeOutcome.UNAVAILABLE, f"{target} cannot be scaled: {error}")
        if outcome is ScaleUp.WAITS:
            # The leader scales it up when they are gone; it is told now, or by the caller's annotation.
            leads = self._asked is not None
            return IncomingReply(WakeOutcome.WAITS, f"{target}: {PODS_ENDING}", leads=leads)
        scaled = outcome is ScaleUp.SCALED
        if scaled:
            took = asyncio.get_running_loop().time() - began
            self.metrics.scaled(details.request, details.spec, None)
            self.metrics.woken(WakeCause.REQUEST)
            self.metrics.cold_start("scale", took)
            why = f"a request of {client or 'a client'}"
            self.reporter.woken(details.reference(), view.replicas, why)
        if self._asked is None or not self._asked(details.request, scaled):
            self._deferred.add(lambda: self._note_time(details, client, scaled=scaled))
        return IncomingReply(
            WakeOutcome.SCALING if scaled else WakeOutcome.ALREADY_UP,
            f"{target} has spec.replicas {view.replicas}",
            leads=self._asked is not None,
        )

    def _resume_autoscaler(self, details: CRDDetails) -> None:
        if (autoscaler := self.autoscalers.pausable(details.spec)) is not None:
            self._tasks.start(
                self.autoscalers.resume(details.namespace, autoscaler),
                name=f"resume the autoscaler of {details.request}",
            )

    def _note_time(self, details: CRDDetails, client: str, *, scaled: bool) -> None:
        """Write when it was last woken and for which request; what is up already is noted less often."""
        now = self.clock.now()
        if scaled:
            status = wake_note(now, client)
            if is_end_noted(details.status):
                # No replica leads, and another client scaled it to zero after the wake-up that is noted.
                del status["lastWake"]
        elif now.timestamp() - details.last_scaled_up > min(_FRESH, cooldown_of(details.spec) / 2):
            status = {"lastScaledUpTime": format_time(now)}
        else:
            return
        self._tasks.start(
            self._note(details, {"status": status}), name=f"note the wake-up of {details.request}"
        )

    async def _note(self, details: CRDDetails, body: JsonObject) -> None:
        async with self._note_slots.slot(details.namespace):
            await self._objects.subresource("status").patch(
                details.name,
                MergePatch(body),
                namespace=details.namespace,
                field_manager=FIELD_MANAGER,
            )


def _log_failure(name: str, error: BaseException) -> None:
    _log.warning("failed after a wake-up", task=name, error=str(error))
