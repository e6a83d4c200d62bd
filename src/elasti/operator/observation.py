"""What the operator knows of one ElastiService at one moment, and what it makes of it.

`Observer` gathers `Facts`, mostly from caches. Two things are asked of the server itself, and only
where a decision hangs on them: the public Service's own slices, with the pods that they name, which
alone tell whether traffic can go to pods, and a slice of KubeElasti's that carries no label.

`seen_from` turns facts and memory into what the state machine looks at. Pure.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.api.names import MANAGED_BY, private_service_name
from elasti.operator.children import FAMILIES, families, slice_names, uncovered
from elasti.operator.modes import Activity, Observation, State
from elasti.operator.projections import (
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    SLICES,
    Endpoint,
    EndpointSlice,
    Service,
)
from elasti.operator.witnesses import Witnesses
from elasti.scaling.decide import Decision, Verdict
from elasti.scaling.scale_handler import NotScalable
from kubeloop.client.errors import Forbidden, NoMatch, NotFound
from kubeloop.objects.versions import compare_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasti.api.types import ElastiService
    from elasti.operator.conditions import Finding
    from elasti.operator.informer_manager import Scope
    from elasti.operator.memory import Memory
    from elasti.operator.ops_informer import Targets, UpdateObjInfo
    from elasti.operator.resolvers import Resolvers
    from elasti.operator.settings import Settings
    from elasti.scaling.obstacles import Obstacle
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
    resolvers: tuple[Endpoint, ...] = ()
    ports: Mapping[int, int] = dataclasses.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    decision: Decision = UNDECIDED
    obstacle: Obstacle | None = None
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


def seen_from(facts: Facts, memory: Memory, settings: Settings) -> Observation:
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


def _covers(service: Service | None, resolvers: Sequence[Endpoint]) -> bool:
    """Whether somebody takes all of a Service's traffic: in every address family that it has."""
    return bool(resolvers) and (service is None or not uncovered(service, resolvers))


def index_by_service(piece: EndpointSlice) -> list[str]:
    """File slices under the Service that they belong to."""
    return [f"{piece.metadata.namespace}/{piece.service}"]


class Observer:
    """Gathers facts. Raises KubeError where the server must be asked and does not answer."""

    def __init__(
        self,
        *,
        client: Client,
        services: Scope[Service],
        private_slices: Scope[EndpointSlice],
        our_slices: Scope[EndpointSlice],
        targets: Targets,
        resolvers: Resolvers,
    ) -> None:
        self._slices = client.resource(SLICES, EndpointSlice)
        self._witnesses = Witnesses(client)
        self._services = services
        self._private_slices = private_slices
        self._our_slices = our_slices
        self._targets = targets
        self._resolvers = resolvers

    async def observe(self, es: ElastiService, memory: Memory, on_target: Any) -> Facts:
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
        memory.see_ready(ready, facts.now)
        soon = not ready and bool(self._private_ready(facts))
        return dataclasses.replace(facts, ready=ready, ready_soon=soon)

    async def _target(
        self, es: ElastiService, memory: Memory, on_target: Any
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
                return f"{error}; {rules_for(resource, self._targets.place(es.metadata.namespace))}"
            case _:
                return str(error)

    async def _present_slices(self, es: ElastiService, memory: Memory) -> tuple[EndpointSlice, ...]:
        namespace, service = es.metadata.namespace, es.spec.service
        found = [
            piece
            for piece in self.published(namespace, service, memory)
            if not await self._is_gone(piece, memory)
        ]
        if not memory.legacy_checked:
            unlabelled = await self._unlabelled(namespace, service, found)
            memory.legacy_checked = not unlabelled
            found += unlabelled
        return tuple(found)

    def published(self, namespace: str, service: str, memory: Memory) -> tuple[EndpointSlice, ...]:
        """Return the slices of ours that a Service has, as far as is known."""
        found = []
        for name in slice_names(service).values():
            cached = self._our_slices.find(namespace, name)
            version = cached.metadata.resource_version if cached else ""
            found.append(memory.slices.newest(name, cached, version))
        return tuple(piece for piece in found if piece is not None)

    async def _is_gone(self, written: EndpointSlice, memory: Memory) -> bool:
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
        for name in sorted(wanted - {piece.metadata.name for piece in known}):
            with contextlib.suppress(NotFound):
                found.append(await self._slices.get(name, namespace=namespace))
        return found

    async def _ready(self, facts: Facts, memory: Memory) -> frozenset[str]:
        serving = memory.state in (None, State.SERVE) and not facts.slices
        if serving and (ready := self._private_ready(facts)):
            return ready
        return await self.public_ready(facts.namespace, facts.es.spec.service)

    def _private_ready(self, facts: Facts) -> frozenset[str]:
        key = f"{facts.namespace}/{private_service_name(facts.es.spec.service)}"
        pieces = self._private_slices.by_index(BY_SERVICE, key)
        return frozenset(e.identity for piece in pieces for e in piece.ready_endpoints)

    async def public_ready(self, namespace: str, service: str) -> frozenset[str]:
        """Ask the server for endpoints of a Service that are ready, the resolver's left out."""
        selector = f"{SERVICE_LABEL}={service},{MANAGED_BY_LABEL}!={MANAGED_BY}"
        ours = set(slice_names(service).values())
        pieces = self._slices.items(selector=selector, namespace=namespace)
        listed = [
            endpoint
            async for piece in pieces
            if piece.metadata.name not in ours
            for endpoint in piece.ready_endpoints
        ]
        return await self._witnesses.living(namespace, listed)


def remember_scale(memory: Memory, view: Any) -> None:
    """Keep a written scale until the cache shows it."""
    memory.scales.wrote(_TARGET, view.version, view)


def rules_for(resource: GroupVersionResource, namespace: str = "") -> str:
    """Return the words that say how to let the operator have a kind, in one namespace or in all."""
    group, plural = resource.group, resource.resource
    rules = (
        f'the rules {{apiGroups: ["{group}"], resources: [{plural}], verbs: [get, list, watch]}} and'
        f' {{apiGroups: ["{group}"], resources: [{plural}/scale], verbs: [get, update]}}'
    )
    if namespace:
        return f"bind a Role in namespace {namespace} to the operator's account, with {rules}"
    return (
        'add a ClusterRole labelled elasti.truefoundry.com/aggregate-to-operator: "true" with'
        f" {rules}"
    )
