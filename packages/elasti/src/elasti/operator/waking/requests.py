"""Answers wake requests: traffic waits. Works on every replica, leader or not.

The reply is given after acting and says what is true: it comes from the API server, not from a
cache. Many targets are woken a few at a time, over few connections, and what follows waits
until all are. Namespaces take turns, so that one whose targets hang or are many delays no
other's (`FairSemaphore`). Callers that ask for the same target at the same time share one
answer. The autoscaler is resumed beside it and may fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Collection
from typing import Self

import msgspec

from elasti.api.conditions import WakeCause
from elasti.api.defaults import DEPENDENCY_TIMEOUT
from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from elasti.logger import get_logger
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.requests import WakeOrigin
from elasti.operator.model.targets import PODS_ENDING, target_of, wake_replicas
from elasti.operator.scale_handler import NotScalable, ScaleUp
from elasti.operator.waking.waker import Waker, WakeUp
from elasti.operator.watch.directory import CRDDetails, Directory
from kubeloop.client.errors import KubeError
from kubeloop.controller.reconcile import Request

# A resolver reads replies of at most 64 KiB.
_MOST_PARTS = 64

_log = get_logger(__name__)

_LONGEST_WAIT = 300.0
"""Seconds after which a wait for dependencies is forgotten; resolvers ask every replica more often than that."""


@dataclasses.dataclass(eq=False, kw_only=True)
class WakeRequests:
    """Wakes what is behind Services. Used as an `async with` block, as the waker is."""

    waker: Waker
    directory: Directory
    autoscalers: Autoscalers
    metrics: OperatorMetrics
    is_synced: Callable[[], bool]
    serves: Callable[[str, str, Collection[str]], bool]

    def __post_init__(self) -> None:
        self._under_way: dict[Request, asyncio.Task[IncomingReply]] = {}
        self._waits: dict[Request, float] = {}

    async def __aenter__(self) -> Self:
        await self.waker.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.waker.__aexit__(*exc)

    async def wake(
        self, namespace: str, service: str, client: str = "", wake_id: str = ""
    ) -> IncomingReply:
        """Wake what is behind a Service for this client, and say what happened.

        API errors become an UNAVAILABLE reply; nothing is raised.
        """
        reply = await self._answer(namespace, service, WakeOrigin.request(client, wake_id))
        self.metrics.wake_answered(reply.outcome.value)
        return reply

    async def _answer(self, namespace: str, service: str, origin: WakeOrigin) -> IncomingReply:
        if not self.is_synced():
            return IncomingReply(WakeOutcome.UNAVAILABLE, "the operator is starting")
        details = self.directory.owner(namespace, service)
        if details is None:
            message = f"no ElastiService names Service {namespace}/{service}"
            return IncomingReply(WakeOutcome.NOT_FOUND, message)
        if details.spec.observes and not details.is_held:
            message = f"ElastiService {details.request} is only observed (spec.policy)"
            return IncomingReply(WakeOutcome.NOT_FOUND, message)
        return await asyncio.shield(self._start(details, origin))

    def _start(self, details: CRDDetails, origin: WakeOrigin) -> asyncio.Task[IncomingReply]:
        """Wake it, unless that is under way."""
        task = self._under_way.get(details.request)
        if task is None:
            task = self.waker.tasks.start(
                self._act(details, origin), name=f"wake {details.request}"
            )
            self._under_way[details.request] = task
            task.add_done_callback(lambda _done: self._done(details.request))
        return task

    def _done(self, request: Request) -> None:
        self._under_way.pop(request, None)
        if not self._under_way:
            self.waker.deferred.flush()
            now = self.waker.clock.now().timestamp()
            self._waits = {one: at for one, at in self._waits.items() if now - at < _LONGEST_WAIT}

    async def _act(self, details: CRDDetails, origin: WakeOrigin) -> IncomingReply:
        origin = self.waker.requested(details.request, origin)
        self._resume_autoscaler(details)
        awaited = self._awaited(details.request)
        needed = WakeOrigin.dependency(details.name, origin.wake_id)
        for one in self.directory.needed(details.request):
            self.waker.needed(one.request, needed)
        for one in awaited:
            self._start(one, needed)
        try:
            if awaited and not self._is_late(details):
                # The leader scales it up when they serve, or when it has waited for long enough. Without a
                # leader, a later request does.
                names = ", ".join(one.name for one in awaited)
                message = f"{details.request} waits for {names}"
                reply = IncomingReply(WakeOutcome.WAITS, message, leads=self.waker.leads)
            else:
                reply = await self._scale(details, origin)
            return msgspec.structs.replace(
                reply, parts=self._parts(details), wake_id=origin.wake_id
            )
        finally:
            self.waker.deferred.add(lambda: self.waker.reconcile(details.request))

    def _is_late(self, details: CRDDetails) -> bool:
        """Whether it has waited for its dependencies for long enough, as far as this replica knows."""
        now = self.waker.clock.now().timestamp()
        since = self._waits.get(details.request, -math.inf)
        woken = details.last_scaled_up + 1.0 > since  # status has whole seconds
        if woken or not 0.0 <= now - since < _LONGEST_WAIT:
            since = self._waits[details.request] = now
        return now - since >= DEPENDENCY_TIMEOUT

    def _awaited(self, request: Request) -> tuple[CRDDetails, ...]:
        return tuple(self.directory.awaited(request, self.serves, self.waker.states))

    def _parts(self, details: CRDDetails) -> tuple[WakePart, ...]:
        """Return an ElastiService and what wakes with it, each after what it needs; nothing if that is nothing."""
        places: dict[Request, int] = {}
        parts: list[WakePart] = []

        def add(part: CRDDetails) -> None:
            needs = []
            for found in self.directory.needed(part.request):
                if found.request not in places and len(parts) < _MOST_PARTS:
                    add(found)
                if found.request in places:
                    needs.append(places[found.request])
            places[part.request] = len(parts)
            parts.append(WakePart(part.name, part.spec.service, tuple(needs)))

        add(details)
        return tuple(parts) if len(parts) > 1 else ()

    async def _scale(self, details: CRDDetails, origin: WakeOrigin) -> IncomingReply:
        es = details.reference()
        counted = origin.cause is WakeCause.DEPENDENCY and self.waker.leads
        wake_up = WakeUp(
            es=es,
            minimum=wake_replicas(es.spec, es.status),
            # Of what depends on it, the leader counts as the target leaves its sleep.
            origin=origin._replace(cause=None) if counted else origin,
        )
        target = target_of(es)
        try:
            outcome, view = await self.waker.wake(wake_up)
        except (KubeError, NotScalable, TimeoutError) as error:
            problem = str(error) or "the API server did not answer in time"
            _log.warning("wake-up failed", target=str(target), error=problem)
            return IncomingReply(WakeOutcome.UNAVAILABLE, f"{target} cannot be scaled: {problem}")
        leads = self.waker.leads
        if outcome is ScaleUp.WAITS:
            # The leader scales it up when they are gone; it knows by now, or by the caller's annotation.
            return IncomingReply(WakeOutcome.WAITS, f"{target}: {PODS_ENDING}", leads=leads)
        answer = WakeOutcome.SCALING if outcome is ScaleUp.SCALED else WakeOutcome.ALREADY_UP
        return IncomingReply(answer, f"{target} has spec.replicas {view.replicas}", leads=leads)

    def _resume_autoscaler(self, details: CRDDetails) -> None:
        if (autoscaler := self.autoscalers.pausable(details.spec)) is not None:
            self.waker.tasks.start(
                self.autoscalers.resume(details.namespace, autoscaler),
                name=f"resume the autoscaler of {details.request}",
            )
