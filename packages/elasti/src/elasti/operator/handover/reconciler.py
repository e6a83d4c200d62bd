"""The reconciler: one ElastiService, observed and brought a step further.

It gets a key, observes, lets the state machine say where to go, and makes the writes that the
new state asks for; then it observes again, until nothing changes. Time enters only as "requeue
after": the settles of a hand-over, unanswered probes, a resolver that is lost.

One writer: the leader. Other replicas may wake a target, which shows here as replicas above
zero.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from elasti.api.conditions import Obstacle, TransitionReason, WakeCause
from elasti.api.names import FIELD_MANAGER, FINALIZER, PAUSED_OBJECTS_ANNOTATION
from elasti.api.states import State
from elasti.api.types import ElastiService
from elasti.operator.doze.dozer import Dozer
from elasti.operator.doze.machine import derive as derive_doze
from elasti.operator.handover import plan as plans
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.handover.execute import HandoverExecutor
from elasti.operator.handover.finalize import Finalizer
from elasti.operator.handover.machine import derive, step
from elasti.operator.handover.observe import can_have_ports, observation_of
from elasti.operator.handover.observer import Observer
from elasti.operator.handover.plan import requeue_after
from elasti.operator.handover.ports import PortBook, port_owner
from elasti.operator.handover.quarantine import PortQuarantine
from elasti.operator.handover.scale_conflicts import ScaleConflicts
from elasti.operator.handover.status_report import StatusReport
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.facts import Facts
from elasti.operator.model.state import AWAKE, Park, ServiceState, StateStore
from elasti.operator.model.targets import ScaleTarget, target_of, wake_replicas
from elasti.operator.observing.report import ObservationReport
from elasti.operator.report.audit import AuditAction, audit
from elasti.operator.report.events import EventReporter
from elasti.operator.settings import OperatorSettings
from elasti.operator.waking.waker import Waker, wake_origin
from elasti.operator.watch.caches import OperatorCaches
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.targets import TargetWatcher, WatchedTarget
from kubeloop.aio.clock import Clock
from kubeloop.controller.reconcile import Request, Result

_MAX_STEPS = 8


@dataclasses.dataclass(eq=False, kw_only=True)
class ElastiServiceReconciler:
    """Reconciles ElastiServices; `enqueue` asks for a reconcile that cannot wait."""

    caches: OperatorCaches
    directory: Directory
    states: StateStore
    ports: PortBook
    quarantine: PortQuarantine
    targets: TargetWatcher
    writer: ElastiServiceWriter
    observer: Observer
    executor: HandoverExecutor
    conflicts: ScaleConflicts
    waker: Waker
    finalizer: Finalizer
    status_report: StatusReport
    observation_report: ObservationReport
    settings: OperatorSettings
    clock: Clock
    metrics: OperatorMetrics
    reporter: EventReporter
    dozer: Dozer
    enqueue: Callable[[Request], None]

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one ElastiService further. Raises KubeError."""
        es = self.caches.elastiservices.find(*request)
        if es is None:
            self._forget(request)
            await self.quarantine.note_freed(self.ports)
            return None
        former = self.states.find(request)
        slept = former.handover.target if former is not None and _sleeps(es, former) else None
        state = self._state_of(request, es)
        es = state.own_writes.newest_elastiservice(es)
        if (es.spec.targets or es.status.targets) and not state.workers.is_recalled:
            # The cache of a new leader may be older than the record that the former one wrote last.
            es = await self.writer.read(es, state)
            state.workers.recall(es.metadata.namespace, es.status.targets)
        # Not only once: the cache of a new leader may be older than what the former one wrote last.
        began = asyncio.get_running_loop().time()
        state.doze.recall(es.status.doze, derive_doze(es.status.doze), began)
        # Its handler may come after ours; what is reconciled must not be unknown there.
        self.directory.put(es)
        if slept is not None and slept != state.handover.target:
            await self._owe(slept, es, state)
        if former is not None and former.service != state.service:
            await self.finalizer.leave_service(es.metadata.namespace, former)
        if (
            not es.metadata.deletion_timestamp
            and not es.spec.observes
            and not await self.writer.has_finalizer(es)
        ):
            return Result(requeue=True)
        if not es.metadata.deletion_timestamp:
            await self.writer.guard(es, state)
        now = self.clock.now().timestamp()
        state.requests.take_in(es.metadata.annotations, now, es.status)
        watched = await self.targets.watch(es, lambda _event: self.enqueue(request))
        if es.metadata.deletion_timestamp:
            facts = await self.observer.observe(es, state, watched)
            pause = await self.finalizer.finalize(facts, state)
        elif es.spec.observes:
            pause = await self._observe(es, state, watched)
        else:
            state.end_observing()
            facts = await self._converge(es, state, watched)
            pause = await self._report(facts, state)
        return None if pause is None else Result(requeue_after=pause)

    async def _report(self, facts: Facts, state: ServiceState) -> float | None:
        """Report a step, and return after how many seconds the next one is due; None for never."""
        await self.executor.note_held(facts, state)
        due = await self.status_report.report(facts, state)
        pause = requeue_after(
            facts,
            state,
            self.settings,
            now=asyncio.get_running_loop().time(),
            lost_for=self.caches.resolvers.lost_for(),
        )
        pauses = (pause, due, state.doze.pause)
        return min((one for one in pauses if one is not None), default=None)

    async def _observe(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> float | None:
        """Report on one that is only observed; one that we still hold is woken and let go first."""
        if FINALIZER in (es.metadata.finalizers or ()):
            facts = await self._converge(es, state, watched)
            pause = await self._report(facts, state)
            # Once let go, it is not touched again: what cannot be read now may be at zero, and requests be small.
            owed = facts.kind_unusable or state.doze.status is not None or state.workers.owed
            if state.current in (None, State.SERVE) and not owed:
                pause = await self.finalizer.finalize(facts, state)
                if pause is None:
                    self._release_ports(es.metadata.uid)
            return pause
        facts = await self.observer.observe(es, state, watched)
        whole = facts.target is not None and facts.service is not None
        state.handover.suspend(State.SERVE if whole else None)
        return await self.observation_report.report(facts, state)

    # Beginning and end

    def _state_of(self, request: Request, es: ElastiService) -> ServiceState:
        """Return what is remembered; ports of what it no longer is, or names, are quarantined."""
        old = self.states.find(request)
        state = self.states.of(request, es.metadata.uid, es.spec.service)
        if state is not old:
            if old is not None:
                self._release_ports(old.uid)
            # Conditions end a first reconcile: whatever KubeElasti had left was adopted by then.
            state.listing.recall(legacy_checked=bool(es.status.conditions))
            noted = (es.metadata.annotations or {}).get(PAUSED_OBJECTS_ANNOTATION, "")
            state.autoscaler.recall(noted)
        state.aim_at(target_of(es))
        return state

    async def _owe(self, slept: ScaleTarget, es: ElastiService, state: ServiceState) -> None:
        """Note a target that slept when the spec was aimed at another one: it is woken as a worker is."""
        if slept not in self.directory.targets():
            state.workers.note_due({slept: wake_replicas(es.spec, es.status)})
            await self.writer.note_workers(es, state)

    def _release_ports(self, uid: str) -> None:
        for owner in self.ports.owners_of(uid):
            self.ports.release(owner, asyncio.get_running_loop().time())

    def _forget(self, request: Request) -> None:
        if (state := self.states.find(request)) is not None:
            self._release_ports(state.uid)
        details, concerned = self.directory.get(request), self.directory.graph.concerned(request)
        self.directory.remove(request)
        for other in concerned:
            self.enqueue(other)
        if details is not None:
            for heir in self.directory.naming(details.namespace, details.spec.service):
                self.enqueue(heir)
        self.states.forget(request)
        self.targets.leave(*request)

    # Converging

    async def _converge(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> Facts:
        facts = await self.observer.observe(es, state, watched)
        # Before the hand-over: a request to wake is done when it sees pods.
        await self.dozer.run(facts, state)
        await self._put_companions(facts, state)
        for _ in range(_MAX_STEPS):
            if facts.service is None or facts.target is None or not facts.owned:
                if facts.drained and facts.owned:
                    await self.executor.set_drained(facts, state, drained=False)
                state.handover.suspend(None)
                for write in plans.workers(None, facts, state):
                    await self.executor.apply(write, facts, state)
                return facts
            if state.handover.refused and not facts.slices and not facts.drained:
                # Nothing of ours is in the way; traffic goes wherever it went without us. Our slice may have gone
                # with its Service while the target slept.
                woken = facts.es.status.asleep_since is None or not facts.at_zero
                if not woken:
                    minimum = wake_replicas(facts.es.spec, facts.es.status)
                    woken = await self.executor.wake(facts, state, minimum)
                state.handover.suspend(State.SERVE if woken else None)
                # Without a plan from here on, a resume that failed before would never be retried.
                for write in (
                    *plans.resumes(State.SERVE, facts, state),
                    *plans.workers(State.SERVE, facts, state),
                ):
                    await self.executor.apply(write, facts, state)
                return facts
            if self.conflicts.clear_up(facts, state):
                facts = self.observer.judge(facts, state)
            moved, wrote = await self._step(facts, state)
            if not moved and not wrote:
                return facts
            facts = await self.observer.observe(es, state, watched)
            if not moved:
                return facts
        return facts

    async def _put_companions(self, facts: Facts, state: ServiceState) -> None:
        """Make what everything else stands on: the ports in status, the private Service."""
        if facts.service is None:
            return
        refused = state.handover.refused
        if not refused:
            await self.quarantine.note_freed(self.ports)
            self._report_contested(facts.es)
            await self.writer.publish_ports(facts, state)
        elif facts.private is None or not can_have_ports(facts.service):
            return
        # A mirror that is there follows its Service, so that it is right when the refusal ends.
        for write in plans.companions(facts):
            await self.executor.apply(write, facts, state)

    def _report_contested(self, es: ElastiService) -> None:
        for port in es.status.resolver_ports:
            if self.ports.is_of_another(port_owner(es), port.resolver_port):
                message = (
                    f"status names resolver port {port.resolver_port}, which belongs to another ElastiService;"
                    " it is corrected; make sure that no other program writes the status of ElastiServices"
                )
                self.reporter.port_contested(es, message)

    async def _step(self, facts: Facts, state: ServiceState) -> tuple[bool, bool]:
        """Go one step and make it so; says whether the state changed, and whether anything else."""
        await self.executor.ask(facts, state)
        seen = observation_of(facts, state, self.settings)
        is_new = state.current is None
        if is_new:
            # One that status has asleep was woken since: by what, and from when its cooldown runs, is
            # found out as for any wake-up.
            asleep = facts.es.status.asleep_since is not None
            state.enter(State.PROXY if asleep else derive(seen), "found so")
        before = state.current or derive(seen)
        current, reason = step(before, seen)
        if reason is not None:
            reason, why = await self._leave(facts, state, to=current, reason=reason)
            state.enter(current, why)
            graph = self.directory.graph
            # One that leaves its park may serve, and no event says so.
            above = graph.dependents(facts.request) if before is State.PARKING else ()
            for other in (*graph.dependencies(facts.request), *above):
                self.enqueue(other)
            self.reporter.moved(facts.es, before, current, reason, why)
        writes = plans.plan(current, facts, state)
        for write in writes:
            await self.executor.apply(write, facts, state)
        listed = bool(state.listing.listed)
        state.handover.note_step(
            asyncio.get_running_loop().time(), listed=listed, at_zero=facts.at_zero
        )
        if state.current in AWAKE and not facts.at_zero:
            state.requests.note_awake()
        elif state.current is State.PROXY and facts.at_zero:
            # Not if only its status says that it sleeps: another replica may have woken it since.
            state.requests.note_asleep(self.clock.now().timestamp())
        # Most often the slices are as they should be, and publishing them writes nothing.
        only_published = all(isinstance(write, plans.PublishSlices) for write in writes)
        return (
            state.current is not before
            or state.handover.park is Park.REFUSED
            # The resolver got its ports a moment ago, and may have opened them by now.
            or (is_new and state.listing.probe_failures > 0),
            not only_published or state.own_writes.slices.is_pending,
        )

    async def _leave(
        self, facts: Facts, state: ServiceState, *, to: State, reason: TransitionReason
    ) -> tuple[TransitionReason, str]:
        """Note what a change of state means; return its reason, and the words for it."""
        match state.current, to:
            case (State.ENGAGING | State.DRAINING | State.PARKING, State.RELEASING | State.WAKING):
                detail = state.handover.park_problem
                why = f"{reason.text}: {detail}" if detail else reason.text
                state.requests.note_attempt(self.clock.now().timestamp(), Obstacle(reason, why))
                self.metrics.park_ended(reason)
                return reason, why
            case (State.SERVE, State.ENGAGING) | (State.WAKING, State.PARKING):
                state.handover.decide_on(facts.target.view if facts.target else None)
                if to is State.ENGAGING:
                    return reason, facts.decision.reason
            case State.PROXY, State.WAKING:
                manager, at = "", self.clock.now().timestamp()
                if not facts.at_zero:
                    manager, at = await self.conflicts.scaled_by_another(facts, state)
                origin = wake_origin(facts, state, manager)
                origin = self.waker.left_sleep(state, at, origin)
                scaled = origin.cause in (None, WakeCause.SCALED)
                if scaled:
                    audit(AuditAction.WAKE, facts.es, cause=WakeCause.SCALED, actor=origin.client)
                return TransitionReason.SCALED_UP if scaled else TransitionReason.WANTED, origin.why
            case State.WAKING, State.RELEASING if (
                state.requests.woken_at is not None and state.handover.ready_since
            ):
                settled = asyncio.get_running_loop().time() - min(
                    state.handover.ready_since.values()
                )
                self.metrics.cold_start("release", settled)
                await self.executor.note_waited(facts, state)
            case State.SERVE | State.ENGAGING | State.DRAINING | State.RELEASING, State.PROXY:
                manager, _ = await self.conflicts.replicas_writer(facts)
                audit(AuditAction.SLEEP, facts.es, cause=WakeCause.SCALED, actor=manager)
                if manager not in ("", FIELD_MANAGER):
                    return reason, f"{reason.text} by {manager}"
        return reason, reason.text


def _sleeps(es: ElastiService, state: ServiceState) -> bool:
    at_zero = (State.PARKING, State.PROXY, State.WAKING)
    return es.status.asleep_since is not None or state.current in at_zero
