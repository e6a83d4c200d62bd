"""The leader's work: one reconciler, fed by the shared caches, its poller, its sweeper.

Made again each time the lease is ours: what a former tenure remembered is not trusted, since
another leader may have been at work meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from elasti.api.defaults import stale_after
from elasti.operator.dependencies import Dependencies, LeaderDependencies
from elasti.operator.handover.finalize import OrphanSweeper
from elasti.operator.handover.ports import PortBook
from elasti.operator.handover.quarantine import PortQuarantine, recover_ports
from elasti.operator.handover.reconciler import ElastiServiceReconciler
from elasti.operator.handover.state import StateStore
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, evidence_lookup
from elasti.operator.idleness.poller import Poller
from elasti.operator.pacing import BoundedRequeue
from elasti.operator.reconcile_loop import ReconcileLoop
from elasti.operator.report.crd_check import DefinitionCheck
from elasti.operator.report.warnings import PodLabels
from elasti.operator.watch.event_mapping import EventMapping
from elasti.triggers.registry import SecretUnavailable
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.controller.controller import Controller
from kubeloop.controller.queue.priority_queue import PriorityQueue

if TYPE_CHECKING:
    from elasti.operator.handover.resolver_client import ResolverClient, ResolverClientFactory
    from kubeloop.client.client import Client
    from kubeloop.controller.reconcile import Request, Result

_CONTROLLER = "elastiservice"
_WAKE_PRIORITY = 10
_RECONCILE_TIMEOUT = 60.0


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
            definition=DefinitionCheck(deps.client, deps.directory),
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
