"""The end of an ElastiService: wake, wait for the pods, remove what we made, let go.

Until then the resolver goes on holding: its slice belongs to the public Service and not to the
ElastiService. The wait is bounded, and there is none where it could not end well: the namespace
is going, or the Service or the target is gone.

Nodes hear of the slice's end later than we do, and send connections to the resolver until then.
It knows where to take them as long as there are the ElastiService and the private Service; so
those stay for the engage settle longer than the slice.

`OrphanSweeper` removes what was ours and belongs to no ElastiService any more. A slice without
an ElastiService would send a Service's traffic to a resolver that does not know it; so what a
crash or a renamed `spec.service` leaves behind is looked for, and deleted by its uid. Which
ElastiServices exist is read from the cache itself: the directory hears of them one by one,
after a start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from elasti.api.names import ELASTISERVICES, FINALIZER, PRIVATE_LABEL, private_service_name
from elasti.operator.handover.machine import State
from elasti.operator.handover.plan import owed_to_keda
from kubeloop.aio.wait import until
from kubeloop.client.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.finalizers import remove_finalizers
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import SERVICES, SLICES, Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.api.types import ElastiService
    from elasti.operator.handover.execute import HandoverExecutor
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.quarantine import PortQuarantine
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.report.status import EventReporter
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.watch.directory import Directory
    from elasti.operator.watch.informer_manager import Scope
    from elasti.operator.watch.targets import TargetWatcher
    from kubeloop.client.client import Client
    from kubeloop.objects.core import EndpointSlice
    from kubeloop.objects.meta import ObjectMeta


_PAUSE = 0.5

_log = structlog.get_logger(__name__)


class Finalizer:
    """Ends ElastiServices."""

    def __init__(
        self,
        *,
        client: Client,
        directory: Directory,
        handover: HandoverExecutor,
        targets: TargetWatcher,
        reporter: EventReporter,
        metrics: OperatorMetrics,
        resting: PortQuarantine,
        settings: OperatorSettings,
    ) -> None:
        self._objects = client.resource(ELASTISERVICES)
        self._services = client.resource(SERVICES, Service)
        self._namespaces = client.resource("v1/namespaces")
        self._directory = directory
        self._handover = handover
        self._targets = targets
        self._reporter = reporter
        self._metrics = metrics
        self._quarantine = resting
        self._settings = settings

    async def finalize(self, facts: Facts, memory: ServiceState) -> float | None:
        """Go as far as possible; returns after how many seconds to go on, None when done."""
        meta = facts.es.metadata
        if FINALIZER not in (meta.finalizers or ()):
            return None
        request = Request(meta.namespace, meta.name)
        try:
            pause = await self._end(facts, memory)
        except KubeError as error:
            self._metrics.finalized(request, error)
            raise
        if pause is None:
            self._metrics.finalized(request, None)
        return pause

    async def _end(self, facts: Facts, memory: ServiceState) -> float | None:
        es = facts.es
        if not self._owns(es):
            return await self._let_go(facts)
        if await self._must_wait(facts, memory):
            return _PAUSE
        await self._resume_keda(facts, memory)
        await self._handover.remove(facts.slices, memory)
        if pause := await self._until_nodes_know(facts, memory):
            return pause
        await self._remove_private(facts)
        return await self._let_go(facts)

    def forget(self, request: Request) -> None:
        """The object is gone."""
        self._targets.leave(*request)

    def _owns(self, es: ElastiService) -> bool:
        """Whether the Service's companions are this one's to remove."""
        owner = self._directory.owner(es.metadata.namespace, es.spec.service)
        return owner is None or owner.uid == es.metadata.uid

    async def _must_wait(self, facts: Facts, memory: ServiceState) -> bool:
        es = facts.es
        hopeless = facts.service is None or facts.target is None
        if es.spec.deletion_policy == "Leave" or hopeless:
            return False
        if not facts.slices and not facts.at_zero:
            return False
        if self._is_overdue(memory):
            _log.warning("no endpoint became ready in time", elastiservice=es.metadata.name)
            return False
        woken = await self._wake(facts, memory)
        if not facts.slices and woken:
            return False  # nobody is held, so nobody waits for the pods
        if facts.slices and memory.settled_ready(facts.now, self._settings.release_settle):
            return False
        return not await self._is_terminating(es.metadata.namespace)

    def _is_overdue(self, memory: ServiceState) -> bool:
        now = asyncio.get_running_loop().time()
        if memory.finalizing_since is None:
            memory.finalizing_since = now
        return now - memory.finalizing_since >= self._settings.finalize_wait

    async def _until_nodes_know(self, facts: Facts, memory: ServiceState) -> float:
        """Return for how many seconds nodes may still send connections to the resolver."""
        left = memory.sliced_at + self._settings.engage_settle - asyncio.get_running_loop().time()
        if left <= 0 or facts.service is None or await self._is_terminating(facts.namespace):
            return 0.0
        return left

    async def _wake(self, facts: Facts, memory: ServiceState) -> bool:
        """Ask for pods; False where that failed and may be tried again."""
        await self._resume_keda(facts, memory)
        try:
            await self._handover.wake(facts, memory, facts.es.spec.min_target_replicas)
        except NotFound:
            return True
        except KubeError as error:
            self._reporter.not_woken(facts.es, str(error))
            return False
        return True

    async def _resume_keda(self, facts: Facts, memory: ServiceState) -> None:
        for name in owed_to_keda(State.WAKING, facts, memory):
            await self._handover.resume_keda(facts, memory, name)

    async def _is_terminating(self, namespace: str) -> bool:
        try:
            found = await self._namespaces.get(namespace)
        except Forbidden:
            return False
        except NotFound:
            return True
        return bool(found["metadata"].get("deletionTimestamp"))

    async def _remove_private(self, facts: Facts) -> None:
        name = private_service_name(facts.es.spec.service)
        present = facts.private
        uid = present.metadata.uid if present else ""
        try:
            await self._services.delete(
                name,
                namespace=facts.namespace,
                preconditions=Preconditions(uid=uid) if uid else None,
            )
        except (NotFound, Conflict):
            return

    async def _let_go(self, facts: Facts) -> float | None:
        """Take our finalizer away; returns after how many seconds to try again, None when done."""
        es = facts.es
        patch = remove_finalizers(es.metadata.finalizers or [], [FINALIZER])
        if patch is None:
            return None
        named = {port.resolver_port for port in es.status.resolver_ports}
        await self._quarantine.note(named | set(facts.ports.values()))
        try:
            await self._objects.patch(es.metadata.name, patch, namespace=es.metadata.namespace)
        except NotFound:
            return None
        except (Invalid, Conflict):
            _log.debug("changed meanwhile; the next look goes on", elastiservice=es.metadata.name)
            return _PAUSE
        return None


class OrphanSweeper:
    """Looks for orphans, from time to time."""

    def __init__(
        self,
        *,
        client: Client,
        elastiservices: Scope[ElastiService],
        services: Scope[Service],
        our_slices: Scope[EndpointSlice],
        period: float,
    ) -> None:
        self._client = client
        self._elastiservices = elastiservices
        self._services = services
        self._our_slices = our_slices
        self._period = period

    async def run(self) -> None:
        """Sweep until cancelled."""
        await until(self.sweep, self._period, jitter=0.1)

    async def sweep(self) -> None:
        """Delete every orphan that there is now. Raises KubeError."""
        for resource, meta in (*self.orphans(),):
            _log.info(
                "orphan is deleted", resource=resource, namespace=meta.namespace, name=meta.name
            )
            try:
                await self._client.resource(resource).delete(
                    meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
                )
            except (NotFound, Conflict):
                continue

    def orphans(self) -> Iterator[tuple[str, ObjectMeta]]:
        """Iterate over what belongs to nobody."""
        named = {(es.metadata.namespace, es.spec.service) for es in self._elastiservices.all()}
        for endpoint_slice in self._our_slices.all():
            if (endpoint_slice.metadata.namespace, endpoint_slice.service) not in named:
                yield SLICES, endpoint_slice.metadata
        for service in self._services.all():
            if (service.metadata.labels or {}).get(PRIVATE_LABEL) == "true":
                owners = service.metadata.owner_references or ()
                if not any((service.metadata.namespace, owner.name) in named for owner in owners):
                    yield SERVICES, service.metadata
