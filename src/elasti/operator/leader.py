"""The leader's work: one reconciler, fed by the shared caches, with its poller and its sweeper.

Made anew each time the lease is ours: what a former tenure remembered is not trusted, since another
leader may have been at work meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import structlog

from elasti.operator.children import published_ports, slice_names
from elasti.operator.decisions import Decisions
from elasti.operator.definition import Definition
from elasti.operator.finalize import Finalizer
from elasti.operator.first_looks import FirstLooks
from elasti.operator.gathering import owner_of
from elasti.operator.handover import Handover
from elasti.operator.informer_manager import is_news
from elasti.operator.memory import Memories
from elasti.operator.modes import State
from elasti.operator.observation import Observer
from elasti.operator.ops_informer import Targets
from elasti.operator.own_object import OwnObject
from elasti.operator.pacer import Pacer
from elasti.operator.parts import Parts
from elasti.operator.pod_labels import PodLabels
from elasti.operator.polling import Poller
from elasti.operator.ports import PortBook
from elasti.operator.reconciler import ElastiServiceReconciler
from elasti.operator.reporting import Reporter
from elasti.operator.resting import RestingPorts
from elasti.operator.subjects import evidence_by
from elasti.operator.sweeper import Sweeper
from elasti.operator.trickle import Trickle
from elasti.operator.warnings import Warnings
from elasti.scaling.evaluator import Evaluator
from kubeloop.controller.controller import Controller
from kubeloop.controller.mapping import map_func
from kubeloop.controller.reconcile import Request, Result
from kubeloop.informer import Deleted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from elasti.api.types import ElastiService
    from elasti.operator.caches import Caches
    from elasti.operator.directory import Directory
    from elasti.operator.informer_manager import Scope
    from elasti.operator.metrics import Metrics
    from elasti.operator.projections import EndpointSlice, Service
    from elasti.operator.resolver_client import ResolverPort, ResolverPortFactory
    from elasti.operator.settings import Settings
    from elasti.operator.waker import Waker
    from elasti.scaling.autoscalers import Keda
    from elasti.scaling.scale_handler import ScaleHandler
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.controller.events import EventRecorder
    from kubeloop.controller.mapping import Mapping
    from kubeloop.informer.notifications import Notification

_WAKE_PRIORITY = 10

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What every replica has, and a leader stands on."""

    client: Client
    settings: Settings
    clock: Clock
    caches: Caches
    directory: Directory
    scales: ScaleHandler
    keda: Keda
    waker: Waker
    metrics: Metrics
    recorder: EventRecorder
    resolver_port: ResolverPortFactory


class Leader:
    """One tenure. `run` goes on until cancelled."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._memories = Memories()
        self._ports = PortBook()
        self._pod_labels = PodLabels()
        self._resting = RestingPorts(
            ground.client, namespace=ground.settings.operator_namespace, clock=ground.clock
        )
        self._controller = Controller(
            "elastiservice", self._reconcile, workers=ground.settings.workers, timeout=60.0
        )
        self._trickle = Trickle(self._enqueue)
        self._reconciler: ElastiServiceReconciler | None = None
        self._looks: FirstLooks | None = None

    async def run(self) -> None:
        """Lead."""
        ground, settings = self._ground, self._ground.settings
        async with contextlib.AsyncExitStack() as stack:
            evaluator = await stack.enter_async_context(self._evaluator())
            port = await stack.enter_async_context(ground.resolver_port())
            decisions = self._decisions(evaluator)
            definition = Definition(ground.client, ground.directory)
            await definition.check()
            self._reconciler = self._make_reconciler(port, decisions, evaluator, definition)
            await self._enter_ports()
            self._looks = FirstLooks(self._present())
            await stack.enter_async_context(self._listening())
            self._watch_all()
            sweeper = Sweeper(
                client=ground.client,
                elastiservices=ground.caches.elastiservices,
                services=ground.caches.services,
                our_slices=ground.caches.our_slices,
                period=settings.sweep_period,
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run(), name="controller")
                group.create_task(self._poller(decisions, evaluator).run(), name="poller")
                group.create_task(sweeper.run(), name="sweeper")
                group.create_task(definition.run(), name="definition")

    def _present(self) -> Iterator[Request]:
        for es in self._ground.caches.elastiservices.all():
            yield Request(es.metadata.namespace, es.metadata.name)

    async def _enter_ports(self) -> None:
        """Enter every port that is in use or rests before the first one is given away."""
        resting = await self._resting.load()
        self._claim_ports()
        now = asyncio.get_running_loop().time()
        for port, age in resting.items():
            self._ports.rest(port, now - age)

        self._rest_orphans(now)

    def _rest_orphans(self, now: float) -> None:
        """Let ports rest that are published for nobody: traffic may still come there."""
        for piece in self._ground.caches.our_slices.all():
            for port in piece.ports or ():
                self._ports.abandon(port.port or 0, now)

    def _claim_ports(self) -> None:
        caches = self._ground.caches
        for es in caches.elastiservices.all():
            service = caches.services.find(es.metadata.namespace, es.spec.service)
            names = slice_names(es.spec.service).values()
            found = (caches.our_slices.find(es.metadata.namespace, name) for name in names)
            slices = [piece for piece in found if piece is not None]
            if service is not None:
                self._ports.claim(owner_of(es), published_ports(slices, service))
            reported = {port.port: port.resolver_port for port in es.status.resolver_ports}
            self._ports.claim(owner_of(es), reported)

    # What it is made of

    def _evaluator(self) -> Evaluator:
        settings = self._ground.settings
        return Evaluator(
            clock=self._ground.clock,
            stale_after=max(120.0, 4 * settings.polling_interval),
            prometheus_address=settings.prometheus_address,
            prometheus_authorization=settings.prometheus_authorization,
        )

    def _decisions(self, evaluator: Evaluator) -> Decisions:
        return Decisions(
            directory=self._ground.directory,
            memories=self._memories,
            evidence=evidence_by(self._ground.directory, evaluator),
            clock=self._ground.clock,
            polling_interval=self._ground.settings.polling_interval,
        )

    def _poller(self, decisions: Decisions, evaluator: Evaluator) -> Poller:
        return Poller(
            elastiservices=self._ground.caches.elastiservices,
            private_slices=self._ground.caches.private_slices,
            memories=self._memories,
            decisions=decisions,
            evaluator=evaluator,
            enqueue=self._enqueue,
            interval=self._ground.settings.polling_interval,
        )

    def _make_reconciler(
        self,
        port: ResolverPort,
        decisions: Decisions,
        evaluator: Evaluator,
        definition: Definition,
    ) -> ElastiServiceReconciler:
        ground, caches = self._ground, self._ground.caches
        reporter = Reporter(ground.recorder)
        targets = Targets(ground.client, caches.manager, ground.scales, ground.metrics)
        handover = self._make_handover(port, reporter)
        finalizer = Finalizer(
            client=ground.client,
            directory=ground.directory,
            handover=handover,
            targets=targets,
            reporter=reporter,
            metrics=ground.metrics,
            resting=self._resting,
            settings=ground.settings,
        )
        parts = Parts(
            client=ground.client,
            elastiservices=caches.elastiservices,
            directory=ground.directory,
            memories=self._memories,
            observer=self._make_observer(targets),
            handover=handover,
            decisions=decisions,
            ports=self._ports,
            resting=self._resting,
            scales=ground.scales,
            resolvers=caches.resolvers,
            finalizer=finalizer,
            warnings=Warnings(ground.client, caches.services, self._pod_labels),
            definition=definition,
            reporter=reporter,
            pacer=Pacer(),
            evidence=evidence_by(ground.directory, evaluator),
            settings=ground.settings,
            clock=ground.clock,
        )
        return ElastiServiceReconciler(parts, self._enqueue)

    def _make_handover(self, port: ResolverPort, reporter: Reporter) -> Handover:
        ground = self._ground
        return Handover(
            client=ground.client,
            own=OwnObject(ground.client, ground.clock),
            port=port,
            resolvers=ground.caches.resolvers,
            scales=ground.scales,
            keda=ground.keda,
            reporter=reporter,
            metrics=ground.metrics,
            clock=ground.clock,
        )

    def _make_observer(self, targets: Targets) -> Observer:
        ground, caches = self._ground, self._ground.caches
        return Observer(
            client=ground.client,
            services=caches.services,
            private_slices=caches.private_slices,
            our_slices=caches.our_slices,
            targets=targets,
            resolvers=caches.resolvers,
        )

    # What it hears

    def _watch_all(self) -> None:
        caches = self._ground.caches
        self._watch(caches.elastiservices, self._of_elastiservice, "elastiservices")
        self._watch(caches.services, self._of_service, "services", counted_as="service")
        self._watch(caches.our_slices, self._of_slice, "slices", counted_as="slices")
        self._watch(caches.private_slices, self._of_slice, "private-slices", counted_as="slices")

    def _watch(self, scope: Scope[Any], concerned: Any, name: str, *, counted_as: str = "") -> None:
        mapping: Mapping[Any] = map_func(concerned)
        if counted_as:
            mapping = self._counted(mapping, counted_as, scope)
        for index, informer in enumerate(scope.informers):
            self._controller.watch(informer, mapping=mapping, name=f"{name}-{index}")

    def _counted(self, mapping: Mapping[Any], key: str, scope: Scope[Any]) -> Mapping[Any]:
        def requests(event: Notification[Any]) -> Iterable[Request]:
            found = tuple(mapping(event))
            if is_news(event, scope.access):
                for request in found:
                    self._ground.metrics.handled(request, key)
            return found

        return requests

    def _of_elastiservice(self, es: ElastiService) -> Iterable[Request]:
        namespace = es.metadata.namespace
        own = Request(namespace, es.metadata.name)
        return (own, *self._ground.directory.naming(namespace, es.spec.service))

    def _of_service(self, service: Service) -> Iterable[Request]:
        namespace, selector = service.metadata.namespace, service.spec.selector or {}
        named = self._concerned(namespace, service.metadata.name)
        return (*named, *self._pod_labels.selected_by(namespace, selector))

    def _of_slice(self, piece: EndpointSlice) -> Iterable[Request]:
        return self._concerned(piece.metadata.namespace, piece.service)

    def _concerned(self, namespace: str, service: str) -> Iterable[Request]:
        public = self._ground.caches.public_name(namespace, service)
        return self._ground.directory.naming(namespace, public)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        ground = self._ground
        handles = ground.caches.our_slices.add_handler(self._slice_changed, name="leader")
        ground.caches.resolvers.listen(self._resolvers_changed)
        ground.waker.listen(before=self._waking, after=self._enqueue)
        try:
            yield
        finally:
            ground.waker.listen(before=None, after=None)
            ground.caches.resolvers.listen(None)
            for informer, handle in handles:
                await informer.remove_handler(handle)

    def _slice_changed(self, event: Notification[EndpointSlice]) -> None:
        if not isinstance(event, Deleted):
            return
        meta = event.obj.metadata
        for request in self._concerned(meta.namespace, event.obj.service):
            if (memory := self._memories.find(request)) is not None:
                memory.slices.gone(meta.name, meta.resource_version)
                self._enqueue(request)

    def _resolvers_changed(self, flipped: bool) -> None:  # noqa: FBT001 -- the listener's contract
        for request, memory in self._memories.items():
            if memory.state in (State.ENGAGING, State.PARKING, State.WAKING):
                self._enqueue(request)
            elif flipped or memory.state is State.PROXY:
                self._trickle.add(request)

    def _waking(self, request: Request) -> None:
        if self._reconciler is not None:
            self._reconciler.wake(request)

    # What it does

    def _enqueue(self, request: Request) -> None:
        self._controller.queue.add(request, priority=_WAKE_PRIORITY)

    async def _reconcile(self, request: Request) -> Result | None:
        assert self._reconciler is not None
        assert self._looks is not None
        clock, metrics = asyncio.get_running_loop().time, self._ground.metrics
        await self._ground.waker.wait_calm()
        began = clock()
        try:
            result = await self._reconciler.reconcile(request)
        except Exception as error:
            metrics.reconciled(request, clock() - began, error)
            self._looks.looked(request, failed=True)
            raise
        finally:
            self._trickle.looked(request)
        memory = self._memories.find(request)
        if memory is None:
            metrics.forget(request)
            self._pod_labels.forget(request)
        else:
            metrics.reconciled(request, clock() - began, None)
            metrics.state(request, memory.state)
        self._looks.looked(request, failed=False)
        return result
