"""The reconciler: one ElastiService, looked at and brought a step further.

It gets a key, observes, lets the state machine say where to go, and makes the writes that the new
state asks for; then it looks again, until nothing changes. Time enters only as "look again after":
the settles of a hand-over, unanswered probes, a resolver that is lost.

One writer: the leader. Other replicas may wake a target, which shows here as replicas above zero.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, assert_never

import structlog

from elasti.operator import plan as plans
from elasti.operator import requests
from elasti.operator.contests import Contests
from elasti.operator.decisions import Judgement, cooldown_of, health_of
from elasti.operator.gathering import Gathering
from elasti.operator.modes import Activity, Park, State, derive, step
from elasti.operator.observation import seen_from
from elasti.operator.ops_informer import target_of
from elasti.operator.own_object import OwnObject, paused_objects
from elasti.operator.projections import SERVICES, Service
from elasti.operator.reporting import absences, status_of, status_patch
from elasti.operator.timing import next_look
from elasti.scaling.decide import Verdict
from elasti.scaling.scale_handler import FIELD_MANAGER
from kubeloop.client.errors import AlreadyExists, KubeError
from kubeloop.controller.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.api.types import ElastiService
    from elasti.operator.memory import Memory
    from elasti.operator.observation import Facts
    from elasti.operator.parts import Parts
    from elasti.operator.plan import Write

_MOST_STEPS = 8

_log = structlog.get_logger(__name__)


class ElastiServiceReconciler:
    """Reconciles ElastiServices; `enqueue` asks for another look at one."""

    def __init__(self, parts: Parts, enqueue: Callable[[Request], None]) -> None:
        self._parts = parts
        self._enqueue = enqueue
        self._own = OwnObject(parts.client, parts.clock)
        self._gathering = Gathering(parts, enqueue)
        self._contests = Contests(parts)
        self._services = parts.client.resource(SERVICES, Service)

    def wake(self, request: Request) -> None:
        """Traffic waits: this target is being woken."""
        memory = self._parts.memories.find(request)
        if memory is not None:
            memory.wake = True
            memory.last_traffic = self._wall()
            requests.overtake(memory)

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one ElastiService further. Raises KubeError."""
        es = self._parts.elastiservices.find(*request)
        if es is None:
            self._forget(request)
            await self._write_resting_ports()
            return None
        former = self._parts.memories.find(request)
        memory = self._recall(request, es)
        es = self._own.newest(es, memory)
        # Its handler may come after ours; what is reconciled must not be unknown there.
        self._parts.directory.put(es)
        if former is not None and former.service != memory.service:
            await self._quit(es.metadata.namespace, former)
        if es.metadata.deletion_timestamp:
            return await self._finalize(es, memory)
        if not await self._own.has_finalizer(es):
            return Result(requeue=True)
        facts = await self._converge(es, memory)
        await self._own.clear_wake_request(es, memory)
        await self._own.clear_paused(es, memory)
        self._end_request(facts, memory)
        await self._report(facts, memory)
        await self._own.clear_sleep_request(es, memory)
        pause = next_look(
            facts,
            memory,
            self._parts.settings,
            now=self._loop_time(),
            lost_for=self._parts.resolvers.lost_for(),
        )
        return None if pause is None else Result(requeue_after=pause)

    # Beginning and end

    def _recall(self, request: Request, es: ElastiService) -> Memory:
        """Return what is remembered; ports of what it no longer is, or names, come to rest."""
        old = self._parts.memories.find(request)
        memory = self._parts.memories.of(request, es.metadata.uid, es.spec.service)
        if memory is not old:
            if old is not None:
                self._release_ports(old.uid)
            # Conditions end a first reconcile: whatever KubeElasti had left was adopted by then.
            memory.legacy_checked = bool(es.status.conditions)
            memory.keda_paused = paused_objects(es)
        memory.aim(target_of(es))
        return memory

    async def _quit(self, namespace: str, former: Memory) -> None:
        """Take the resolver out of a Service that is named no more: it would refuse what comes."""
        if self._parts.directory.owner(namespace, former.service) is None:
            slices = self._parts.observer.published(namespace, former.service, former)
            await self._parts.handover.remove(slices, former)

    def _release_ports(self, uid: str) -> None:
        for owner in self._parts.ports.owners_of(uid):
            self._parts.ports.release(owner, self._loop_time())

    def _forget(self, request: Request) -> None:
        memory = self._parts.memories.find(request)
        if memory is not None:
            self._release_ports(memory.uid)
        details = self._parts.directory.get(request)
        self._parts.directory.remove(request)
        if details is not None:
            for heir in self._parts.directory.naming(details.namespace, details.spec.service):
                self._enqueue(heir)
        self._parts.memories.forget(request)
        self._parts.finalizer.forget(request)

    async def _finalize(self, es: ElastiService, memory: Memory) -> Result | None:
        facts = await self._gathering.observe(es, memory)
        pause = await self._parts.finalizer.finalize(facts, memory)
        return None if pause is None else Result(requeue_after=pause)

    # Converging

    async def _converge(self, es: ElastiService, memory: Memory) -> Facts:
        facts = await self._gathering.observe(es, memory)
        await self._put_companions(facts, memory)
        for _ in range(_MOST_STEPS):
            if facts.service is None or facts.target is None or not self._gathering.owns(es):
                memory.state = None
                return facts
            if memory.refused and not facts.slices:
                # Nothing of ours is in the way; traffic goes wherever it went without us.
                memory.state = State.SERVE
                return facts
            if self._contests.clear_up(facts, memory):
                facts = await self._gathering.observe(es, memory)
            moved, wrote = await self._step(facts, memory)
            if not moved and not wrote:
                return facts
            facts = await self._gathering.observe(es, memory)
            if not moved:
                return facts
        return facts

    async def _put_companions(self, facts: Facts, memory: Memory) -> None:
        """Make what everything else stands on: the ports in status, the private Service."""
        if memory.refused or facts.service is None:
            return
        await self._write_resting_ports()
        await self._own.publish_ports(facts, memory)
        for write in plans.companions(facts):
            await self._apply(write, facts, memory)

    async def _write_resting_ports(self) -> None:
        """Write down every freed port, before a status is written that does not name it."""
        if freed := frozenset(self._parts.ports.unwritten):
            await self._parts.resting.note(freed)
            self._parts.ports.unwritten -= freed

    async def _step(self, facts: Facts, memory: Memory) -> tuple[bool, bool]:
        """Go one step and make it so; says whether the state changed, and whether anything else."""
        await self._ask(facts, memory)
        seen = seen_from(facts, memory, self._parts.settings)
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
            self._parts.reporter.moved(facts.es, state, why)
        writes = plans.plan(state, facts, memory)
        for write in writes:
            await self._apply(write, facts, memory)
        self._note_outcome(facts, memory)
        # Most often the slices are as they should be, and publishing them is only a look.
        looked = all(isinstance(write, plans.PublishSlices) for write in writes)
        return (
            memory.state is not before
            or memory.park is Park.REFUSED
            # Its ports were told to the resolver a moment ago, which may have opened them by now.
            or (is_new and memory.probe_failures > 0),
            not looked or memory.slices.is_pending,
        )

    async def _leave(self, facts: Facts, memory: Memory, *, to: State, why: str) -> None:
        match memory.state, to:
            case State.ENGAGING | State.PARKING, State.RELEASING | State.WAKING:
                memory.last_attempt, memory.attempt_ended = self._wall(), why
            case State.SERVE, State.ENGAGING:
                memory.decided_on = facts.target.view if facts.target else None
            case State.WAKING, State.PARKING:
                memory.decided_on = facts.target.view if facts.target else None
            case State.PROXY, State.WAKING if not facts.at_zero:
                await self._contests.scaled_by_another(facts, memory)

    def _note_outcome(self, facts: Facts, memory: Memory) -> None:
        if memory.state is State.ENGAGING and memory.listed and memory.engaged_at is None:
            memory.engaged_at = self._loop_time()
        awake = memory.state in (State.SERVE, State.RELEASING, State.WAKING)
        if awake and not facts.at_zero:
            memory.wake = False
            memory.loss_slot = None
        if awake:
            memory.parked_here = False

    async def _apply(self, write: Write, facts: Facts, memory: Memory) -> None:
        match write:
            case plans.PutPrivate(service, exists):
                await self._put_private(service, exists=exists)
            case plans.PublishSlices():
                if not memory.refused:
                    await self._parts.handover.publish(facts, memory)
            case plans.RemoveSlices():
                await self._parts.handover.remove(facts.slices, memory)
            case plans.Wake(minimum):
                await self._wake(facts, memory, minimum)
            case plans.ParkTarget():
                await self._park(facts, memory)
            case plans.ResumeKeda(name):
                await self._parts.handover.resume_keda(facts, memory, name)
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

    async def _wake(self, facts: Facts, memory: Memory, minimum: int) -> None:
        try:
            await self._parts.handover.wake(facts, memory, minimum)
        except KubeError as error:
            self._parts.reporter.not_woken(facts.es, str(error))
            raise
        await self._own.stamp(facts.es, memory)

    async def _park(self, facts: Facts, memory: Memory) -> None:
        """Park, then look once more: what arrived while the write was under way wakes."""
        if memory.park is Park.REFUSED:
            return
        if memory.parked_here:
            # Undone before it was seen at zero: parking it again at once would be a fight.
            await self._contests.scaled_by_another(facts, memory)
            memory.park = Park.REFUSED
            return
        began = memory.engaged_at
        await self._parts.handover.park(facts, memory)
        if memory.parked_here:
            memory.contest.stamp = facts.es.status.last_scaled_up_time
            since = self._loop_time() - began if began is not None else 0.0
            subjects = self._subjects(Request(facts.namespace, facts.es.metadata.name))
            if await self._parts.handover.ask(subjects, since) is Activity.BUSY:
                memory.wake = True
                memory.last_traffic = self._wall()

    # Asking

    async def _ask(self, facts: Facts, memory: Memory) -> None:
        """Ask the resolvers, where the next step hangs on the answer."""
        request = Request(facts.namespace, facts.es.metadata.name)
        settings = self._parts.settings
        match memory.state:
            case State.ENGAGING if memory.settled_engaging(facts.now, settings.engage_settle):
                if facts.partners_settled:
                    since = facts.now - (memory.engaged_at or facts.now)
                    memory.activity = await self._parts.handover.ask(self._subjects(request), since)
            case State.WAKING if not facts.ready and facts.decision.verdict is Verdict.SLEEP:
                asked = requests.is_in_force(memory)
                since = settings.engage_settle if asked else cooldown_of(facts.es.spec)
                memory.activity = await self._parts.handover.ask(self._subjects(request), since)
            case _:
                return
        if memory.activity is Activity.BUSY:
            memory.last_traffic = self._wall()

    def _subjects(self, request: Request) -> dict[tuple[str, str], Any]:
        """Return every Service whose traffic the park of this target concerns, with its resolvers."""
        subjects = {}
        for other in self._parts.directory.sharing(request):
            details, memory = self._parts.directory.get(other), self._parts.memories.find(other)
            if details is not None:
                key = (details.namespace, details.spec.service)
                subjects[key] = memory.to_be_asked if memory else ()
        return subjects

    # Telling

    def _end_request(self, facts: Facts, memory: Memory) -> None:
        """End a request to sleep that is done or cannot be done."""
        request = Request(facts.namespace, facts.es.metadata.name)
        ended = requests.ending(
            facts,
            memory,
            now=self._wall(),
            cooldown=cooldown_of(facts.es.spec),
            triggers_active=any(item.is_active() for item in self._parts.evidence(request)),
        )
        if ended is None:
            return
        memory.sleep = None
        if ended.how is requests.Ending.REFUSED:
            self._parts.reporter.sleep_refused(facts.es, ended.why)

    async def _report(self, facts: Facts, memory: Memory) -> None:
        memory.contest.calm(self._wall())
        now = self._parts.clock.now()
        request = Request(facts.namespace, facts.es.metadata.name)
        evidence = self._parts.evidence(request)
        new = status_of(facts, memory, evidence, now)
        self._tell_findings(facts, memory)
        patch = status_patch(facts.es.status, new, now)
        if patch is not None:
            await self._write_resting_ports()
            await self._own.patch_status(facts.es, memory, patch)
        memory.judged = Judgement(facts.decision.verdict, health_of(evidence), facts.obstacle)

    def _tell_findings(self, facts: Facts, memory: Memory) -> None:
        shown = " ".join(old.message for old in facts.es.status.conditions)
        findings = (*absences(facts), *facts.findings)
        for finding in findings:
            if finding not in memory.told and finding.message not in shown:
                self._parts.reporter.finding(facts.es, finding)
        memory.told = frozenset(findings)

    # Time

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def _wall(self) -> float:
        return self._parts.clock.now().timestamp()
