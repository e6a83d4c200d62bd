"""The one way to wake a target, for every replica, the leader's plan and the finalizer.

A wake-up is counted once, by its cause: a request by the replica that scales the target up, any other
as the target leaves its sleep, and one of unknown cause when its end is reported. Each scale-up is an
Event. Status says when it was and what for: if this replica leads, its next report does;
otherwise a note is written, which waits until no target is being woken.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from typing import TYPE_CHECKING, Self

from elasti.api.conditions import Reason, WakeCause
from elasti.api.names import ELASTISERVICES, FIELD_MANAGER
from elasti.api.states import State
from elasti.api.usage import is_end_noted
from elasti.logger import get_logger
from elasti.operator.model.requests import WakeOrigin
from elasti.operator.model.state import AWAKE
from elasti.operator.model.targets import target_of
from elasti.operator.pacing import DeferredWork
from elasti.operator.report.status import wake_note
from elasti.operator.scale_handler import NotScalable, ScaleUp
from kubeloop.aio.fairness import FairSemaphore
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client.errors import KubeError, NotFound
from kubeloop.controller.reconcile import Request
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time, unix_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from elasti.api.types import ElastiService, ElastiServiceStatus
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.model.facts import Facts
    from elasti.operator.model.state import ServiceState, StateStore
    from elasti.operator.model.targets import ScaleTarget, ScaleView, UpdateObjInfo
    from elasti.operator.report.events import EventReporter
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.tracing import Tracer
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

_TIMEOUT = 10.0
_LONGEST_WAIT = 0.5
_FRESH = 60.0
_NOTES_AT_ONCE = 4

_log = get_logger(__name__)


def wake_origin(facts: Facts, state: ServiceState, manager: str) -> WakeOrigin:
    """Return why a sleeping target wakes; `manager`: who wrote its replicas last, if known."""
    asked = state.requests
    if asked.wake and asked.cause is WakeCause.MANUAL:
        return WakeOrigin(WakeCause.MANUAL, "", "a person asked for it")
    if asked.wake and asked.cause is WakeCause.DEPENDENCY:
        return WakeOrigin.dependency(asked.client, asked.wake_id)
    if asked.wake or (not facts.at_zero and manager == FIELD_MANAGER):
        return WakeOrigin.request(*((asked.client, asked.wake_id) if asked.wake else ()))
    if not facts.at_zero:
        cause, by = (WakeCause.SCALED, f" by {manager}") if manager else (None, "")
        return WakeOrigin(cause, manager, f"scaled up{by}")
    return _internal_cause(facts, state)


def doze_origin(facts: Facts, state: ServiceState) -> WakeOrigin:
    """Return why a dozing target wakes."""
    if state.requests.wake:
        return WakeOrigin(WakeCause.MANUAL, "", "a person asked for it")
    if facts.es.spec.sleep.mode == "Zero" or facts.es.metadata.deletion_timestamp:
        return WakeOrigin(WakeCause.MANUAL, "", "it should no longer doze")
    return _internal_cause(facts, state)


def _internal_cause(facts: Facts, state: ServiceState) -> WakeOrigin:
    if facts.es.spec.observes:
        return WakeOrigin(WakeCause.MANUAL, "", "spec.policy is Observe")
    if facts.es.spec.suspended:
        return WakeOrigin(WakeCause.MANUAL, "", "it is suspended")
    if state.handover.refused:
        return WakeOrigin(
            WakeCause.INVALID, "", "its configuration is invalid; see condition Ready"
        )
    if facts.lost_wake:
        return WakeOrigin(WakeCause.NO_RESOLVER, "", "no resolver holds its traffic")
    kept_by = facts.decision.obstacle.reason if facts.decision.obstacle is not None else ""
    return WakeOrigin(_CAUSES.get(kept_by, WakeCause.TRIGGER), "", facts.decision.reason)


_CAUSES: dict[str, WakeCause] = {
    Reason.OUTSIDE_PERIOD: WakeCause.SCHEDULE,
    Reason.SCHEDULED_AWAKE: WakeCause.SCHEDULE,
    Reason.KEPT_AWAKE: WakeCause.MANUAL,
    Reason.NEEDED_BY: WakeCause.DEPENDENCY,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """One wake-up of one ElastiService's target."""

    es: ElastiService
    minimum: int
    origin: WakeOrigin
    """Its cause is counted if this scales the target up; None: counted elsewhere, or it does not end a sleep."""
    recreates: bool = False
    """Of a planned one; of others it is found out."""
    planned: bool = False
    """The leader's own, which it reports itself, even if another writer was faster."""

    @property
    def request(self) -> Request:
        """The reconcile key."""
        return Request(self.es.metadata.namespace, self.es.metadata.name)


@dataclasses.dataclass(eq=False, kw_only=True)
class Waker:
    """Wakes targets. Used as an `async with` block, which owns what outlives a reply (`tasks`).

    `known` is what is known of a target, most often by a cache: enough to write onto, never to answer by.
    """

    client: Client
    scales: ScaleHandler
    metrics: OperatorMetrics
    reporter: EventReporter
    clock: Clock
    known: Callable[[ScaleTarget], Awaitable[UpdateObjInfo | None]]
    tracer: Tracer | None = None

    def __post_init__(self) -> None:
        self.deferred = DeferredWork()
        self.tasks = BackgroundTasks(on_error=_log_failure)
        self._slots = FairSemaphore()
        self._objects = self.client.resource(ELASTISERVICES)
        self._note_slots = FairSemaphore(at_once=_NOTES_AT_ONCE, most_late=8, per_late_group=2)
        self.states: StateStore | None = None  #: the leader's, if this replica leads
        self._enqueue: Callable[[Request], None] | None = None

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.deferred.flush()
        await self.tasks.__aexit__(*exc)

    # The leader

    @contextlib.contextmanager
    def leading(self, states: StateStore, enqueue: Callable[[Request], None]) -> Iterator[None]:
        """Note every wake-up from now on in the leader's records, and have it reconciled."""
        self.states, self._enqueue = states, enqueue
        try:
            yield
        finally:
            self.states = self._enqueue = None

    @property
    def leads(self) -> bool:
        """Whether this replica leads."""
        return self.states is not None

    def requested(self, request: Request, origin: WakeOrigin) -> WakeOrigin:
        """Traffic waits, or an ElastiService that depends on this one; return what the wake-up is named after."""
        if (state := self._known(request)) is None:
            return origin
        asked = state.requests
        asked.want_wake(self.clock.now().timestamp(), origin)
        known = asked.wake_id and asked.cause is origin.cause is WakeCause.REQUEST
        return WakeOrigin.request(asked.client, asked.wake_id) if known else origin

    def needed(self, request: Request, origin: WakeOrigin) -> None:
        """What depends on this one wakes: it must not fall asleep now, if that is under way."""
        state = self._known(request)
        if state is not None and state.current not in (None, *AWAKE):
            self.requested(request, origin)
            self.deferred.add(lambda: self.reconcile(request))

    def reconcile(self, request: Request) -> None:
        """If this replica leads, have it reconcile a target that was asked for."""
        if self._enqueue is not None:
            self._enqueue(request)

    def _known(self, request: Request) -> ServiceState | None:
        return self.states.find(request) if self.states is not None else None

    # Waking

    async def wait_calm(self) -> None:
        """Let a crowd that is being woken go first, for a moment at most.

        For reconciles, which each of those wake-ups asks for, and which would take the processor from
        the rest.
        """
        await self._slots.wait_calm(_LONGEST_WAIT)

    async def wake(self, wake_up: WakeUp) -> tuple[ScaleUp, ScaleView]:
        """Scale a target up, count it, and see that an Event and status say so.

        WAITS: pods that are ending are in the way. Raises KubeError, NotScalable and, unless
        the wake-up is planned, TimeoutError.
        """
        es, clock = wake_up.es, asyncio.get_running_loop().time
        began = clock()
        try:
            outcome, view = await self._scale_up(wake_up)
        except (KubeError, NotScalable, TimeoutError) as error:
            self.metrics.scaled(wake_up.request, es.spec, error)
            # That a target is gone is what its conditions say.
            if wake_up.planned and not isinstance(error, NotFound):
                self.reporter.not_woken(es, str(error))
            raise
        if outcome is ScaleUp.SCALED:
            self.metrics.scaled(wake_up.request, es.spec, None)
            cause, client, why, wake_id = wake_up.origin
            if cause is not None:
                self.metrics.woken(cause)
            if not wake_up.planned:
                self.metrics.cold_start("scale", clock() - began)
            if (state := self._known(wake_up.request)) and state.current is State.WAKING:
                asked, cause = state.requests, cause or state.requests.cause
                client, wake_id = client or asked.client, wake_id or asked.wake_id
            self.reporter.woken(es, view.replicas, why, cause, client, wake_id=wake_id)
        if outcome is not ScaleUp.WAITS:
            self._note(wake_up, scaled=outcome is ScaleUp.SCALED)
        return outcome, view

    async def _scale_up(self, wake_up: WakeUp) -> tuple[ScaleUp, ScaleView]:
        target, minimum = target_of(wake_up.es), wake_up.minimum
        if wake_up.planned:
            return await self.scales.scale_up(target, minimum, recreates=wake_up.recreates)
        async with asyncio.timeout(_TIMEOUT), self._slots.slot(target.namespace):
            found = await self.known(target)
            return await self.scales.scale_up(
                target,
                minimum,
                seen=found.view if found is not None else None,
                recreates=found is not None and found.recreates,
            )

    # Counting what others began

    def left_sleep(self, state: ServiceState, at: float, origin: WakeOrigin) -> WakeOrigin:
        """A target leaves its sleep; a request is counted by the replica that scales it up.

        Returns the origin, which has an id if it is traced.
        """
        if self.tracer is not None and not origin.wake_id:
            wake_id = secrets.token_hex(16)
            origin = origin._replace(wake_id=wake_id, why=f"{origin.why} (wake_id {wake_id})")
        state.requests.note_woken(at, origin)
        if origin.cause not in (None, WakeCause.REQUEST):
            self.metrics.woken(origin.cause)
        return origin

    def reported(self, es: ElastiService, state: ServiceState, status: ElastiServiceStatus) -> None:
        """Status was written: a wake-up ends when pods take over, or the target is back at zero."""
        if state.requests.woken_at is None or state.waking:
            return
        found = status.last_wake
        if state.requests.cause is None and found is not None and found.cause == WakeCause.SCALED:
            self.metrics.woken(found.cause)
        if self.tracer is not None and found is not None:
            since, service = state.requests.woken_at, f"{es.metadata.namespace}/{es.spec.service}"
            times, failed = (since, since + (found.seconds or 0.0)), state.current is State.PROXY
            about = {"name": es.metadata.name, "cause": found.cause, "client": found.client}
            self.tracer.wake(service, found.wake_id, times, failed=failed, **about)
        state.requests.note_released()

    # The note

    def _note(self, wake_up: WakeUp, *, scaled: bool) -> None:
        """Have the leader's report say it, or write it when there is time."""
        state = self._known(wake_up.request)
        if state is not None and state.current is not None:
            now = self.clock.now().timestamp()
            if scaled:
                state.requests.note_scaled_up(now)
            if scaled or wake_up.planned:
                state.requests.note_scale_written(now)
            if state.requests.scaled_at is not None:
                return
        if not wake_up.planned:
            self.deferred.add(lambda: self._write_note(wake_up, scaled=scaled))

    def _write_note(self, wake_up: WakeUp, *, scaled: bool) -> None:
        """Write when it was last woken and for which request; what is up already is noted less often."""
        now, es = self.clock.now(), wake_up.es
        last = unix_seconds(es.status.last_scaled_up_time)
        if scaled:
            cause, client, _, wake_id = wake_up.origin
            status = wake_note(now, cause or WakeCause.REQUEST, client, wake_id)
            if is_end_noted(es.status):
                # No replica leads, and another client scaled it to zero after the wake-up that is noted.
                del status["lastWake"]
        elif now.timestamp() - last > min(_FRESH, es.spec.cooldown / 2):
            status = {"lastScaledUpTime": format_time(now)}
        else:
            return
        name = f"note the wake-up of {wake_up.request}"
        self.tasks.start(self._patch(wake_up.request, {"status": status}), name=name)

    async def _patch(self, request: Request, body: JsonObject) -> None:
        namespace, name = request
        async with self._note_slots.slot(namespace):
            await self._objects.subresource("status").patch(
                name, MergePatch(body), namespace=namespace, field_manager=FIELD_MANAGER
            )


def _log_failure(name: str, error: BaseException) -> None:
    _log.warning("post-wake task failed", task=name, error=str(error))
