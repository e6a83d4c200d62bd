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
from typing import TYPE_CHECKING

from elasti.api.conditions import Reason, WakeCause
from elasti.api.defaults import cooldown_of
from elasti.api.names import FIELD_MANAGER, PAUSED_OBJECTS_ANNOTATION
from elasti.operator.handover import plan as plans
from elasti.operator.handover import requests
from elasti.operator.handover.children import drain_patch, is_drained, published_ports
from elasti.operator.handover.cluster_reader import ClusterReader
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.handover.execute import HandoverExecutor
from elasti.operator.handover.finalize import Finalizer
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.handover.machine import Park, State, derive, step
from elasti.operator.handover.observe import (
    ClusterSnapshot,
    Facts,
    Judgement,
    lacks_ports,
    observation_of,
    observe,
    partners_settled,
)
from elasti.operator.handover.plan import requeue_after
from elasti.operator.handover.ports import PortsExhausted, port_owner
from elasti.operator.handover.scale_conflicts import ScaleConflicts
from elasti.operator.handover.state import AWAKE, ServiceState
from elasti.operator.pacing import RateSpacer
from elasti.operator.report.conditions import Finding
from elasti.operator.report.status import absences, may_wait, status_of, status_patch
from elasti.operator.watch.targets import TargetWatcher, WatchedTarget, target_of
from kubeloop.controller.reconcile import Request, Result
from kubeloop.objects.core import SERVICES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.api.types import ElastiService, ElastiServiceStatus
    from elasti.operator.idleness.decide import Evidence
    from elasti.operator.leader import LeaderDependencies

_MAX_STEPS = 8


class Observer:
    """Observes ElastiServices. One for the leader.

    A snapshot is read; what it lacks is made (resolver ports, a turn to be woken); the records keep what
    they need of it; and `observe`, which is pure, says what is known.
    """

    def __init__(self, deps: LeaderDependencies, reader: ClusterReader) -> None:
        self._deps = deps
        self._reader = reader
        self._wakes_without_resolver = RateSpacer()

    async def observe(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> Facts:
        """Read everything, and judge it. Raises KubeError."""
        snapshot = await self._reader.read(es, state, watched)
        # Nothing waits from here on, so that no event falls between what was read and what is noted.
        if lacks_ports(snapshot):
            snapshot = self._with_ports(snapshot)
        if snapshot.service is not None:
            labels = snapshot.target.pod_labels if snapshot.target is not None else {}
            self._deps.pod_labels.put(snapshot.request, labels)
        state.note(snapshot)
        facts = self.judge(snapshot, state)
        if facts.lacks_loss_slot:
            self._reserve_loss_slot(facts, state)
            facts = self.judge(snapshot, state)
        return facts

    def judge(self, snapshot: ClusterSnapshot, state: ServiceState) -> Facts:
        """Observe again what was read before, after something that is remembered has changed."""
        request, settle = snapshot.request, self._deps.settings.engage_settle
        others = [other for other in self._deps.directory.sharing(request) if other != request]
        judgement = Judgement(
            self._deps.decisions.together(request),
            partners_settled(state, map(self._deps.states.find, others), snapshot.now, settle),
        )
        return observe(snapshot, state, self._deps.settings, judgement)

    def _with_ports(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Assign resolver ports; those that are published or reported already come first."""
        es, service = snapshot.es, snapshot.service
        assert service is not None
        owner = port_owner(es)
        self._deps.ports.claim(owner, published_ports(snapshot.slices, service))
        self._deps.ports.claim(owner, {p.port: p.resolver_port for p in es.status.resolver_ports})
        name = f"{snapshot.namespace}/{service.metadata.name}"
        wanted = [port.port for port in service.tcp_ports]
        try:
            ports = self._deps.ports.assign(owner, name, wanted, asyncio.get_running_loop().time())
        except PortsExhausted as error:
            found = (Finding(Reason.PORTS_EXHAUSTED, str(error)), *snapshot.findings)
            return dataclasses.replace(snapshot, ports={}, findings=found)
        return dataclasses.replace(snapshot, ports=ports)

    def _reserve_loss_slot(self, facts: Facts, state: ServiceState) -> None:
        state.handover.reserve_loss_slot(self._wakes_without_resolver.reserve(facts.now))
        lost = facts.resolvers_lost_for
        message = f"no resolver has been ready for {lost:.0f} s; the target is woken"
        self._deps.reporter.warning(facts.es, "NoResolver", message)


class ElastiServiceReconciler:
    """Reconciles ElastiServices."""

    def __init__(self, deps: LeaderDependencies) -> None:
        self._deps = deps
        self._directory = deps.directory
        self._states = deps.states
        self._ports = deps.ports
        self._writer = ElastiServiceWriter(deps)
        self._publisher = SlicePublisher(deps)
        self._conflicts = ScaleConflicts(deps)
        self._executor = HandoverExecutor(deps, self._publisher, self._conflicts)
        self._finalizer = Finalizer(deps, self._executor, self._publisher)
        self._targets = TargetWatcher(deps)
        self._reader = ClusterReader(deps, self._targets)
        self._observer = Observer(deps, self._reader)

    def wake(self, request: Request, client: str) -> None:
        """Traffic waits, this client's first: this target is being woken."""
        if (state := self._states.find(request)) is not None:
            state.requests.want_wake(self._deps.wall(), client=client)

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one ElastiService further. Raises KubeError."""
        es = self._deps.caches.elastiservices.find(*request)
        if es is None:
            self._forget(request)
            await self._write_quarantine()
            return None
        former = self._states.find(request)
        state = self._state_of(request, es)
        es = state.own_writes.newest_elastiservice(es)
        # Its handler may come after ours; what is reconciled must not be unknown there.
        self._directory.put(es)
        if former is not None and former.service != state.service:
            await self._leave_service(es.metadata.namespace, former)
        if not es.metadata.deletion_timestamp and not await self._writer.has_finalizer(es):
            return Result(requeue=True)
        state.requests.take_in(es.metadata.annotations, self._deps.wall())
        watched = await self._targets.watch(es, lambda _event: self._deps.enqueue(request))
        if es.metadata.deletion_timestamp:
            facts = await self._observer.observe(es, state, watched)
            pause = await self._finalizer.finalize(facts, state)
        else:
            facts = await self._converge(es, state, watched)
            due = await self._report(facts, state)
            lost_for = self._deps.caches.resolvers.lost_for()
            pause = requeue_after(
                facts, state, self._deps.settings, now=self._loop_time(), lost_for=lost_for
            )
            pause = min((one for one in (pause, due) if one is not None), default=None)
        return None if pause is None else Result(requeue_after=pause)

    # Beginning and end

    def _state_of(self, request: Request, es: ElastiService) -> ServiceState:
        """Return what is remembered; ports of what it no longer is, or names, are quarantined."""
        old = self._states.find(request)
        state = self._states.of(request, es.metadata.uid, es.spec.service)
        if state is not old:
            if old is not None:
                self._release_ports(old.uid)
            # Conditions end a first reconcile: whatever KubeElasti had left was adopted by then.
            state.listing.recall(legacy_checked=bool(es.status.conditions))
            noted = (es.metadata.annotations or {}).get(PAUSED_OBJECTS_ANNOTATION, "")
            state.autoscaler.recall(noted)
        state.aim_at(target_of(es))
        return state

    async def _leave_service(self, namespace: str, former: ServiceState) -> None:
        """Take the resolver out of a Service that is named no more: it would refuse what comes."""
        if self._directory.owner(namespace, former.service) is None:
            if is_drained(self._deps.caches.services.find(namespace, former.service)):
                services, patch = self._deps.client.resource(SERVICES), drain_patch(drained=False)
                await services.patch(former.service, patch, namespace=namespace)
            slices = self._reader.published(namespace, former.service, former)
            await self._publisher.remove(slices, former)

    def _release_ports(self, uid: str) -> None:
        for owner in self._ports.owners_of(uid):
            self._ports.release(owner, self._loop_time())

    def _forget(self, request: Request) -> None:
        if (state := self._states.find(request)) is not None:
            self._release_ports(state.uid)
        details = self._directory.get(request)
        self._directory.remove(request)
        if details is not None:
            for heir in self._directory.naming(details.namespace, details.spec.service):
                self._deps.enqueue(heir)
        self._states.forget(request)
        self._targets.leave(*request)

    # Converging

    async def _converge(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> Facts:
        facts = await self._observer.observe(es, state, watched)
        await self._put_companions(facts, state)
        for _ in range(_MAX_STEPS):
            if facts.service is None or facts.target is None or not facts.owned:
                if facts.drained and facts.owned:
                    await self._executor.set_drained(facts, state, drained=False)
                state.handover.suspend(None)
                return facts
            if state.handover.refused and not facts.slices and not facts.drained:
                # Nothing of ours is in the way; traffic goes wherever it went without us.
                state.handover.suspend(State.SERVE)
                return facts
            if self._conflicts.clear_up(facts, state):
                facts = self._observer.judge(facts, state)
            moved, wrote = await self._step(facts, state)
            if not moved and not wrote:
                return facts
            facts = await self._observer.observe(es, state, watched)
            if not moved:
                return facts
        return facts

    async def _put_companions(self, facts: Facts, state: ServiceState) -> None:
        """Make what everything else stands on: the ports in status, the private Service."""
        if state.handover.refused or facts.service is None:
            return
        await self._write_quarantine()
        await self._writer.publish_ports(facts, state)
        for write in plans.companions(facts):
            await self._executor.apply(write, facts, state)

    async def _write_quarantine(self) -> None:
        """Write down every freed port, before a status is written that does not name it."""
        if freed := frozenset(self._ports.unwritten):
            await self._deps.quarantine.note(freed)
            self._ports.unwritten -= freed

    async def _step(self, facts: Facts, state: ServiceState) -> tuple[bool, bool]:
        """Go one step and make it so; says whether the state changed, and whether anything else."""
        await self._executor.ask(facts, state)
        seen = observation_of(facts, state, self._deps.settings)
        is_new = state.current is None
        if is_new:
            # One that status has asleep was woken since: by what, and from when its cooldown runs, is
            # found out as for any wake-up.
            asleep = facts.es.status.asleep_since is not None
            state.enter(State.PROXY if asleep else derive(seen), "found so")
        before = state.current or derive(seen)
        current, why = step(before, seen)
        if current is not before:
            if current is State.ENGAGING:
                why = facts.decision.reason
            why = await self._leave(facts, state, to=current, why=why)
            state.enter(current, why)
            self._deps.reporter.moved(facts.es, before, current, why)
        writes = plans.plan(current, facts, state)
        for write in writes:
            await self._executor.apply(write, facts, state)
        listed = bool(state.listing.listed)
        state.handover.note_step(self._loop_time(), listed=listed, at_zero=facts.at_zero)
        if state.current in AWAKE and not facts.at_zero:
            state.requests.note_awake()
        elif state.current is State.PROXY and facts.at_zero:
            # Not where it is only found asleep by its status: another replica may have woken it since.
            state.requests.note_asleep()
        # Most often the slices are as they should be, and publishing them writes nothing.
        only_published = all(isinstance(write, plans.PublishSlices) for write in writes)
        return (
            state.current is not before
            or state.handover.park is Park.REFUSED
            # The resolver got its ports a moment ago, and may have opened them by now.
            or (is_new and state.listing.probe_failures > 0),
            not only_published or state.own_writes.slices.is_pending,
        )

    async def _leave(self, facts: Facts, state: ServiceState, *, to: State, why: str) -> str:
        """Note what a change of state means; returns the reason, as events report it."""
        match state.current, to:
            case (
                State.ENGAGING | State.DRAINING | State.PARKING,
                State.RELEASING | State.WAKING,
            ):
                state.requests.note_attempt(self._deps.wall(), why)
                self._deps.metrics.park_ended(why)
            case (State.SERVE, State.ENGAGING) | (State.WAKING, State.PARKING):
                state.handover.decide_on(facts.target.view if facts.target else None)
            case State.PROXY, State.WAKING:
                manager, at = "", self._deps.wall()
                if not facts.at_zero:
                    manager, at = await self._conflicts.scaled_by_another(facts, state)
                origin = requests.wake_origin(facts, state, manager)
                state.requests.note_woken(at, origin)
                if origin.cause not in (None, WakeCause.REQUEST):
                    self._deps.metrics.woken(origin.cause)
                return origin.why
            case State.WAKING, State.RELEASING if state.requests.woken_at is not None:
                settled = self._loop_time() - min(state.handover.ready_since.values())
                self._deps.metrics.cold_start("release", settled)
            case State.SERVE | State.ENGAGING | State.DRAINING | State.RELEASING, State.PROXY:
                manager, _ = await self._conflicts.replicas_writer(facts)
                return f"{why} by {manager}" if manager not in ("", FIELD_MANAGER) else why
        return why

    # Reporting

    async def _report(self, facts: Facts, state: ServiceState) -> float | None:
        """Clear what was asked for and is done, and write what holds now, or say in how many seconds."""
        await self._writer.clear_ended(facts.es, state)
        evidence = self._deps.evidence(facts.request)
        if facts.es.spec.triggers and not evidence:
            self._deps.read_soon(facts.request)
        self._end_sleep_request(facts, state, evidence)
        state.conflict.calm(self._deps.wall())
        now = self._deps.clock.now()
        self._report_findings(facts, state)
        sleeps_at = self._deps.decisions.sleeps_at(facts.request)
        new = status_of(facts, state, evidence, now, sleeps_at=sleeps_at)
        fields = status_patch(facts.es.status, new, now)
        longest = may_wait(facts, state, new, self._deps.settings) if fields is not None else 0.0
        due = state.handover.withhold(self._loop_time(), longest)
        if fields is not None and not due:
            await self._write_quarantine()
            await self._writer.patch_status(facts.es, state, fields)
            state.requests.note_reported()
        if not due:
            self._note_wake_ended(state, new)
        self._deps.metrics.sleeps_at(facts.request, sleeps_at if new.sleeps_at else None)
        self._deps.metrics.released(facts.request, new)
        state.handover.note_judged(self._deps.decisions.judge(facts.request))
        await self._writer.clear_sleep_request(facts.es, state)
        return due or None

    def _note_wake_ended(self, state: ServiceState, status: ElastiServiceStatus) -> None:
        """A wake-up ends when pods take over, or the target is back at zero."""
        if state.requests.woken_at is None or state.current is State.WAKING:
            return
        found = status.last_wake
        if state.requests.cause is None and found is not None and found.cause is WakeCause.SCALED:
            self._deps.metrics.woken(found.cause)
        state.requests.note_released()

    def _end_sleep_request(
        self, facts: Facts, state: ServiceState, evidence: Sequence[Evidence]
    ) -> None:
        """End a request to sleep that is done or cannot be done."""
        refusal = requests.ending(
            facts,
            state,
            now=self._deps.wall(),
            cooldown=cooldown_of(facts.es.spec),
            triggers_active=any(item.is_active() for item in evidence),
        )
        if refusal is None:
            return
        state.requests.end_sleep()
        if refusal:
            self._deps.reporter.sleep_refused(facts.es, refusal)

    def _report_findings(self, facts: Facts, state: ServiceState) -> None:
        """Record an event for each finding that neither the last reconcile nor status reported."""
        shown = " ".join(old.message for old in facts.es.status.conditions)
        findings = (*absences(facts), *facts.findings)
        for finding in findings:
            if finding not in state.handover.reported and finding.message not in shown:
                self._deps.reporter.warning(facts.es, finding.reason, finding.message)
        state.handover.note_reported(frozenset(findings))

    # Time

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()
