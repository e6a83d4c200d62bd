"""The leader's work: one reconciler, fed by the shared caches, its poller, its sweeper.

Made again each time the lease is ours: what an earlier tenure remembered is not trusted, since
another leader may have been at work meanwhile. What surrounds every reconcile is here, too: wake-ups
go first, metrics are kept, the start is logged.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import math
import secrets
import time
from typing import TYPE_CHECKING

from elasti.api.defaults import stale_after
from elasti.logger import bound, get_logger
from elasti.operator.doze.dozer import Dozer
from elasti.operator.doze.reader import DozeReader
from elasti.operator.handover.cluster_reader import ClusterReader
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.handover.execute import HandoverExecutor
from elasti.operator.handover.finalize import Finalizer, OrphanSweeper
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.handover.observer import Observer
from elasti.operator.handover.ports import PortBook
from elasti.operator.handover.quarantine import PortQuarantine, recover_ports
from elasti.operator.handover.reconciler import ElastiServiceReconciler
from elasti.operator.handover.scale_conflicts import ScaleConflicts
from elasti.operator.handover.status_report import StatusReport
from elasti.operator.handover.workers import Workers
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, evidence_lookup
from elasti.operator.idleness.poller import Poller
from elasti.operator.model.state import StateStore
from elasti.operator.observing.report import ObservationReport
from elasti.operator.observing.tally import ObservationTally
from elasti.operator.pacing import BoundedRequeue
from elasti.operator.report.warnings import DefinitionCheck
from elasti.operator.watch.event_mapping import EventMapping, PodLabels
from elasti.operator.watch.neighbours import Neighbours
from elasti.operator.watch.objects import FollowedObjects
from elasti.operator.watch.public_slices import PublicSlices
from elasti.operator.watch.targets import TargetWatcher
from elasti.triggers.reader import ReaderSettings, SecretUnavailable
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.controller.controller import Controller
from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elasti.operator.autoscalers.base import Autoscalers
    from elasti.operator.handover.resolver_client import ResolverClient, ResolverClientFactory
    from elasti.operator.idleness.decide import Evidence
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.report.events import EventReporter
    from elasti.operator.report.notifications import Notifier
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.waking.waker import Waker
    from elasti.operator.watch.caches import OperatorCaches
    from elasti.operator.watch.directory import Directory
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_log = get_logger(__name__)
_CONTROLLER = "elastiservice"
_WAKE_PRIORITY = 10
_RECONCILE_TIMEOUT = 60.0


class StartupProgress:
    """The ElastiServices that were there at the start and have not been reconciled.

    When all have been it logs so, once: the line to look for after a restart, and what the benchmark of
    one waits for.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = set(requests)
        self._count = len(self._left)
        self._failed = 0
        self._began = time.monotonic()
        if not self._left:
            self._log_summary()

    def reconciled(self, request: Request, *, failed: bool) -> None:
        """One was reconciled, for the first time or again; what failed will be tried again."""
        if request not in self._left:
            return
        self._left.discard(request)
        self._failed += failed
        if not self._left:
            self._log_summary()

    def _log_summary(self) -> None:
        _log.info(
            "startup reconcile complete",
            elastiservices=self._count,
            failed=self._failed,
            seconds=round(time.monotonic() - self._began, 3),
        )


@dataclasses.dataclass(eq=False, kw_only=True)
class Leader:
    """One tenure: what every replica has, and what only a leader needs on top. `run` goes on until cancelled.

    `former_at`: when the leader before is last known to have led, in seconds since 1970. What status
    says that its triggers have shown is good if that is not long ago.
    """

    client: Client
    settings: OperatorSettings
    clock: Clock
    caches: OperatorCaches
    directory: Directory
    scales: ScaleHandler
    autoscalers: Autoscalers
    waker: Waker
    metrics: OperatorMetrics
    reporter: EventReporter
    open_resolver_client: ResolverClientFactory
    former_at: float = -math.inf

    def __post_init__(self) -> None:
        library = self.metrics.library
        self._controller = Controller(
            _CONTROLLER,
            self._reconcile,
            queue=PriorityQueue(metrics=library.queue(_CONTROLLER)),
            workers=self.settings.workers,
            timeout=_RECONCILE_TIMEOUT,
            metrics=library.controller(_CONTROLLER),
        )
        self._reconciler: ElastiServiceReconciler | None = None
        self._progress: StartupProgress | None = None
        self._requeue = BoundedRequeue(self._enqueue)
        self._poller: Poller | None = None
        self._states, self._pod_labels = StateStore(), PodLabels()
        self._definition = DefinitionCheck(self.client)
        self._neighbours = Neighbours(self.client, self.settings, self._enqueue_all_of)
        self._notifier: Notifier | None = None
        if self.settings.notify_url:
            from elasti.operator.report import notifications  # noqa: PLC0415 -- few have a URL

            self._notifier = notifications.Notifier(self.settings, self.metrics, self.clock)
        self._ports = PortBook(*self.settings.port_range)
        self._quarantine = PortQuarantine(
            self.client, namespace=self.settings.operator_namespace, clock=self.clock
        )

    async def run(self) -> None:
        """Lead."""
        objects = FollowedObjects(self.client, self.caches.manager)
        reader_settings = ReaderSettings(
            clock=self.clock,
            client=self.client,
            variables=self.settings.trigger_variables,
            secret=functools.partial(read_secret, self.client),
            find=objects.find,
            leave=objects.leave,
        )
        evaluator = Evaluator(
            settings=reader_settings,
            stale_after=stale_after(self.settings.polling_interval),
            former_at=self.former_at,
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(evaluator)
            resolver_client = await stack.enter_async_context(self.open_resolver_client())
            await self._definition.check()
            await self._neighbours.look()
            await recover_ports(self._ports, self._quarantine, self.caches)
            evidence = evidence_lookup(self.directory, evaluator)
            decisions = Decisions(
                directory=self.directory,
                states=self._states,
                evidence=evidence,
                clock=self.clock,
                polling_interval=self.settings.polling_interval,
                engage_settle=self.settings.engage_settle,
            )
            self._reconciler = self._make_reconciler(resolver_client, decisions, evidence)
            self._progress = StartupProgress(
                Request(es.metadata.namespace, es.metadata.name)
                for es in self.caches.elastiservices.all()
            )
            self._poller = Poller(
                elastiservices=self.caches.elastiservices,
                private_slices=self.caches.private_slices,
                states=self._states,
                decisions=decisions,
                evaluator=evaluator,
                enqueue=self._enqueue,
                interval=self.settings.polling_interval,
                show=self.metrics.triggers_show,
                public_slices=PublicSlices(self.client, period=self.settings.polling_interval),
                observed=ObservationTally(decisions=decisions, enqueue=self._enqueue).look,
            )
            events = EventMapping(
                caches=self.caches,
                directory=self.directory,
                states=self._states,
                pod_labels=self._pod_labels,
                metrics=self.metrics,
                enqueue=self._enqueue,
                bounded_requeue=self._requeue,
            )
            stack.enter_context(self.waker.leading(self._states, self._enqueue))
            await stack.enter_async_context(events.listening())
            events.feed(self._controller)
            sweeper = OrphanSweeper(self.client, self.caches, period=self.settings.sweep_period)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._poller.run(), name="poller")
                group.create_task(sweeper.run(), name="sweeper")
                group.create_task(self._definition.run(), name="definition")
                group.create_task(self._neighbours.run(), name="neighbours")
                if self._notifier is not None:
                    group.create_task(self._notifier.run(), name="notifications")
                if self.settings.enrolment:
                    from elasti.operator.enrolment.controller import EnrolmentController  # noqa: PLC0415 -- few enable it

                    enrolment = EnrolmentController(
                        client=self.client,
                        settings=self.settings,
                        clock=self.clock,
                        services=self.caches.services,
                        elastiservices=self.caches.elastiservices,
                        reporter=self.reporter,
                    )
                    group.create_task(enrolment.run(), name="enrolment")
                # Here and not as a task: a lost lease cancels twice, which ends running reconciles, and a group would
                # keep the second from its tasks.
                await self._controller.run()

    def _make_reconciler(
        self,
        resolver_client: ResolverClient,
        decisions: Decisions,
        evidence: Callable[[Request], Sequence[Evidence]],
    ) -> ElastiServiceReconciler:
        client, settings, clock, caches = self.client, self.settings, self.clock, self.caches
        targets = TargetWatcher(client, caches.manager, self.scales, self.metrics)
        reader = ClusterReader(
            client=client,
            caches=caches,
            targets=targets,
            autoscalers=self.autoscalers,
            directory=self.directory,
            definition=self._definition,
            ports=self._ports,
            clock=clock,
            dozes=DozeReader(
                client=client, scales=self.scales, directory=self.directory, settings=settings
            ),
            neighbours=self._neighbours,
        )
        observer = Observer(
            reader=reader,
            decisions=decisions,
            ports=self._ports,
            pod_labels=self._pod_labels,
            reporter=self.reporter,
            settings=settings,
        )
        writer = ElastiServiceWriter(client, settings, clock)
        publisher = SlicePublisher(client, resolver_client, caches.resolvers)
        conflicts = ScaleConflicts(
            client=client, scales=self.scales, reporter=self.reporter, clock=clock
        )
        executor = HandoverExecutor(
            client=client,
            settings=settings,
            decisions=decisions,
            scales=self.scales,
            autoscalers=self.autoscalers,
            resolver_client=resolver_client,
            metrics=self.metrics,
            reporter=self.reporter,
            waker=self.waker,
            writer=writer,
            publisher=publisher,
            conflicts=conflicts,
            workers=Workers(self.scales, self.waker.known, writer, self.reporter),
        )
        dozer = Dozer(
            client=client,
            clock=clock,
            scales=self.scales,
            waker=self.waker,
            reporter=self.reporter,
            note=writer.patch_status,
        )
        return ElastiServiceReconciler(
            caches=caches,
            directory=self.directory,
            states=self._states,
            ports=self._ports,
            quarantine=self._quarantine,
            targets=targets,
            writer=writer,
            observer=observer,
            executor=executor,
            conflicts=conflicts,
            waker=self.waker,
            finalizer=Finalizer(
                client=client,
                settings=settings,
                metrics=self.metrics,
                directory=self.directory,
                services=caches.services,
                quarantine=self._quarantine,
                reader=reader,
                executor=executor,
                publisher=publisher,
                dozer=dozer,
                reporter=self.reporter,
            ),
            status_report=StatusReport(
                writer=writer,
                ports=self._ports,
                quarantine=self._quarantine,
                decisions=decisions,
                read_soon=self._read_soon,
                waker=self.waker,
                settings=settings,
                metrics=self.metrics,
                reporter=self.reporter,
                notifier=self._notifier,
            ),
            observation_report=ObservationReport(
                client=client,
                patch_status=writer.patch_status,
                evidence=evidence,
                read_soon=self._read_soon,
                reporter=self.reporter,
                clock=clock,
            ),
            settings=settings,
            clock=clock,
            metrics=self.metrics,
            reporter=self.reporter,
            dozer=dozer,
            enqueue=self._enqueue,
        )

    def _read_soon(self, request: Request) -> None:
        if self._poller is not None:
            self._poller.read_soon(request)

    def _enqueue(self, request: Request) -> None:
        self._controller.queue.add(request, priority=_WAKE_PRIORITY)

    def _enqueue_all_of(self, namespaces: frozenset[str]) -> None:
        for es in self.caches.elastiservices.all():
            if es.metadata.namespace in namespaces:
                self._enqueue(Request(es.metadata.namespace, es.metadata.name))

    async def _reconcile(self, request: Request) -> Result | None:
        """Reconcile one ElastiService, in its turn. Raises what failed."""
        assert self._reconciler is not None
        assert self._progress is not None
        clock, metrics = asyncio.get_running_loop().time, self.metrics
        state = self._states.find(request)
        # Clients are refused as long as a lost resolver is listed, and that waits for nothing.
        if state is None or not self.caches.resolvers.lost(state.listing.listed):
            await self.waker.wait_calm()
        began = clock()
        keys = {"namespace": request.namespace, "name": request.name}
        try:
            with bound(**keys, reconcile_id=secrets.token_hex(4)):
                result = await self._reconciler.reconcile(request)
        except Exception as error:
            metrics.reconciled(request, clock() - began, error)
            self._progress.reconciled(request, failed=True)
            raise
        finally:
            self._requeue.reconciled(request)
        state = self._states.find(request)
        if state is None:
            metrics.forget(request)
            self._pod_labels.forget(request)
        else:
            metrics.reconciled(request, clock() - began, None)
            metrics.state(request, state.current)
        self._progress.reconciled(request, failed=False)
        return result


async def read_secret(client: Client, namespace: str, name: str) -> dict[str, str]:
    """Read a Secret that a trigger names. Raises SecretUnavailable."""
    try:
        found = await client.resource("v1/secrets").get(name, namespace=namespace)
        data = found.get("data") or {}
        return {key: base64.b64decode(text).decode().strip() for key, text in data.items()}
    except NotFound:
        raise SecretUnavailable(f"there is no Secret {name}") from None
    except Forbidden:
        raise SecretUnavailable(
            f"the operator may not read Secret {name}: bind its account to a Role of the namespace"
            f" with verb get and resourceNames [{name}]"
        ) from None
    except (KubeError, ValueError) as error:
        raise SecretUnavailable(f"Secret {name} cannot be read ({type(error).__name__})") from None
