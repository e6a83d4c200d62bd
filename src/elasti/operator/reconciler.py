"""The reconciler: one ElastiService, looked at and brought a step further.

It gets a key, observes, lets the state machine say where to go, and makes the writes that the new
state asks for; then it looks again, until nothing changes. Time enters only as "look again after":
the settles of a hand-over, unanswered probes, a resolver that is lost.

One writer: the leader. Other replicas may wake a target, which shows here as replicas above zero.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, assert_never

import structlog

from elasti.api.names import FINALIZER, WAKE_ANNOTATION
from elasti.api.validation import problems
from elasti.operator import plan as plans
from elasti.operator.children import published_ports
from elasti.operator.conditions import Finding, refusal, service_findings
from elasti.operator.contest import replicas_manager
from elasti.operator.decisions import cooldown_of, seconds
from elasti.operator.modes import HOLDS, Activity, Park, State, derive, step
from elasti.operator.observation import seen_from
from elasti.operator.ops_informer import target_of
from elasti.operator.ports import Owner, PortsExhausted
from elasti.operator.projections import SERVICES, Service
from elasti.operator.reporting import port_statuses, status_of, status_patch
from elasti.operator.settings import OnResolverLoss
from elasti.scaling.decide import Verdict
from elasti.scaling.scale_handler import FIELD_MANAGER
from kubeloop.client.errors import AlreadyExists, Conflict, Invalid, KubeError, NotFound
from kubeloop.controller.finalizers import add_finalizers
from kubeloop.controller.reconcile import Request, Result
from kubeloop.objects.patches import JsonPatch, MergePatch, pointer
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.api.types import ElastiService
    from elasti.operator.decisions import Decisions
    from elasti.operator.definition import Definition
    from elasti.operator.directory import Directory
    from elasti.operator.finalize import Finalizer
    from elasti.operator.handover import Handover
    from elasti.operator.informer_manager import Scope
    from elasti.operator.memory import Memories, Memory
    from elasti.operator.observation import Facts, Observer
    from elasti.operator.pacer import Pacer
    from elasti.operator.plan import Write
    from elasti.operator.ports import PortBook
    from elasti.operator.reporting import Reporter
    from elasti.operator.resolvers import Resolvers
    from elasti.operator.settings import Settings
    from elasti.operator.warnings import Warnings
    from elasti.scaling.decide import Evidence
    from elasti.scaling.scale_handler import ScaleHandler
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

RESOURCE = "elasti.truefoundry.com/v1alpha1/elastiservices"
_MOST_STEPS = 8
_PROBE_PAUSE = 0.1
_LONGEST_PROBE_PAUSE = 5.0
_PARTNER_PAUSE = 1.0

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a reconciler is made of."""

    client: Client
    elastiservices: Scope[ElastiService]
    directory: Directory
    memories: Memories
    observer: Observer
    handover: Handover
    decisions: Decisions
    ports: PortBook
    scales: ScaleHandler
    resolvers: Resolvers
    finalizer: Finalizer
    warnings: Warnings
    definition: Definition
    reporter: Reporter
    pacer: Pacer
    evidence: Callable[[Request], Sequence[Evidence]]
    settings: Settings
    clock: Clock


class ElastiServiceReconciler:
    """Reconciles ElastiServices; `enqueue` asks for another look at one."""

    def __init__(self, parts: Parts, enqueue: Callable[[Request], None]) -> None:
        self._parts = parts
        self._enqueue = enqueue
        self._objects = parts.client.resource(RESOURCE)
        self._services = parts.client.resource(SERVICES, Service)

    def wake(self, request: Request) -> None:
        """Traffic waits: this target is being woken."""
        memory = self._parts.memories.find(request)
        if memory is not None:
            memory.wake = True
            memory.last_traffic = self._wall()

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one ElastiService further. Raises KubeError."""
        es = self._parts.elastiservices.find(*request)
        if es is None:
            self._forget(request)
            return None
        # Its handler may come after ours; what is reconciled must not be unknown there.
        self._parts.directory.put(es)
        memory = self._recall(request, es)
        if es.metadata.deletion_timestamp:
            return await self._finalize(es, memory)
        if not await self._has_finalizer(es):
            return Result(requeue_after=_PROBE_PAUSE)
        facts = await self._converge(es, memory)
        await self._clear_annotation(es, memory)
        await self._report(facts, memory)
        pause = self._next_look(facts, memory)
        return None if pause is None else Result(requeue_after=max(pause, 0.001))

    # Beginning and end

    def _recall(self, request: Request, es: ElastiService) -> Memory:
        """Return what is remembered; ports of a Service that it no longer names come to rest."""
        old = self._parts.memories.find(request)
        if old is not None and old.service != es.spec.service:
            self._release_ports(old.uid)
        memory = self._parts.memories.of(request, es.metadata.uid, es.spec.service)
        if memory is not old:
            # Conditions end a first reconcile: whatever KubeElasti had left was adopted by then.
            memory.legacy_checked = bool(es.status.conditions)
        return memory

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
        facts = await self._observe(es, memory)
        pause = await self._parts.finalizer.finalize(facts, memory)
        return None if pause is None else Result(requeue_after=pause)

    async def _has_finalizer(self, es: ElastiService) -> bool:
        """Put our finalizer on before anything is made that it has to clean up."""
        present = es.metadata.finalizers or []
        if FINALIZER in present:
            return True
        patch = add_finalizers(present, [FINALIZER], es.metadata.resource_version)
        assert patch is not None
        try:
            await self._objects.patch(
                es.metadata.name,
                patch,
                namespace=es.metadata.namespace,
                field_manager=FIELD_MANAGER,
            )
        except (Invalid, Conflict, NotFound):
            return False
        return True

    # Converging

    async def _converge(self, es: ElastiService, memory: Memory) -> Facts:
        facts = await self._observe(es, memory)
        await self._put_companions(facts, memory)
        for _ in range(_MOST_STEPS):
            if facts.service is None or facts.target is None or not self._owns(es):
                memory.state = None
                return facts
            if memory.refused and not facts.slices:
                # Nothing of ours is in the way; traffic goes wherever it went without us.
                memory.state = State.SERVE
                return facts
            moved = await self._step(facts, memory)
            facts = await self._observe(es, memory)
            if not moved:
                return facts
        return facts

    async def _observe(self, es: ElastiService, memory: Memory) -> Facts:
        request = Request(es.metadata.namespace, es.metadata.name)
        facts = await self._parts.observer.observe(
            es, memory, lambda _event: self._enqueue(request)
        )
        facts = self._with_ports(facts)
        findings = (*facts.findings, *await self._findings(facts))
        memory.refused = refusal(findings) is not None
        self._note_wakes(es, memory)
        return dataclasses.replace(
            facts,
            findings=findings,
            decision=self._parts.decisions.together(request),
            partners_settled=self._partners_settled(request),
            lost_wake=self._lost_wake(facts, memory),
        )

    def _with_ports(self, facts: Facts) -> Facts:
        service = facts.service
        if service is None or service_findings_refuse(service):
            return facts
        owner = owner_of(facts.es)
        book = self._parts.ports
        book.claim(owner, published_ports(facts.slices, service))
        book.claim(owner, {p.port: p.resolver_port for p in facts.es.status.resolver_ports})
        name = f"{facts.namespace}/{service.metadata.name}"
        wanted = [port.port for port in service.tcp_ports]
        try:
            ports = book.assign(owner, name, wanted, self._loop_time())
        except PortsExhausted as error:
            return dataclasses.replace(facts, findings=(Finding("PortsExhausted", str(error)),))
        return dataclasses.replace(facts, ports=ports)

    async def _findings(self, facts: Facts) -> list[Finding]:
        es, found = facts.es, []
        if complaints := problems(es.spec):
            found.append(Finding("InvalidSpec", "; ".join(map(str, complaints))))
        owner = self._parts.directory.owner(facts.namespace, es.spec.service)
        if owner is not None and not self._owns(es):
            found.append(
                Finding(
                    "ServiceOwnedByAnother",
                    f"Service {es.spec.service} belongs to ElastiService {owner.name}, which is"
                    " older; delete one of the two",
                )
            )
        if (outdated := self._parts.definition.finding) is not None:
            found.append(outdated)
        if facts.service is not None:
            found += service_findings(facts.service)
            found += await self._parts.warnings.about(facts)
        return found

    def _owns(self, es: ElastiService) -> bool:
        """Whether the Service is this one's to switch, or an older ElastiService's."""
        owner = self._parts.directory.owner(es.metadata.namespace, es.spec.service)
        return owner is None or owner.uid == es.metadata.uid

    async def _put_companions(self, facts: Facts, memory: Memory) -> None:
        """Make what everything else stands on: the ports in status, the private Service."""
        if memory.refused or facts.service is None:
            return
        await self._publish_ports(facts)
        for write in plans.companions(facts):
            await self._apply(write, facts, memory)

    async def _publish_ports(self, facts: Facts) -> None:
        ports = port_statuses(facts.service, facts.ports)
        if ports == facts.es.status.resolver_ports:
            return
        shown = [
            {"port": port.port, "resolverPort": port.resolver_port, "name": port.name}
            for port in ports
        ]
        await self._patch_status(facts.es, {"status": {"resolverPorts": shown}})

    async def _step(self, facts: Facts, memory: Memory) -> bool:
        """Go one step and make it so; says whether the state changed."""
        await self._ask(facts, memory)
        seen = seen_from(facts, memory, self._parts.settings)
        before = memory.state
        if before is None:
            memory.enter(derive(seen), "found so")
        state, why = step(memory.state or derive(seen), seen)
        if state is not memory.state:
            await self._leave(facts, memory, to=state)
            memory.enter(state, why)
            self._parts.reporter.moved(facts.es, state, why)
        for write in plans.plan(state, facts, memory):
            await self._apply(write, facts, memory)
        self._note_outcome(facts, memory)
        return memory.state is not before or memory.park is Park.REFUSED

    async def _leave(self, facts: Facts, memory: Memory, *, to: State) -> None:
        match memory.state, to:
            case State.ENGAGING | State.PARKING, State.RELEASING | State.WAKING:
                memory.last_attempt = self._wall()
            case State.SERVE, State.ENGAGING:
                memory.decided_on = facts.target.view if facts.target else None
            case State.WAKING, State.PARKING:
                memory.decided_on = facts.target.view if facts.target else None
            case State.PROXY, State.WAKING if not facts.at_zero:
                await self._scaled_by_another(facts, memory)

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
        await self._stamp(facts.es)

    async def _park(self, facts: Facts, memory: Memory) -> None:
        """Park, then look once more: what arrived while the write was under way wakes."""
        if memory.park is Park.REFUSED:
            return
        began = memory.engaged_at
        await self._parts.handover.park(facts, memory)
        if memory.parked_here:
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
                cooldown = cooldown_of(facts.es.spec)
                memory.activity = await self._parts.handover.ask(self._subjects(request), cooldown)
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
                subjects[key] = memory.listed if memory else ()
        return subjects

    def _partners_settled(self, request: Request) -> bool:
        settle, now = self._parts.settings.engage_settle, self._loop_time()
        for other in self._parts.directory.sharing(request):
            memory = self._parts.memories.find(other)
            if other == request:
                continue
            if memory is None or not (
                memory.settled_engaging(now, settle) or memory.state in (State.PROXY, State.PARKING)
            ):
                return False
        return True

    # Wake-ups

    def _note_wakes(self, es: ElastiService, memory: Memory) -> None:
        asked = (es.metadata.annotations or {}).get(WAKE_ANNOTATION)
        if asked is not None and asked != memory.annotation:
            memory.annotation, memory.wake = asked, True
            memory.last_traffic = max(memory.last_traffic, min(seconds(asked), self._wall()))

    async def _clear_annotation(self, es: ElastiService, memory: Memory) -> None:
        """Take a durable wake request away once the target is up; it must not wake twice."""
        asked = (es.metadata.annotations or {}).get(WAKE_ANNOTATION)
        if asked is None or memory.wake or memory.state is None:
            return
        path = pointer("metadata", "annotations", WAKE_ANNOTATION)
        patch = JsonPatch(
            [{"op": "test", "path": path, "value": asked}, {"op": "remove", "path": path}]
        )
        try:
            await self._objects.patch(
                es.metadata.name,
                patch,
                namespace=es.metadata.namespace,
                field_manager=FIELD_MANAGER,
            )
        except (Invalid, Conflict, NotFound):
            _log.debug("a newer wake request came meanwhile", elastiservice=es.metadata.name)

    def _lost_wake(self, facts: Facts, memory: Memory) -> bool:
        """Whether nobody holds a sleeping target's traffic for too long, and its turn has come."""
        settings = self._parts.settings
        lost = self._parts.resolvers.lost_for()
        if (
            not lost
            or memory.state is not State.PROXY
            or settings.on_resolver_loss is OnResolverLoss.WAIT
        ):
            memory.loss_slot = None if not lost else memory.loss_slot
            return False
        if lost < settings.resolver_loss_grace:
            return False
        if memory.loss_slot is None:
            memory.loss_slot = self._parts.pacer.reserve(facts.now)
            message = f"no resolver has been ready for {lost:.0f} s; the target is woken"
            self._parts.reporter.no_resolver(facts.es, message)
        return facts.now >= memory.loss_slot

    async def _scaled_by_another(self, facts: Facts, memory: Memory) -> None:
        """Note an awakening that was not ours, and whether it undoes our parks."""
        memory.last_scaled_up = self._wall()
        if not memory.parked_here or memory.wake:
            return
        target = target_of(facts.es)
        info = await self._parts.scales.resource(target)
        try:
            found = await self._parts.client.resource(info.gvr).get(
                target.name, namespace=target.namespace
            )
        except NotFound:
            return
        manager = replicas_manager(found)
        if manager == FIELD_MANAGER:
            return
        was = memory.contest.is_contested
        memory.contest.record(self._wall(), manager, cooldown_of(facts.es.spec))
        if memory.contest.is_contested and not was:
            self._parts.reporter.contested(facts.es, manager)

    async def _stamp(self, es: ElastiService) -> None:
        now = format_time(self._parts.clock.now())
        await self._patch_status(es, {"status": {"lastScaledUpTime": now}})

    # Telling

    async def _report(self, facts: Facts, memory: Memory) -> None:
        memory.contest.calm(self._wall())
        now = self._parts.clock.now()
        request = Request(facts.namespace, facts.es.metadata.name)
        new = status_of(facts, memory, self._parts.evidence(request), now)
        self._tell_findings(facts, memory)
        patch = status_patch(facts.es.status, new, now)
        if patch is not None:
            await self._patch_status(facts.es, patch)

    def _tell_findings(self, facts: Facts, memory: Memory) -> None:
        shown = " ".join(old.message for old in facts.es.status.conditions if old.type == "Ready")
        for finding in facts.findings:
            if finding not in memory.told and finding.message not in shown:
                self._parts.reporter.finding(facts.es, finding)
        memory.told = frozenset(facts.findings)

    async def _patch_status(self, es: ElastiService, body: dict[str, Any]) -> None:
        await self._objects.subresource("status").patch(
            es.metadata.name,
            MergePatch(body),
            namespace=es.metadata.namespace,
            field_manager=FIELD_MANAGER,
        )

    # Time

    def _next_look(self, facts: Facts, memory: Memory) -> float | None:
        """Return after how many seconds to look again, whatever happens; None for never."""
        settings, now = self._parts.settings, self._loop_time()
        pauses: list[float] = []
        match memory.state:
            case State.ENGAGING if memory.engaged_at is not None:
                left = memory.engaged_at + settings.engage_settle - now
                pauses.append(left if left > 0 else _PARTNER_PAUSE)
            case State.WAKING | State.RELEASING if memory.ready_since:
                first = min(memory.ready_since.values())
                pauses.append(max(first + settings.release_settle - now, 0.05))
            case State.PROXY if not facts.resolvers:
                pauses.append(self._loss_pause(memory, now))
        if memory.state is not None and HOLDS[memory.state].slice and memory.probe_failures:
            grown = _PROBE_PAUSE * 2.0 ** min(memory.probe_failures - 1, 10)
            pauses.append(min(grown, _LONGEST_PROBE_PAUSE))
        return min(pauses, default=None)

    def _loss_pause(self, memory: Memory, now: float) -> float:
        if memory.loss_slot is not None:
            return max(memory.loss_slot - now, 0.01)
        left = self._parts.settings.resolver_loss_grace - self._parts.resolvers.lost_for()
        return max(left, 0.01)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def _wall(self) -> float:
        return self._parts.clock.now().timestamp()


def owner_of(es: ElastiService) -> Owner:
    """Return who holds resolver ports."""
    return Owner(es.metadata.creation_timestamp or "", es.metadata.uid)


def service_findings_refuse(service: Service) -> bool:
    """Whether a Service can have no resolver ports at all."""
    return refusal(service_findings(service)) is not None
