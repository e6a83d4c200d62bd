"""The Endpoints controller."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from elasti.devcluster.controllers.endpoints import classic
from elasti.devcluster.controllers.endpoints.matching import (
    concerns_endpoints,
    pods_of,
    services_of_pod,
)
from elasti.devcluster.controllers.endpoints.objects import (
    ENDPOINTS,
    SERVICES,
    Endpoints,
    Service,
)
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pod_control import is_namespace_ending
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controller.consistency import ConsistencyGuard
from kubeloop.objects.patches import MergePatch, create_merge_patch, same_json

if TYPE_CHECKING:
    from elasti.devcluster.controllers.hub import Hub
    from kubeloop.controller.reconcile import Request

NAME = "endpoints"


class EndpointsReconciler:
    """Keeps the Endpoints of one Service."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._services = hub.informer(SERVICES, Service)
        self._cache = hub.informer(ENDPOINTS, Endpoints)
        self._endpoints = hub.resource(ENDPOINTS)
        self.guard = ConsistencyGuard()
        self.guard.follow(ENDPOINTS, self._cache.store)

    async def __call__(self, request: Request) -> None:
        """Compare and write."""
        service = self._services.lister.find(*request)
        present = self._cache.lister.find(*request)
        if service is None:
            self.guard.clear(request)
            if present is not None and classic.MANAGED_BY in (present.metadata.labels or {}):
                await self._delete(request)
        elif service.has_endpoints:
            await self._write(request, service, present)

    async def _write(self, request: Request, service: Service, present: Endpoints | None) -> None:
        labels = classic.labels_for(service)
        subsets = classic.subsets(service, pods_of(self._hub, service))
        if present is None:
            await self._create(request, service, {"labels": labels, "subsets": subsets})
            return
        meta = present.metadata
        patch = create_merge_patch(meta.labels or {}, labels)
        if not patch and same_json(present.subsets or (), subsets):
            return
        document = {
            "metadata": {"resourceVersion": meta.resource_version, "labels": patch},
            "subsets": subsets,
        }
        written = await self._endpoints.patch(
            meta.name, MergePatch(document), namespace=meta.namespace
        )
        version = written["metadata"]["resourceVersion"]
        self.guard.wrote(request, service.metadata.uid, ENDPOINTS, version)

    async def _create(self, request: Request, service: Service, content: dict[str, object]) -> None:
        metadata = {
            "name": request.name,
            "namespace": request.namespace,
            "labels": content["labels"],
        }
        document = {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata,
            "subsets": content["subsets"],
        }
        try:
            made = await self._endpoints.create(document)
        except ApiError as error:
            if is_namespace_ending(error):
                return
            raise
        version = made["metadata"]["resourceVersion"]
        self.guard.wrote(request, service.metadata.uid, ENDPOINTS, version)

    async def _delete(self, request: Request) -> None:
        with contextlib.suppress(NotFound):
            await self._endpoints.delete(request.name, namespace=request.namespace)


def make(hub: Hub) -> Part:
    """Return the controller."""
    reconciler = EndpointsReconciler(hub)
    part = Part.of(NAME, reconciler, guard=reconciler.guard)
    part.controller.watch(hub.informer(SERVICES, Service))
    part.controller.watch(hub.pods, mapping=services_of_pod(hub), predicates=[concerns_endpoints])
    part.controller.watch(hub.informer(ENDPOINTS, Endpoints))
    return part
