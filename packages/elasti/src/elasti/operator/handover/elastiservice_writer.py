"""Writes to the ElastiService itself: finalizer, annotation, status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from elasti.api.names import (
    ELASTISERVICES,
    FIELD_MANAGER,
    FINALIZER,
    PAUSED_OBJECTS_ANNOTATION,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.api.types import ElastiService
from elasti.operator.report.status import port_statuses
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.controller.finalizers import add_finalizers
from kubeloop.objects.patches import JsonPatch, MergePatch, pointer
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_OWN = "own"

_log = structlog.get_logger(__name__)


def paused_objects(es: ElastiService) -> frozenset[str]:
    """Return the ScaledObjects that may be paused for an ElastiService, as it was written down."""
    noted = (es.metadata.annotations or {}).get(PAUSED_OBJECTS_ANNOTATION, "")
    return frozenset(name for name in noted.split(",") if name)


class ElastiServiceWriter:
    """Every write is safe to repeat, and gives way to one that came meanwhile."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._objects = client.resource(ELASTISERVICES, ElastiService)
        self._status = self._objects.subresource("status", ElastiService)
        self._clock = clock

    def newest(self, cached: ElastiService, memory: ServiceState) -> ElastiService:
        """Return the object as it is after our own writes, where the cache does not show them yet.

        Else what was just reported would be reported again.
        """
        return memory.own.newest(_OWN, cached, cached.metadata.resource_version) or cached

    async def has_finalizer(self, es: ElastiService) -> bool:
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

    async def clear_wake_request(self, es: ElastiService, memory: ServiceState) -> None:
        """Take a durable wake request away once the target is up; it must not wake twice."""
        if not memory.wake and memory.state is not None:
            await self._clear(es, WAKE_ANNOTATION)

    async def clear_sleep_request(self, es: ElastiService, memory: ServiceState) -> None:
        """Take a durable request to sleep away once it is over."""
        if memory.sleep is None:
            await self._clear(es, SLEEP_ANNOTATION)

    async def note_paused(self, es: ElastiService, memory: ServiceState) -> None:
        """Write down which ScaledObjects are paused, before they are.

        Whoever leads next must know, also where `spec.autoscaler` names them no more.
        """
        names = ",".join(sorted(memory.keda_paused))
        if (es.metadata.annotations or {}).get(PAUSED_OBJECTS_ANNOTATION) == names:
            return
        written = await self._objects.patch(
            es.metadata.name,
            MergePatch({"metadata": {"annotations": {PAUSED_OBJECTS_ANNOTATION: names}}}),
            namespace=es.metadata.namespace,
            field_manager=FIELD_MANAGER,
        )
        memory.own.wrote(_OWN, written.metadata.resource_version, written)

    async def clear_paused(self, es: ElastiService, memory: ServiceState) -> None:
        """Take that note away once everything works again."""
        if not memory.keda_paused:
            await self._clear(es, PAUSED_OBJECTS_ANNOTATION)

    async def _clear(self, es: ElastiService, annotation: str) -> None:
        asked = (es.metadata.annotations or {}).get(annotation)
        if asked is None:
            return
        path = pointer("metadata", "annotations", annotation)
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
            _log.debug("a newer request came meanwhile", elastiservice=es.metadata.name)

    async def patch_status(
        self, es: ElastiService, memory: ServiceState, body: dict[str, Any]
    ) -> None:
        """Merge fields into the status."""
        written = await self._status.patch(
            es.metadata.name,
            MergePatch(body),
            namespace=es.metadata.namespace,
            field_manager=FIELD_MANAGER,
        )
        memory.own.wrote(_OWN, written.metadata.resource_version, written)

    async def stamp(self, es: ElastiService, memory: ServiceState) -> None:
        """Note that the target was scaled up now."""
        now = format_time(self._clock.now())
        await self.patch_status(es, memory, {"status": {"lastScaledUpTime": now}})

    async def publish_ports(self, facts: Facts, memory: ServiceState) -> None:
        """Tell resolvers which ports to open, before anybody is sent there."""
        ports = port_statuses(facts.service, facts.ports)
        if ports == facts.es.status.resolver_ports:
            return
        shown = [
            {"port": port.port, "resolverPort": port.resolver_port, "name": port.name}
            for port in ports
        ]
        await self.patch_status(facts.es, memory, {"status": {"resolverPorts": shown}})
