"""What is known of one ElastiService at one moment: `Facts`, for the state machine.

`ClusterReader` reads, mostly from caches. Two things are asked of the server itself, and only
where a decision depends on them: the public Service's own slices, with the pods that they name,
which alone tell whether traffic can go to pods, and a slice of KubeElasti's that carries no
label.

`Observer` completes the facts: ports are assigned, findings made, the decision taken together
with every ElastiService that shares the target. `observation_of`, which is pure, turns facts
and state into what the state machine sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.api.names import AGGREGATE_LABEL, MANAGED_BY, WAKE_ANNOTATION, private_service_name
from elasti.operator.handover import sleep_request
from elasti.operator.handover.children import (
    FAMILIES,
    families,
    published_ports,
    slice_names,
    uncovered,
)
from elasti.operator.handover.machine import Activity, Observation, State
from elasti.operator.handover.pod_liveness import PodLiveness
from elasti.operator.handover.ports import PortOwner, PortsExhausted
from elasti.operator.idleness.decide import Decision, Verdict
from elasti.operator.idleness.decisions import unix_seconds
from elasti.operator.report.conditions import Finding, refusal, service_findings
from elasti.operator.scale_handler import NotScalable
from elasti.operator.settings import OnResolverLoss
from kubeloop.client.errors import Forbidden, NoMatch, NotFound
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import (
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    SLICES,
    EndpointSlice,
    Service,
    ServiceEndpoint,
)
from kubeloop.objects.meta import compare_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasti.api.types import ElastiService
    from elasti.operator.handover.reconciler import ReconcilerDeps
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.watch.informer_manager import Scope
    from elasti.operator.watch.resolvers import Resolvers
    from elasti.operator.watch.targets import TargetWatcher, UpdateObjInfo
    from kubeloop.client.client import Client
    from kubeloop.objects.gvk import GroupVersionResource


BY_SERVICE = "service"
UNDECIDED = Decision(Verdict.STAY, "not decided")
_TARGET = "target"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a look at one ElastiService found.

    `target_problem` says why there is no target. `slices` are the ones that point at the resolver,
    ours or KubeElasti's. `ready` names the ready endpoints that decide; `ready_soon`: there is none, but
    the private Service's slices have one. `obstacle`: what keeps the
    target awake, in words that stay. `partners_settled`: everyone else on the same target is ready for
    the park. `lost_wake`: no resolver for too long, and it is
    this one's turn.
    """

    es: ElastiService
    now: float
    service: Service | None = None
    private: Service | None = None
    target: UpdateObjInfo | None = None
    target_problem: str = ""
    slices: tuple[EndpointSlice, ...] = ()
    ready: frozenset[str] = frozenset()
    ready_soon: bool = False
    resolvers: tuple[ServiceEndpoint, ...] = ()
    ports: Mapping[int, int] = dataclasses.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    decision: Decision = UNDECIDED
    partners_settled: bool = True
    lost_wake: bool = False

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.es.metadata.namespace

    @property
    def at_zero(self) -> bool:
        """Whether the target asks for no pods."""
        return self.target is not None and self.target.at_zero


def observation_of(facts: Facts, memory: ServiceState, settings: OperatorSettings) -> Observation:
    """Return what the state machine sees."""
    refused = memory.refused
    holding = memory.state in (State.ENGAGING, State.PARKING, State.WAKING)
    calm = facts.decision.verdict is Verdict.SLEEP
    settle = settings.engage_settle
    ready = {endpoint.place for endpoint in facts.resolvers}
    standing = [endpoint for endpoint in memory.listed if endpoint.place in ready]
    settled = [one for one in standing if memory.long_listed(one, facts.now, settle)]
    return Observation(
        at_zero=facts.at_zero,
        ready=bool(facts.ready),
        ready_settled=memory.settled_ready(facts.now, settings.release_settle),
        slice=bool(facts.slices),
        engage_settled=memory.settled_engaging(facts.now, settle)
        and facts.partners_settled
        and _covers(facts.service, settled),
        resolver=_covers(facts.service, standing if holding else facts.resolvers),
        may_sleep=calm and not refused,
        wake_wanted=memory.wake
        or refused
        or facts.lost_wake
        or facts.decision.verdict is Verdict.WAKE,
        forsaken=calm and memory.activity is Activity.QUIET,
        activity=memory.activity,
        park=memory.park,
    )


def _covers(service: Service | None, resolvers: Sequence[ServiceEndpoint]) -> bool:
    """Whether somebody takes all of a Service's traffic: in every address family that it has."""
    return bool(resolvers) and (service is None or not uncovered(service, resolvers))


def index_by_service(endpoint_slice: EndpointSlice) -> list[str]:
    """File slices under the Service that they belong to."""
    return [f"{endpoint_slice.metadata.namespace}/{endpoint_slice.service}"]


class ClusterReader:
    """Gathers facts. Raises KubeError where the server must be asked and does not answer."""

    def __init__(
        self,
        *,
        client: Client,
        services: Scope[Service],
        private_slices: Scope[EndpointSlice],
        our_slices: Scope[EndpointSlice],
        targets: TargetWatcher,
        resolvers: Resolvers,
    ) -> None:
        self._slices = client.resource(SLICES, EndpointSlice)
        self._pod_liveness = PodLiveness(client)
        self._services = services
        self._private_slices = private_slices
        self._our_slices = our_slices
        self._targets = targets
        self._resolvers = resolvers

    async def observe(self, es: ElastiService, memory: ServiceState, on_target: Any) -> Facts:
        """Look at everything that one ElastiService depends on."""
        namespace, name = es.metadata.namespace, es.spec.service
        target, problem = await self._target(es, memory, on_target)
        facts = Facts(
            es=es,
            now=asyncio.get_running_loop().time(),
            service=self._services.find(namespace, name),
            private=self._services.find(namespace, private_service_name(name)),
            target=target,
            target_problem=problem,
            slices=await self._present_slices(es, memory),
            resolvers=self._resolvers.ready(),
        )
        if facts.slices:
            memory.sliced_at = facts.now
        parked = facts.at_zero and memory.state in (None, State.PROXY)
        if facts.service is None or parked:
            return facts  # nothing hangs on endpoints there, and a restart saves a list for each
        ready = await self._ready(facts, memory)
        memory.note_ready(ready, facts.now)
        soon = not ready and bool(self._private_ready(facts))
        return dataclasses.replace(facts, ready=ready, ready_soon=soon)

    async def _target(
        self, es: ElastiService, memory: ServiceState, on_target: Any
    ) -> tuple[UpdateObjInfo | None, str]:
        ref = es.spec.scale_target_ref
        try:
            scope = await self._targets.follow(es, on_target)
            info = await self._targets.read(es, scope)
        except (NoMatch, NotScalable, Forbidden) as error:
            memory.kind_failures += 1
            return None, await self._unusable(es, error)
        memory.kind_failures = 0
        if info is None:
            return None, f"there is no {ref.kind} {ref.name} in namespace {es.metadata.namespace}"
        view = memory.scales.newest(_TARGET, info.view, info.version)
        return (info if view is None else info.with_scale(view)), ""

    async def _unusable(self, es: ElastiService, error: Exception) -> str:
        """Return the words that say why a target's kind cannot be had, and how it could."""
        ref = es.spec.scale_target_ref
        match error:
            case NoMatch():
                return (
                    f"the server has no kind {ref.kind} in {ref.api_version}; install it, or correct"
                    " spec.scaleTargetRef"
                )
            case Forbidden():
                resource = await self._targets.resource(es)
                return f"{error}; {missing_rules_text(resource, self._targets.place(es.metadata.namespace))}"
            case _:
                return str(error)

    async def _present_slices(
        self, es: ElastiService, memory: ServiceState
    ) -> tuple[EndpointSlice, ...]:
        namespace, service = es.metadata.namespace, es.spec.service
        found = [
            endpoint_slice
            for endpoint_slice in self.published(namespace, service, memory)
            if not await self._is_gone(endpoint_slice, memory)
        ]
        if not memory.legacy_checked:
            unlabelled = await self._unlabelled(namespace, service, found)
            memory.legacy_checked = not unlabelled
            found += unlabelled
        return tuple(found)

    def published(
        self, namespace: str, service: str, memory: ServiceState
    ) -> tuple[EndpointSlice, ...]:
        """Return the slices of ours that a Service has, as far as is known."""
        found = []
        for name in slice_names(service).values():
            cached = self._our_slices.find(namespace, name)
            version = cached.metadata.resource_version if cached else ""
            found.append(memory.slices.newest(name, cached, version))
        return tuple(endpoint_slice for endpoint_slice in found if endpoint_slice is not None)

    async def _is_gone(self, written: EndpointSlice, memory: ServiceState) -> bool:
        """Whether a slice that we wrote, and the cache does not show, is not there any more.

        A cache that is as new as the write may never have shown it: somebody deleted it while the
        watch was down, and no event tells.
        """
        meta, slices = written.metadata, self._our_slices
        if slices.find(meta.namespace, meta.name) is not None:
            return False
        if compare_versions(slices.version(meta.namespace), meta.resource_version) < 0:
            return False
        try:
            await self._slices.get(meta.name, namespace=meta.namespace)
        except NotFound:
            memory.slices.gone(meta.name, meta.resource_version)
            return True
        return False

    async def _unlabelled(
        self, namespace: str, service: str, known: Sequence[EndpointSlice]
    ) -> list[EndpointSlice]:
        """Ask for slices of our names that no cache shows: KubeElasti's, or one that lost its labels."""
        public = self._services.find(namespace, service)
        names = slice_names(service)
        wanted = {names[family] for family in (families(public) if public else FAMILIES[:1])}
        found = []
        for name in sorted(wanted - {endpoint_slice.metadata.name for endpoint_slice in known}):
            with contextlib.suppress(NotFound):
                found.append(await self._slices.get(name, namespace=namespace))
        return found

    async def _ready(self, facts: Facts, memory: ServiceState) -> frozenset[str]:
        serving = memory.state in (None, State.SERVE) and not facts.slices
        if serving and (ready := self._private_ready(facts)):
            return ready
        return await self.public_ready(facts.namespace, facts.es.spec.service)

    def _private_ready(self, facts: Facts) -> frozenset[str]:
        key = f"{facts.namespace}/{private_service_name(facts.es.spec.service)}"
        endpoint_slices = self._private_slices.by_index(BY_SERVICE, key)
        return frozenset(
            e.identity for endpoint_slice in endpoint_slices for e in endpoint_slice.ready_endpoints
        )

    async def public_ready(self, namespace: str, service: str) -> frozenset[str]:
        """Ask the server for endpoints of a Service that are ready, the resolver's left out."""
        selector = f"{SERVICE_LABEL}={service},{MANAGED_BY_LABEL}!={MANAGED_BY}"
        ours = set(slice_names(service).values())
        endpoint_slices = self._slices.items(selector=selector, namespace=namespace)
        listed = [
            endpoint
            async for endpoint_slice in endpoint_slices
            if endpoint_slice.metadata.name not in ours
            for endpoint in endpoint_slice.ready_endpoints
        ]
        return await self._pod_liveness.living(namespace, listed)


def remember_scale(memory: ServiceState, view: Any) -> None:
    """Keep a written scale until the cache shows it."""
    memory.scales.wrote(_TARGET, view.version, view)


def missing_rules_text(resource: GroupVersionResource, namespace: str = "") -> str:
    """Return the words that say how to let the operator have a kind, in one namespace or in all."""
    group, plural = resource.group, resource.resource
    rules = (
        f'the rules {{apiGroups: ["{group}"], resources: [{plural}], verbs: [get, list, watch]}} and'
        f' {{apiGroups: ["{group}"], resources: [{plural}/scale], verbs: [get, update]}}'
    )
    if namespace:
        return f"bind a Role in namespace {namespace} to the operator's account, with {rules}"
    return f'add a ClusterRole labelled {AGGREGATE_LABEL}: "true" with {rules}'


class Observer:
    """Completes facts; `enqueue` is called when a target changes."""

    def __init__(self, parts: ReconcilerDeps, enqueue: Callable[[Request], None]) -> None:
        self._deps = parts
        self._enqueue = enqueue

    async def observe(self, es: ElastiService, memory: ServiceState) -> Facts:
        """Look at everything, and judge it. Raises KubeError."""
        request = Request(es.metadata.namespace, es.metadata.name)
        facts = await self._deps.cluster_reader.observe(
            es, memory, lambda _event: self._enqueue(request)
        )
        facts = self._with_ports(facts)
        findings = (*facts.findings, *await self._findings(facts))
        memory.refused = refusal(findings) is not None
        sleep_request.note(es.metadata.annotations, memory, self._deps.clock.now().timestamp())
        self._note_wakes(es, memory)
        return dataclasses.replace(
            facts,
            findings=findings,
            decision=self._deps.decisions.together(request),
            partners_settled=self._partners_settled(request),
            lost_wake=self._lost_wake(facts, memory),
        )

    def _with_ports(self, facts: Facts) -> Facts:
        service = facts.service
        if service is None or _has_no_ports(service):
            return facts
        owner = port_owner(facts.es)
        book = self._deps.ports
        book.claim(owner, published_ports(facts.slices, service))
        book.claim(owner, {p.port: p.resolver_port for p in facts.es.status.resolver_ports})
        name = f"{facts.namespace}/{service.metadata.name}"
        wanted = [port.port for port in service.tcp_ports]
        try:
            ports = book.assign(owner, name, wanted, asyncio.get_running_loop().time())
        except PortsExhausted as error:
            return dataclasses.replace(facts, findings=(Finding("PortsExhausted", str(error)),))
        return dataclasses.replace(facts, ports=ports)

    async def _findings(self, facts: Facts) -> list[Finding]:
        es, found = facts.es, []
        details = self._deps.directory.get(Request(facts.namespace, es.metadata.name))
        if details is not None and details.problems:
            found.append(Finding("InvalidSpec", "; ".join(map(str, details.problems))))
        owner = self._deps.directory.owner(facts.namespace, es.spec.service)
        if owner is not None and not self.owns(es):
            found.append(
                Finding(
                    "ServiceOwnedByAnother",
                    f"Service {es.spec.service} belongs to ElastiService {owner.name}, which is"
                    " older; delete one of the two",
                )
            )
        if (outdated := self._deps.definition.finding) is not None:
            found.append(outdated)
        if facts.service is not None:
            found += service_findings(facts.service)
            found += await self._deps.warnings.about(facts)
        return found

    def owns(self, es: ElastiService) -> bool:
        """Whether the Service is this one's to switch, or an older ElastiService's."""
        owner = self._deps.directory.owner(es.metadata.namespace, es.spec.service)
        return owner is None or owner.uid == es.metadata.uid

    def _partners_settled(self, request: Request) -> bool:
        settle, now = self._deps.settings.engage_settle, asyncio.get_running_loop().time()
        for other in self._deps.directory.sharing(request):
            memory = self._deps.states.find(other)
            if other == request:
                continue
            if memory is None or not (
                memory.settled_engaging(now, settle) or memory.state in (State.PROXY, State.PARKING)
            ):
                return False
        return True

    def _note_wakes(self, es: ElastiService, memory: ServiceState) -> None:
        asked = (es.metadata.annotations or {}).get(WAKE_ANNOTATION)
        if asked is not None and asked != memory.annotation:
            memory.annotation, memory.wake = asked, True
            sleep_request.supersede(memory)
            memory.last_traffic = max(
                memory.last_traffic, min(unix_seconds(asked), self._deps.clock.now().timestamp())
            )

    def _lost_wake(self, facts: Facts, memory: ServiceState) -> bool:
        """Whether nobody holds a sleeping target's traffic for too long, and its turn has come."""
        settings = self._deps.settings
        lost = self._deps.resolvers.lost_for()
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
            memory.loss_slot = self._deps.pacer.reserve(facts.now)
            message = f"no resolver has been ready for {lost:.0f} s; the target is woken"
            self._deps.reporter.no_resolver(facts.es, message)
        return facts.now >= memory.loss_slot


def port_owner(es: ElastiService) -> PortOwner:
    """Return who holds resolver ports."""
    return PortOwner(es.metadata.creation_timestamp or "", es.metadata.uid)


def _has_no_ports(service: Service) -> bool:
    """Whether a Service can have no resolver ports at all."""
    return refusal(service_findings(service)) is not None
