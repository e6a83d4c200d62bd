"""The leader's work: one reconciler, fed by the shared caches, its poller, its sweeper.

Made again each time the lease is ours: what a former tenure remembered is not trusted, since
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
import time
from typing import TYPE_CHECKING

import structlog

from elasti.api.defaults import stale_after
from elasti.operator.handover.finalize import OrphanSweeper
from elasti.operator.handover.ports import PortBook
from elasti.operator.handover.quarantine import PortQuarantine, recover_ports
from elasti.operator.handover.reconciler import ElastiServiceReconciler
from elasti.operator.handover.state import StateStore
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, evidence_lookup
from elasti.operator.idleness.poller import Poller
from elasti.operator.pacing import BoundedRequeue
from elasti.operator.report.warnings import DefinitionCheck, PodLabels
from elasti.operator.watch.event_mapping import EventMapping
from elasti.triggers.registry import SecretUnavailable
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
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.wake import TargetWaker
    from elasti.operator.watch.caches import OperatorCaches
    from elasti.operator.watch.directory import Directory
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_log = structlog.get_logger(__name__)
_CONTROLLER = "elastiservice"
_WAKE_PRIORITY = 10
_RECONCILE_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What every replica has, leader or not."""

    client: Client
    settings: OperatorSettings
    clock: Clock
    caches: OperatorCaches
    directory: Directory
    scales: ScaleHandler
    autoscalers: Autoscalers
    waker: TargetWaker
    metrics: OperatorMetrics
    reporter: EventReporter

    def wall(self) -> float:
        """Return the time of day, in seconds since 1970."""
        return self.clock.now().timestamp()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDependencies(Dependencies):
    """What one tenure has on top.

    `enqueue` asks for a reconcile that cannot wait, `read_soon` for a reading of triggers that were
    never read.
    """

    states: StateStore
    ports: PortBook
    quarantine: PortQuarantine
    pod_labels: PodLabels
    resolver_client: ResolverClient
    definition: DefinitionCheck
    decisions: Decisions
    evidence: Callable[[Request], Sequence[Evidence]]
    enqueue: Callable[[Request], None]
    read_soon: Callable[[Request], None]


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


@dataclasses.dataclass(eq=False)
class ReconcileLoop:
    """Reconciles for the controller's workers."""

    deps: LeaderDependencies
    reconciler: ElastiServiceReconciler
    bounded_requeue: BoundedRequeue

    def __post_init__(self) -> None:
        present = self.deps.caches.elastiservices.all()
        self._progress = StartupProgress(
            Request(es.metadata.namespace, es.metadata.name) for es in present
        )

    async def reconcile(self, request: Request) -> Result | None:
        """Reconcile one ElastiService, in its turn. Raises what failed."""
        clock, metrics = asyncio.get_running_loop().time, self.deps.metrics
        await self.deps.waker.wait_calm()
        began = clock()
        try:
            result = await self.reconciler.reconcile(request)
        except Exception as error:
            metrics.reconciled(request, clock() - began, error)
            self._progress.reconciled(request, failed=True)
            raise
        finally:
            self.bounded_requeue.reconciled(request)
        state = self.deps.states.find(request)
        if state is None:
            metrics.forget(request)
            self.deps.pod_labels.forget(request)
        else:
            metrics.reconciled(request, clock() - began, None)
            metrics.state(request, state.current)
        self._progress.reconciled(request, failed=False)
        return result


class Leader:
    """One tenure. `run` goes on until cancelled.

    `former_at`: until when the leader before is known to have led, in seconds since 1970. What status
    says that its triggers have shown is good if that is not long ago.
    """

    def __init__(
        self,
        deps: Dependencies,
        open_resolver_client: ResolverClientFactory,
        *,
        former_at: float = -math.inf,
    ) -> None:
        self._former_at = former_at
        self._deps = deps
        self._open_resolver_client = open_resolver_client
        library = deps.metrics.library
        self._controller = Controller(
            _CONTROLLER,
            self._reconcile,
            queue=PriorityQueue(metrics=library.queue(_CONTROLLER)),
            workers=deps.settings.workers,
            timeout=_RECONCILE_TIMEOUT,
            metrics=library.controller(_CONTROLLER),
        )
        self._loop: ReconcileLoop | None = None
        self._poller: Poller | None = None

    async def run(self) -> None:
        """Lead."""
        settings = self._deps.settings
        evaluator = Evaluator(
            clock=self._deps.clock,
            stale_after=stale_after(settings.polling_interval),
            variables=settings.trigger_variables,
            secret=functools.partial(read_secret, self._deps.client),
            client=self._deps.client,
            former_at=self._former_at,
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(evaluator)
            resolver_client = await stack.enter_async_context(self._open_resolver_client())
            deps = self._make_dependencies(evaluator, resolver_client)
            await deps.definition.check()
            await recover_ports(deps.ports, deps.quarantine, deps.caches)
            reconciler, requeue = ElastiServiceReconciler(deps), BoundedRequeue(self._enqueue)
            self._loop = ReconcileLoop(deps, reconciler, requeue)
            events = EventMapping(deps, requeue)
            await stack.enter_async_context(events.listening(before_wake=reconciler.wake))
            events.feed(self._controller)
            sweeper = OrphanSweeper(deps.client, deps.caches, period=settings.sweep_period)
            self._poller = self._make_poller(deps, evaluator)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run(), name="controller")
                group.create_task(self._poller.run(), name="poller")
                group.create_task(sweeper.run(), name="sweeper")
                group.create_task(deps.definition.run(), name="definition")

    def _make_poller(self, deps: LeaderDependencies, evaluator: Evaluator) -> Poller:
        return Poller(
            elastiservices=deps.caches.elastiservices,
            private_slices=deps.caches.private_slices,
            states=deps.states,
            decisions=deps.decisions,
            evaluator=evaluator,
            enqueue=self._enqueue,
            interval=deps.settings.polling_interval,
            show=deps.metrics.triggers_show,
        )

    def _make_dependencies(
        self, evaluator: Evaluator, resolver_client: ResolverClient
    ) -> LeaderDependencies:
        deps, states = self._deps, StateStore()
        evidence = evidence_lookup(deps.directory, evaluator)
        return LeaderDependencies(
            **{field.name: getattr(deps, field.name) for field in dataclasses.fields(deps)},
            states=states,
            ports=PortBook(),
            quarantine=PortQuarantine(
                deps.client, namespace=deps.settings.operator_namespace, clock=deps.clock
            ),
            pod_labels=PodLabels(),
            resolver_client=resolver_client,
            definition=DefinitionCheck(deps.client),
            decisions=Decisions(
                directory=deps.directory,
                states=states,
                evidence=evidence,
                clock=deps.clock,
                polling_interval=deps.settings.polling_interval,
            ),
            evidence=evidence,
            enqueue=self._enqueue,
            read_soon=self._read_soon,
        )

    def _read_soon(self, request: Request) -> None:
        if self._poller is not None:
            self._poller.read_soon(request)

    def _enqueue(self, request: Request) -> None:
        self._controller.queue.add(request, priority=_WAKE_PRIORITY)

    async def _reconcile(self, request: Request) -> Result | None:
        assert self._loop is not None
        return await self._loop.reconcile(request)


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
