"""The leader's work: one reconciler, fed by the shared caches, its poller, its sweeper.

Made again each time the lease is ours: what a former tenure remembered is not trusted, since
another leader may have been at work meanwhile. `StartupProgress` logs, once, that everything
that was there at the start has been reconciled: from then on only changes count. It is the line
to look for after a restart, and what the benchmark of a restart waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any

import structlog

from elasti.api.defaults import stale_after
from elasti.api.names import PLURAL
from elasti.operator.handover.children import published_ports, slice_names
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.handover.execute import HandoverExecutor
from elasti.operator.handover.finalize import Finalizer, OrphanSweeper
from elasti.operator.handover.machine import State
from elasti.operator.handover.observe import ClusterReader, port_owner
from elasti.operator.handover.ports import PortBook
from elasti.operator.handover.quarantine import PortQuarantine
from elasti.operator.handover.reconciler import ElastiServiceReconciler, ReconcilerDeps
from elasti.operator.handover.state import StateStore
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, evidence_lookup
from elasti.operator.idleness.poller import Poller
from elasti.operator.pacing import BoundedRequeue, RateSpacer
from elasti.operator.report.crd_check import DefinitionCheck
from elasti.operator.report.status import EventReporter
from elasti.operator.report.warnings import PodLabels, ServiceWarnings
from elasti.operator.watch.informer_manager import is_news
from elasti.operator.watch.targets import TargetWatcher
from kubeloop.controller.controller import Controller
from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.informer import Deleted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from elasti.api.types import ElastiService
    from elasti.operator.autoscalers.keda import Keda
    from elasti.operator.handover.resolver_client import ResolverClient, ResolverClientFactory
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.wake import TargetWaker
    from elasti.operator.watch.caches import OperatorCaches
    from elasti.operator.watch.directory import Directory
    from elasti.operator.watch.informer_manager import Scope
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.controller.events.recorder import EventRecorder
    from kubeloop.controller.sources import Mapping
    from kubeloop.informer.handlers import Notification
    from kubeloop.objects.core import EndpointSlice, Service


_CONTROLLER = "elastiservice"
_log = structlog.get_logger(__name__)


class StartupProgress:
    """The ElastiServices that were there at the start and have not been looked at."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = set(requests)
        self._count = len(self._left)
        self._failed = 0
        self._began = time.monotonic()
        if not self._left:
            self._log_summary()

    def reconciled(self, request: Request, *, failed: bool) -> None:
        """One was looked at, for the first time or again; what failed will be tried again."""
        if request not in self._left:
            return
        self._left.discard(request)
        self._failed += failed
        if not self._left:
            self._log_summary()

    def _log_summary(self) -> None:
        _log.info(
            "every ElastiService was looked at",
            elastiservices=self._count,
            failed=self._failed,
            seconds=round(time.monotonic() - self._began, 3),
        )


_WAKE_PRIORITY = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    """What every replica has, and a leader stands on."""

    client: Client
    settings: OperatorSettings
    clock: Clock
    caches: OperatorCaches
    directory: Directory
    scales: ScaleHandler
    keda: Keda
    waker: TargetWaker
    metrics: OperatorMetrics
    recorder: EventRecorder
    resolver_port: ResolverClientFactory


class Leader:
    """One tenure. `run` goes on until cancelled."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._states = StateStore()
        self._ports = PortBook()
        self._pod_labels = PodLabels()
        self._quarantine = PortQuarantine(
            context.client, namespace=context.settings.operator_namespace, clock=context.clock
        )
        library = context.metrics.library
        self._controller = Controller(
            _CONTROLLER,
            self._reconcile,
            queue=PriorityQueue(metrics=library.queue(_CONTROLLER)),
            workers=context.settings.workers,
            timeout=60.0,
            metrics=library.controller(_CONTROLLER),
        )
        self._bounded_requeue = BoundedRequeue(self._enqueue)
        self._reconciler: ElastiServiceReconciler | None = None
        self._startup_progress: StartupProgress | None = None

    async def run(self) -> None:
        """Lead."""
        context, settings = self._context, self._context.settings
        async with contextlib.AsyncExitStack() as stack:
            evaluator = await stack.enter_async_context(self._evaluator())
            port = await stack.enter_async_context(context.resolver_port())
            decisions = self._decisions(evaluator)
            definition = DefinitionCheck(context.client, context.directory)
            await definition.check()
            self._reconciler = self._make_reconciler(port, decisions, evaluator, definition)
            await self._enter_ports()
            self._startup_progress = StartupProgress(self._present())
            await stack.enter_async_context(self._listening())
            self._watch_all()
            sweeper = OrphanSweeper(
                client=context.client,
                elastiservices=context.caches.elastiservices,
                services=context.caches.services,
                our_slices=context.caches.our_slices,
                period=settings.sweep_period,
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run(), name="controller")
                group.create_task(self._poller(decisions, evaluator).run(), name="poller")
                group.create_task(sweeper.run(), name="sweeper")
                group.create_task(definition.run(), name="definition")

    def _present(self) -> Iterator[Request]:
        for es in self._context.caches.elastiservices.all():
            yield Request(es.metadata.namespace, es.metadata.name)

    async def _enter_ports(self) -> None:
        """Enter every port that is in use or rests before the first one is given away."""
        resting = await self._quarantine.load()
        self._claim_ports()
        now = asyncio.get_running_loop().time()
        for port, age in resting.items():
            self._ports.quarantine(port, now - age)

        self._quarantine_orphans(now)

    def _quarantine_orphans(self, now: float) -> None:
        """Let ports rest that are published for nobody: traffic may still come there."""
        for endpoint_slice in self._context.caches.our_slices.all():
            for port in endpoint_slice.ports or ():
                self._ports.abandon(port.port or 0, now)

    def _claim_ports(self) -> None:
        caches = self._context.caches
        for es in caches.elastiservices.all():
            service = caches.services.find(es.metadata.namespace, es.spec.service)
            names = slice_names(es.spec.service).values()
            found = (caches.our_slices.find(es.metadata.namespace, name) for name in names)
            slices = [endpoint_slice for endpoint_slice in found if endpoint_slice is not None]
            if service is not None:
                self._ports.claim(port_owner(es), published_ports(slices, service))
            reported = {port.port: port.resolver_port for port in es.status.resolver_ports}
            self._ports.claim(port_owner(es), reported)

    # What it is made of

    def _evaluator(self) -> Evaluator:
        settings = self._context.settings
        return Evaluator(
            clock=self._context.clock,
            stale_after=stale_after(settings.polling_interval),
            variables=settings.trigger_variables,
        )

    def _decisions(self, evaluator: Evaluator) -> Decisions:
        return Decisions(
            directory=self._context.directory,
            states=self._states,
            evidence=evidence_lookup(self._context.directory, evaluator),
            clock=self._context.clock,
            polling_interval=self._context.settings.polling_interval,
        )

    def _poller(self, decisions: Decisions, evaluator: Evaluator) -> Poller:
        return Poller(
            elastiservices=self._context.caches.elastiservices,
            private_slices=self._context.caches.private_slices,
            states=self._states,
            decisions=decisions,
            evaluator=evaluator,
            enqueue=self._enqueue,
            interval=self._context.settings.polling_interval,
        )

    def _make_reconciler(
        self,
        port: ResolverClient,
        decisions: Decisions,
        evaluator: Evaluator,
        definition: DefinitionCheck,
    ) -> ElastiServiceReconciler:
        context, caches = self._context, self._context.caches
        reporter = EventReporter(context.recorder)
        targets = TargetWatcher(context.client, caches.manager, context.scales, context.metrics)
        handover = self._make_handover(port, reporter)
        finalizer = Finalizer(
            client=context.client,
            directory=context.directory,
            handover=handover,
            targets=targets,
            reporter=reporter,
            metrics=context.metrics,
            resting=self._quarantine,
            settings=context.settings,
        )
        parts = ReconcilerDeps(
            client=context.client,
            elastiservices=caches.elastiservices,
            directory=context.directory,
            states=self._states,
            cluster_reader=self._make_cluster_reader(targets),
            handover=handover,
            decisions=decisions,
            ports=self._ports,
            resting=self._quarantine,
            scales=context.scales,
            resolvers=caches.resolvers,
            finalizer=finalizer,
            warnings=ServiceWarnings(context.client, caches.services, self._pod_labels),
            definition=definition,
            reporter=reporter,
            pacer=RateSpacer(),
            evidence=evidence_lookup(context.directory, evaluator),
            settings=context.settings,
            clock=context.clock,
        )
        return ElastiServiceReconciler(parts, self._enqueue)

    def _make_handover(self, port: ResolverClient, reporter: EventReporter) -> HandoverExecutor:
        context = self._context
        return HandoverExecutor(
            client=context.client,
            own=ElastiServiceWriter(context.client, context.clock),
            port=port,
            resolvers=context.caches.resolvers,
            scales=context.scales,
            keda=context.keda,
            reporter=reporter,
            metrics=context.metrics,
            clock=context.clock,
        )

    def _make_cluster_reader(self, targets: TargetWatcher) -> ClusterReader:
        context, caches = self._context, self._context.caches
        return ClusterReader(
            client=context.client,
            services=caches.services,
            private_slices=caches.private_slices,
            our_slices=caches.our_slices,
            targets=targets,
            resolvers=caches.resolvers,
        )

    # What it hears

    def _watch_all(self) -> None:
        caches = self._context.caches
        self._watch(caches.elastiservices, self._of_elastiservice, PLURAL)
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
                    self._context.metrics.handled(request, key)
            return found

        return requests

    def _of_elastiservice(self, es: ElastiService) -> Iterable[Request]:
        namespace = es.metadata.namespace
        own = Request(namespace, es.metadata.name)
        return (own, *self._context.directory.naming(namespace, es.spec.service))

    def _of_service(self, service: Service) -> Iterable[Request]:
        namespace, selector = service.metadata.namespace, service.spec.selector or {}
        named = self._concerned(namespace, service.metadata.name)
        return (*named, *self._pod_labels.selected_by(namespace, selector))

    def _of_slice(self, endpoint_slice: EndpointSlice) -> Iterable[Request]:
        return self._concerned(endpoint_slice.metadata.namespace, endpoint_slice.service)

    def _concerned(self, namespace: str, service: str) -> Iterable[Request]:
        public = self._context.caches.public_name(namespace, service)
        return self._context.directory.naming(namespace, public)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        context = self._context
        handles = context.caches.our_slices.add_handler(self._slice_changed, name="leader")
        context.caches.resolvers.listen(self._resolvers_changed)
        context.waker.listen(before=self._waking, after=self._enqueue)
        try:
            yield
        finally:
            context.waker.listen(before=None, after=None)
            context.caches.resolvers.listen(None)
            for informer, handle in handles:
                await informer.remove_handler(handle)

    def _slice_changed(self, event: Notification[EndpointSlice]) -> None:
        if not isinstance(event, Deleted):
            return
        meta = event.obj.metadata
        for request in self._concerned(meta.namespace, event.obj.service):
            if (memory := self._states.find(request)) is not None:
                memory.slices.gone(meta.name, meta.resource_version)
                self._enqueue(request)

    def _resolvers_changed(self, flipped: bool) -> None:  # noqa: FBT001 -- the listener's contract
        for request, memory in self._states.items():
            if memory.state in (State.ENGAGING, State.PARKING, State.WAKING):
                self._enqueue(request)
            elif flipped or memory.state is State.PROXY:
                self._bounded_requeue.add(request)

    def _waking(self, request: Request) -> None:
        if self._reconciler is not None:
            self._reconciler.wake(request)

    # What it does

    def _enqueue(self, request: Request) -> None:
        self._controller.queue.add(request, priority=_WAKE_PRIORITY)

    async def _reconcile(self, request: Request) -> Result | None:
        assert self._reconciler is not None
        assert self._startup_progress is not None
        clock, metrics = asyncio.get_running_loop().time, self._context.metrics
        await self._context.waker.wait_calm()
        began = clock()
        try:
            result = await self._reconciler.reconcile(request)
        except Exception as error:
            metrics.reconciled(request, clock() - began, error)
            self._startup_progress.reconciled(request, failed=True)
            raise
        finally:
            self._bounded_requeue.reconciled(request)
        memory = self._states.find(request)
        if memory is None:
            metrics.forget(request)
            self._pod_labels.forget(request)
        else:
            metrics.reconciled(request, clock() - began, None)
            metrics.state(request, memory.state)
        self._startup_progress.reconciled(request, failed=False)
        return result
