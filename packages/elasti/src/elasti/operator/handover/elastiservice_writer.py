"""Writes to the ElastiService itself: finalizer, annotation, status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from elasti.api.names import (
    ELASTISERVICES,
    FIELD_MANAGER,
    FINALIZER,
    KEEP_AWAKE_ANNOTATION,
    PAUSED_OBJECTS_ANNOTATION,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.api.types import ElastiService
from elasti.operator.report.status import port_statuses
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.controller.finalizers import add_finalizers
from kubeloop.objects.patches import JsonPatch, MergePatch, Patch, pointer
from kubeloop.objects.times import unix_seconds

if TYPE_CHECKING:
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.leader import Dependencies
    from kubeloop.client.resource import Resource
    from kubeloop.client.subresource import Subresource

_log = structlog.get_logger(__name__)


class ElastiServiceWriter:
    """Every write is safe to repeat, and gives way to one that came meanwhile."""

    def __init__(self, deps: Dependencies) -> None:
        client, self._clock = deps.client, deps.clock
        self._settings = deps.settings
        self._objects = client.resource(ELASTISERVICES, ElastiService)
        self._status = self._objects.subresource("status", ElastiService)

    async def has_finalizer(self, es: ElastiService) -> bool:
        """Put our finalizer on before anything is made that it has to clean up."""
        present = es.metadata.finalizers or []
        if FINALIZER in present:
            return True
        patch = add_finalizers(present, [FINALIZER], es.metadata.resource_version)
        assert patch is not None
        try:
            await self._patch(self._objects, es, patch)
        except (Invalid, Conflict, NotFound):
            return False
        return True

    async def clear_ended(self, es: ElastiService, state: ServiceState) -> None:
        """Take away the annotations of what is done or past: none may have its effect twice."""
        asked, kept = state.requests, state.requests.kept_text
        is_kept = bool(kept) and (es.metadata.annotations or {}).get(KEEP_AWAKE_ANNOTATION) == kept
        ended = {
            WAKE_ANNOTATION: not asked.wake and state.current is not None,
            KEEP_AWAKE_ANNOTATION: is_kept and unix_seconds(kept) <= self._clock.now().timestamp(),
            PAUSED_OBJECTS_ANNOTATION: not state.autoscaler.paused,
        }
        for annotation, is_over in ended.items():
            if is_over:
                await self._clear(es, annotation)

    async def clear_sleep_request(self, es: ElastiService, state: ServiceState) -> None:
        """Take a durable request to sleep away once it is over."""
        if state.requests.sleep is None:
            await self._clear(es, SLEEP_ANNOTATION)

    async def note_previous_replicas(
        self, es: ElastiService, state: ServiceState, replicas: int
    ) -> None:
        """Write down what the target has, before it is scaled to zero, where a wake-up needs it."""
        wanted = es.spec.wake.replicas == "Previous" and es.spec.autoscaler is None
        if wanted and es.status.previous_replicas != replicas:
            await self.patch_status(es, state, {"previousReplicas": replicas})

    async def note_paused(self, es: ElastiService, state: ServiceState) -> None:
        """Write down which autoscalers are paused, before they are.

        The next leader must know, also where `spec.autoscaler` names them no more.
        """
        names = {PAUSED_OBJECTS_ANNOTATION: state.autoscaler.annotation}
        if not names.items() <= (es.metadata.annotations or {}).items():
            patch = MergePatch({"metadata": {"annotations": names}})
            state.own_writes.wrote_elastiservice(await self._patch(self._objects, es, patch))

    async def _clear(self, es: ElastiService, annotation: str) -> None:
        asked = (es.metadata.annotations or {}).get(annotation)
        if asked is None:
            return
        path = pointer("metadata", "annotations", annotation)
        patch = JsonPatch(
            [{"op": "test", "path": path, "value": asked}, {"op": "remove", "path": path}]
        )
        try:
            await self._patch(self._objects, es, patch)
        except (Invalid, Conflict, NotFound):
            _log.debug("annotation changed and is kept", elastiservice=es.metadata.name)

    async def patch_status(
        self, es: ElastiService, state: ServiceState, fields: dict[str, Any]
    ) -> None:
        """Merge fields into the status."""
        written = await self._patch(self._status, es, MergePatch({"status": fields}))
        state.own_writes.wrote_elastiservice(written)

    async def publish_ports(self, facts: Facts, state: ServiceState) -> None:
        """Tell resolvers which ports to open, before traffic is sent there."""
        ports = port_statuses(facts.service, facts.ports)
        if ports != facts.es.status.resolver_ports:
            shown = msgspec.to_builtins(ports)
            await self.patch_status(facts.es, state, {"resolverPorts": shown})

    async def _patch(
        self,
        resource: Resource[ElastiService] | Subresource[ElastiService],
        es: ElastiService,
        patch: Patch,
    ) -> ElastiService:
        meta = es.metadata
        found = await resource.patch(
            meta.name, patch, namespace=meta.namespace, field_manager=FIELD_MANAGER
        )
        # As the cache has it.
        return found.with_default_triggers(self._settings.default_triggers, self._settings.vetoes)
