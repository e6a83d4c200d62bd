"""Writes to the ElastiService itself: finalizer, annotation, status."""

from __future__ import annotations

from typing import Any

import msgspec

from elasti.api.names import (
    DOZE_GUARD,
    ELASTISERVICES,
    FIELD_MANAGER,
    FINALIZER,
    KEEP_AWAKE_ANNOTATION,
    PAUSED_OBJECTS_ANNOTATION,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.api.types import ElastiService
from elasti.logger import get_logger
from elasti.operator.model.facts import Facts
from elasti.operator.model.state import ServiceState
from elasti.operator.report.status import port_statuses
from elasti.operator.settings import OperatorSettings
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.client.resource import Resource
from kubeloop.client.subresource import Subresource
from kubeloop.controller.finalizers import add_finalizers
from kubeloop.objects.patches import JsonPatch, MergePatch, Patch, pointer
from kubeloop.objects.times import unix_seconds

_log = get_logger(__name__)


class ElastiServiceWriter:
    """Every write is safe to repeat, and gives way to one that came meanwhile."""

    def __init__(self, client: Client, settings: OperatorSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._objects = client.resource(ELASTISERVICES, ElastiService)
        self._status = self._objects.subresource("status", ElastiService)

    async def read(self, es: ElastiService, state: ServiceState) -> ElastiService:
        """Return the object as the server has it now. Raises KubeError."""
        meta = es.metadata
        found = await self._objects.get(meta.name, namespace=meta.namespace)
        state.own_writes.wrote_elastiservice(self._as_cached(found))
        return state.own_writes.newest_elastiservice(es)

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

    async def guard(self, es: ElastiService, state: ServiceState) -> None:
        """Have operators before 0.3, which would park its target, leave an object alone that may doze.

        An observed one they leave alone because it is suspended.
        """
        found = (es.metadata.annotations or {}).get(KEEP_AWAKE_ANNOTATION)
        may_doze = es.spec.sleep.mode != "Zero" and not es.spec.observes
        if not may_doze and found == DOZE_GUARD:
            await self._clear(es, state, KEEP_AWAKE_ANNOTATION)
        elif may_doze and found is None:
            patch = MergePatch({"metadata": {"annotations": {KEEP_AWAKE_ANNOTATION: DOZE_GUARD}}})
            state.own_writes.wrote_elastiservice(await self._patch(self._objects, es, patch))

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
                await self._clear(es, state, annotation)

    async def clear_sleep_request(self, es: ElastiService, state: ServiceState) -> None:
        """Remove a durable request to sleep once it is over."""
        if state.requests.sleep is None:
            await self._clear(es, state, SLEEP_ANNOTATION)

    async def note_previous_replicas(
        self, es: ElastiService, state: ServiceState, replicas: int
    ) -> None:
        """Record the target's replicas before it is scaled to zero, if a wake-up needs them."""
        wanted = es.spec.wake.replicas == "Previous" and es.spec.autoscaler is None
        if wanted and es.status.previous_replicas != replicas:
            await self.patch_status(es, state, {"previousReplicas": replicas})

    async def note_workers(self, es: ElastiService, state: ServiceState) -> bool:
        """Record what each workload gets back, before any is scaled to zero; False if the server drops it."""
        wanted = state.workers.statuses
        await self.patch_status(es, state, {"targets": msgspec.to_builtins(wanted)})
        return state.own_writes.newest_elastiservice(es).status.targets == wanted

    async def note_paused(self, es: ElastiService, state: ServiceState) -> None:
        """Record which autoscalers will be paused, before they are.

        The next leader must know, even if `spec.autoscaler` no longer names them.
        """
        names = {PAUSED_OBJECTS_ANNOTATION: state.autoscaler.annotation}
        if not names.items() <= (es.metadata.annotations or {}).items():
            patch = MergePatch({"metadata": {"annotations": names}})
            state.own_writes.wrote_elastiservice(await self._patch(self._objects, es, patch))

    async def _clear(self, es: ElastiService, state: ServiceState, annotation: str) -> None:
        asked = (es.metadata.annotations or {}).get(annotation)
        if asked is None:
            return
        path = pointer("metadata", "annotations", annotation)
        patch = JsonPatch(
            [{"op": "test", "path": path, "value": asked}, {"op": "remove", "path": path}]
        )
        try:
            state.own_writes.wrote_elastiservice(await self._patch(self._objects, es, patch))
        except (Invalid, Conflict, NotFound):
            _log.debug("annotation changed and is kept", name=es.metadata.name)

    async def patch_status(
        self, es: ElastiService, state: ServiceState, fields: dict[str, Any]
    ) -> None:
        """Merge fields into the status. Raises Conflict if a doze would be written onto a version that is not known."""
        body: dict[str, Any] = {"status": fields}
        if "doze" in fields:
            newest = state.own_writes.newest_elastiservice(es)
            body["metadata"] = {"resourceVersion": newest.metadata.resource_version}
        written = await self._patch(self._status, es, MergePatch(body))
        state.own_writes.wrote_elastiservice(written)

    async def publish_ports(self, facts: Facts, state: ServiceState) -> None:
        """Publish the ports that resolvers must open, before traffic is sent there."""
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
        return self._as_cached(found)

    def _as_cached(self, found: ElastiService) -> ElastiService:
        return found.with_default_triggers(self._settings.default_triggers, self._settings.vetoes)
