"""The end of an ElastiService: wake, wait until pods take the traffic, remove what we made, let go.

Until then the resolver goes on holding: its slice belongs to the public Service and not to the
ElastiService. The wait is bounded, and there is none where it could not end well: the namespace is
going, or the Service or the target is gone.

Nodes hear of the slice's end later than we do, and send connections to the resolver until then. It
knows where to take them as long as there are the ElastiService and the private Service; so those stay
for the engage settle longer than the slice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from elasti.api.names import FINALIZER, private_service_name
from elasti.operator.modes import State
from elasti.operator.plan import owed_to_keda
from elasti.operator.projections import SERVICES, Service
from kubeloop.client.deletion import Preconditions
from kubeloop.client.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from kubeloop.controller.finalizers import remove_finalizers
from kubeloop.controller.reconcile import Request

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from elasti.operator.directory import Directory
    from elasti.operator.handover import Handover
    from elasti.operator.memory import Memory
    from elasti.operator.metrics import Metrics
    from elasti.operator.observation import Facts
    from elasti.operator.ops_informer import Targets
    from elasti.operator.reporting import Reporter
    from elasti.operator.resting import RestingPorts
    from elasti.operator.settings import Settings
    from kubeloop.client.client import Client

_RESOURCE = "elasti.truefoundry.com/v1alpha1/elastiservices"
_PAUSE = 0.5

_log = structlog.get_logger(__name__)


class Finalizer:
    """Ends ElastiServices."""

    def __init__(
        self,
        *,
        client: Client,
        directory: Directory,
        handover: Handover,
        targets: Targets,
        reporter: Reporter,
        metrics: Metrics,
        resting: RestingPorts,
        settings: Settings,
    ) -> None:
        self._objects = client.resource(_RESOURCE)
        self._services = client.resource(SERVICES, Service)
        self._namespaces = client.resource("v1/namespaces")
        self._directory = directory
        self._handover = handover
        self._targets = targets
        self._reporter = reporter
        self._metrics = metrics
        self._resting = resting
        self._settings = settings

    async def finalize(self, facts: Facts, memory: Memory) -> float | None:
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

    async def _end(self, facts: Facts, memory: Memory) -> float | None:
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

    async def _must_wait(self, facts: Facts, memory: Memory) -> bool:
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

    def _is_overdue(self, memory: Memory) -> bool:
        now = asyncio.get_running_loop().time()
        if memory.finalizing_since is None:
            memory.finalizing_since = now
        return now - memory.finalizing_since >= self._settings.finalize_wait

    async def _until_nodes_know(self, facts: Facts, memory: Memory) -> float:
        """Return for how many seconds nodes may still send connections to the resolver."""
        left = memory.sliced_at + self._settings.engage_settle - asyncio.get_running_loop().time()
        if left <= 0 or facts.service is None or await self._is_terminating(facts.namespace):
            return 0.0
        return left

    async def _wake(self, facts: Facts, memory: Memory) -> bool:
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

    async def _resume_keda(self, facts: Facts, memory: Memory) -> None:
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
        await self._resting.note(named | set(facts.ports.values()))
        try:
            await self._objects.patch(es.metadata.name, patch, namespace=es.metadata.namespace)
        except NotFound:
            return None
        except (Invalid, Conflict):
            _log.debug("changed meanwhile; the next look goes on", elastiservice=es.metadata.name)
            return _PAUSE
        return None
