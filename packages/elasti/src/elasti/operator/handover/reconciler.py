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
from typing import TYPE_CHECKING, Any, assert_never

import structlog

from elasti.api.defaults import cooldown_of
from elasti.api.names import FIELD_MANAGER
from elasti.operator.handover import plan as plans
from elasti.operator.handover import sleep_request
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter, paused_objects
from elasti.operator.handover.machine import Activity, Park, State, derive, step
from elasti.operator.handover.observe import Observer, observation_of
from elasti.operator.handover.plan import requeue_after
from elasti.operator.handover.scale_conflicts import ScaleConflicts
from elasti.operator.idleness.decide import Verdict
from elasti.operator.idleness.decisions import TriggerJudgement, trigger_health
from elasti.operator.report.status import absences, status_of, status_patch
from elasti.operator.watch.targets import target_of
from kubeloop.client.errors import AlreadyExists, KubeError
from kubeloop.controller.reconcile import Request, Result
from kubeloop.objects.core import SERVICES, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.api.types import ElastiService
    from elasti.operator.handover.execute import HandoverExecutor
    from elasti.operator.handover.finalize import Finalizer
    from elasti.operator.handover.observe import ClusterReader, Facts
    from elasti.operator.handover.plan import Write
    from elasti.operator.handover.ports import PortBook
    from elasti.operator.handover.quarantine import PortQuarantine
    from elasti.operator.handover.state import ServiceState, StateStore
    from elasti.operator.idleness.decide import Evidence
    from elasti.operator.idleness.decisions import Decisions
    from elasti.operator.pacing import RateSpacer
    from elasti.operator.report.crd_check import DefinitionCheck
    from elasti.operator.report.status import EventReporter
    from elasti.operator.report.warnings import ServiceWarnings
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.watch.directory import Directory
    from elasti.operator.watch.informer_manager import Scope
    from elasti.operator.watch.resolvers import Resolvers
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerDeps:
    """The collaborators of one tenure."""

    client: Client
    elastiservices: Scope[ElastiService]
    directory: Directory
    states: StateStore
    cluster_reader: ClusterReader
    handover: HandoverExecutor
    decisions: Decisions
    ports: PortBook
    resting: PortQuarantine
    scales: ScaleHandler
    resolvers: Resolvers
    finalizer: Finalizer
    warnings: ServiceWarnings
    definition: DefinitionCheck
    reporter: EventReporter
    pacer: RateSpacer
    evidence: Callable[[Request], Sequence[Evidence]]
    settings: OperatorSettings
    clock: Clock


_MAX_STEPS = 8

_log = structlog.get_logger(__name__)


class ElastiServiceReconciler:
    """Reconciles ElastiServices; `enqueue` asks for another look at one."""

    def __init__(self, parts: ReconcilerDeps, enqueue: Callable[[Request], None]) -> None:
        self._deps = parts
        self._enqueue = enqueue
        self._writer = ElastiServiceWriter(parts.client, parts.clock)
        self._observer = Observer(parts, enqueue)
        self._conflicts = ScaleConflicts(parts)
        self._services = parts.client.resource(SERVICES, Service)

    def wake(self, request: Request) -> None:
        """Traffic waits: this target is being woken."""
        memory = self._deps.states.find(request)
        if memory is not None:
            memory.wake = True
            memory.last_traffic = self._wall()
            sleep_request.supersede(memory)

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one ElastiService further. Raises KubeError."""
        es = self._deps.elastiservices.find(*request)
        if es is None:
            self._forget(request)
            await self._write_quarantine()
            return None
        former = self._deps.states.find(request)
        memory = self._state_of(request, es)
        es = self._writer.newest(es, memory)
        # Its handler may come after ours; what is reconciled must not be unknown there.
        self._deps.directory.put(es)
        if former is not None and former.service != memory.service:
            await self._leave_service(es.metadata.namespace, former)
        if es.metadata.deletion_timestamp:
            return await self._finalize(es, memory)
        if not await self._writer.has_finalizer(es):
            return Result(requeue=True)
        facts = await self._converge(es, memory)
        await self._writer.clear_wake_request(es, memory)
        await self._writer.clear_paused(es, memory)
        self._end_request(facts, memory)
        await self._report(facts, memory)
        await self._writer.clear_sleep_request(es, memory)
        pause = requeue_after(
            facts,
            memory,
            self._deps.settings,
            now=self._loop_time(),
            lost_for=self._deps.resolvers.lost_for(),
        )
        return None if pause is None else Result(requeue_after=pause)

    # Beginning and end

    def _state_of(self, request: Request, es: ElastiService) -> ServiceState:
        """Return what is remembered; ports of what it no longer is, or names, come to rest."""
        old = self._deps.states.find(request)
        memory = self._deps.states.of(request, es.metadata.uid, es.spec.service)
        if memory is not old:
            if old is not None:
                self._release_ports(old.uid)
            # Conditions end a first reconcile: whatever KubeElasti had left was adopted by then.
            memory.legacy_checked = bool(es.status.conditions)
            memory.keda_paused = paused_objects(es)
        memory.set_target(target_of(es))
        return memory

    async def _leave_service(self, namespace: str, former: ServiceState) -> None:
        """Take the resolver out of a Service that is named no more: it would refuse what comes."""
        if self._deps.directory.owner(namespace, former.service) is None:
            slices = self._deps.cluster_reader.published(namespace, former.service, former)
            await self._deps.handover.remove(slices, former)

    def _release_ports(self, uid: str) -> None:
        for owner in self._deps.ports.owners_of(uid):
            self._deps.ports.release(owner, self._loop_time())

    def _forget(self, request: Request) -> None:
        memory = self._deps.states.find(request)
        if memory is not None:
            self._release_ports(memory.uid)
        details = self._deps.directory.get(request)
        self._deps.directory.remove(request)
        if details is not None:
            for heir in self._deps.directory.naming(details.namespace, details.spec.service):
                self._enqueue(heir)
        self._deps.states.forget(request)
        self._deps.finalizer.forget(request)

    async def _finalize(self, es: ElastiService, memory: ServiceState) -> Result | None:
        facts = await self._observer.observe(es, memory)
        pause = await self._deps.finalizer.finalize(facts, memory)
        return None if pause is None else Result(requeue_after=pause)

    # Converging

    async def _converge(self, es: ElastiService, memory: ServiceState) -> Facts:
        facts = await self._observer.observe(es, memory)
        await self._put_companions(facts, memory)
        for _ in range(_MAX_STEPS):
            if facts.service is None or facts.target is None or not self._observer.owns(es):
                memory.state = None
                return facts
            if memory.refused and not facts.slices:
                # Nothing of ours is in the way; traffic goes wherever it went without us.
                memory.state = State.SERVE
                return facts
            if self._conflicts.clear_up(facts, memory):
                facts = await self._observer.observe(es, memory)
            moved, wrote = await self._step(facts, memory)
            if not moved and not wrote:
                return facts
            facts = await self._observer.observe(es, memory)
            if not moved:
                return facts
        return facts

    async def _put_companions(self, facts: Facts, memory: ServiceState) -> None:
        """Make what everything else stands on: the ports in status, the private Service."""
        if memory.refused or facts.service is None:
            return
        await self._write_quarantine()
        await self._writer.publish_ports(facts, memory)
        for write in plans.companions(facts):
            await self._apply(write, facts, memory)

    async def _write_quarantine(self) -> None:
        """Write down every freed port, before a status is written that does not name it."""
        if freed := frozenset(self._deps.ports.unwritten):
            await self._deps.resting.note(freed)
            self._deps.ports.unwritten -= freed

    async def _step(self, facts: Facts, memory: ServiceState) -> tuple[bool, bool]:
        """Go one step and make it so; says whether the state changed, and whether anything else."""
        await self._ask(facts, memory)
        seen = observation_of(facts, memory, self._deps.settings)
        is_new = memory.state is None
        if is_new:
            memory.enter(derive(seen), "found so")
        before = memory.state or derive(seen)
        state, why = step(before, seen)
        if state is not before:
            if state is State.ENGAGING:
                why = facts.decision.reason
            await self._leave(facts, memory, to=state, why=why)
            memory.enter(state, why)
            self._deps.reporter.moved(facts.es, state, why)
        writes = plans.plan(state, facts, memory)
        for write in writes:
            await self._apply(write, facts, memory)
        self._note_outcome(facts, memory)
        # Most often the slices are as they should be, and publishing them is only a look.
        only_published = all(isinstance(write, plans.PublishSlices) for write in writes)
        return (
            memory.state is not before
            or memory.park is Park.REFUSED
            # Its ports were told to the resolver a moment ago, which may have opened them by now.
            or (is_new and memory.probe_failures > 0),
            not only_published or memory.slices.is_pending,
        )

    async def _leave(self, facts: Facts, memory: ServiceState, *, to: State, why: str) -> None:
        match memory.state, to:
            case State.ENGAGING | State.PARKING, State.RELEASING | State.WAKING:
                memory.last_attempt, memory.attempt_ended = self._wall(), why
            case State.SERVE, State.ENGAGING:
                memory.decided_on = facts.target.view if facts.target else None
            case State.WAKING, State.PARKING:
                memory.decided_on = facts.target.view if facts.target else None
            case State.PROXY, State.WAKING if not facts.at_zero:
                await self._conflicts.scaled_by_another(facts, memory)

    def _note_outcome(self, facts: Facts, memory: ServiceState) -> None:
        if memory.state is State.ENGAGING and memory.listed and memory.engaged_at is None:
            memory.engaged_at = self._loop_time()
        awake = memory.state in (State.SERVE, State.RELEASING, State.WAKING)
        if awake and not facts.at_zero:
            memory.wake = False
            memory.loss_slot = None
        if awake:
            memory.parked_here = False

    async def _apply(self, write: Write, facts: Facts, memory: ServiceState) -> None:
        match write:
            case plans.PutPrivate(service, exists):
                await self._put_private(service, exists=exists)
            case plans.PublishSlices():
                if not memory.refused:
                    await self._deps.handover.publish(facts, memory)
            case plans.RemoveSlices():
                await self._deps.handover.remove(facts.slices, memory)
            case plans.Wake(minimum):
                await self._wake(facts, memory, minimum)
            case plans.ParkTarget():
                await self._park(facts, memory)
            case plans.ResumeKeda(name):
                await self._deps.handover.resume_keda(facts, memory, name)
            case _:
                assert_never(write)

    async def _put_private(self, service: Service, *, exists: bool) -> None:
        if exists:
            await self._services.replace(service, field_manager=FIELD_MANAGER)
            return
        try:
            await self._services.create(service, field_manager=FIELD_MANAGER)
        except AlreadyExists:
            _log.debug("private Service is there, the cache does not show it yet")

    async def _wake(self, facts: Facts, memory: ServiceState, minimum: int) -> None:
        try:
            await self._deps.handover.wake(facts, memory, minimum)
        except KubeError as error:
            self._deps.reporter.not_woken(facts.es, str(error))
            raise
        await self._writer.stamp(facts.es, memory)

    async def _park(self, facts: Facts, memory: ServiceState) -> None:
        """Park, then look once more: what arrived while the write was under way wakes."""
        if memory.park is Park.REFUSED:
            return
        if memory.parked_here:
            # Undone before it was seen at zero: parking it again at once would be a fight.
            await self._conflicts.scaled_by_another(facts, memory)
            memory.park = Park.REFUSED
            return
        began = memory.engaged_at
        await self._deps.handover.park(facts, memory)
        if memory.parked_here:
            memory.contest.stamp = facts.es.status.last_scaled_up_time
            since = self._loop_time() - began if began is not None else 0.0
            subjects = self._queried_services(Request(facts.namespace, facts.es.metadata.name))
            if await self._deps.handover.ask(subjects, since) is Activity.BUSY:
                memory.wake = True
                memory.last_traffic = self._wall()

    # Asking

    async def _ask(self, facts: Facts, memory: ServiceState) -> None:
        """Ask the resolvers, where the next step hangs on the answer."""
        request = Request(facts.namespace, facts.es.metadata.name)
        settings = self._deps.settings
        match memory.state:
            case State.ENGAGING if memory.settled_engaging(facts.now, settings.engage_settle):
                if facts.partners_settled:
                    since = facts.now - (memory.engaged_at or facts.now)
                    memory.activity = await self._deps.handover.ask(
                        self._queried_services(request), since
                    )
            case State.WAKING if not facts.ready and facts.decision.verdict is Verdict.SLEEP:
                asked = sleep_request.is_in_force(memory)
                since = settings.engage_settle if asked else cooldown_of(facts.es.spec)
                memory.activity = await self._deps.handover.ask(
                    self._queried_services(request), since
                )
            case _:
                return
        if memory.activity is Activity.BUSY:
            memory.last_traffic = self._wall()

    def _queried_services(self, request: Request) -> dict[tuple[str, str], Any]:
        """Return every Service whose traffic the park of this target concerns, with its resolvers."""
        subjects = {}
        for other in self._deps.directory.sharing(request):
            details, memory = self._deps.directory.get(other), self._deps.states.find(other)
            if details is not None:
                key = (details.namespace, details.spec.service)
                subjects[key] = memory.query_targets if memory else ()
        return subjects

    # Telling

    def _end_request(self, facts: Facts, memory: ServiceState) -> None:
        """End a request to sleep that is done or cannot be done."""
        request = Request(facts.namespace, facts.es.metadata.name)
        ended = sleep_request.ending(
            facts,
            memory,
            now=self._wall(),
            cooldown=cooldown_of(facts.es.spec),
            triggers_active=any(item.is_active() for item in self._deps.evidence(request)),
        )
        if ended is None:
            return
        memory.sleep = None
        if ended.how is sleep_request.SleepRequestOutcome.REFUSED:
            self._deps.reporter.sleep_refused(facts.es, ended.why)

    async def _report(self, facts: Facts, memory: ServiceState) -> None:
        memory.contest.calm(self._wall())
        now = self._deps.clock.now()
        request = Request(facts.namespace, facts.es.metadata.name)
        evidence = self._deps.evidence(request)
        new = status_of(facts, memory, evidence, now)
        self._report_findings(facts, memory)
        patch = status_patch(facts.es.status, new, now)
        if patch is not None:
            await self._write_quarantine()
            await self._writer.patch_status(facts.es, memory, patch)
        memory.judged = TriggerJudgement(facts.decision, trigger_health(evidence))

    def _report_findings(self, facts: Facts, memory: ServiceState) -> None:
        shown = " ".join(old.message for old in facts.es.status.conditions)
        findings = (*absences(facts), *facts.findings)
        for finding in findings:
            if finding not in memory.reported and finding.message not in shown:
                self._deps.reporter.finding(facts.es, finding)
        memory.reported = frozenset(findings)

    # Time

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def _wall(self) -> float:
        return self._deps.clock.now().timestamp()
