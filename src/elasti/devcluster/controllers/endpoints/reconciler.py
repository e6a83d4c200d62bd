"""The EndpointSlice controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers.endpoints.matching import (
    concerns_endpoints,
    pods_of,
    services_of_pod,
    services_on_node,
)
from elasti.devcluster.controllers.endpoints.objects import (
    MANAGED_BY,
    SERVICE,
    SERVICES,
    SLICES,
    EndpointSlice,
    Service,
)
from elasti.devcluster.controllers.endpoints.slices import (
    CONTROLLER,
    SliceDraft,
    SlicePlan,
    labels_for,
    plan_slices,
)
from elasti.devcluster.controllers.nodes.objects import NODES, Node
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pod_control import (
    controller_reference,
    is_namespace_ending,
)
from kubeloop.client.deletion import Preconditions
from kubeloop.client.errors import ApiError, KubeError, NotFound
from kubeloop.controller.consistency import ConsistencyGuard
from kubeloop.controller.mapping import map_func
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request
from kubeloop.objects.patches import MergePatch, create_merge_patch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from kubeloop.objects.meta import JsonObject

NAME = "endpointslice"
BY_SERVICE = "service"


class SliceReconciler:
    """Keeps the slices of one Service."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._services = hub.informer(SERVICES, Service)
        self._nodes = hub.informer(NODES, Node)
        self._cache = hub.informer(SLICES, EndpointSlice)
        self._cache.add_indexers({BY_SERVICE: _service_index})
        self._slices = hub.resource(SLICES)
        self._voice = hub.recorder.voice("endpoint-slice-controller", SERVICE)
        self.guard = ConsistencyGuard()
        self.guard.follow(SLICES, self._cache.store)

    async def __call__(self, request: Request) -> None:
        """Compare and write."""
        service = self._services.lister.find(*request)
        if service is None:
            self.guard.clear(request)
            return
        if not service.has_endpoints:
            return
        nodes = {node.metadata.name: node.metadata.labels for node in self._nodes.store.list()}
        plan = plan_slices(service, pods_of(self._hub, service), self._existing(request), nodes)
        try:
            await self._carry_out(service, plan)
        except KubeError as error:
            message = f"Error updating Endpoint Slices for Service {request}: {error}"
            self._voice.warning(service, "FailedToUpdateEndpointSlices", message)
            raise

    def _existing(self, request: Request) -> list[EndpointSlice]:
        return [
            item
            for item in self._cache.store.by_index(BY_SERVICE, request.key)
            if (item.metadata.labels or {}).get(MANAGED_BY) == CONTROLLER
            and item.metadata.deletion_timestamp is None
        ]

    async def _carry_out(self, service: Service, plan: SlicePlan) -> None:
        # A Service that is going gets no new slices: they would race with the garbage collector.
        if service.metadata.deletion_timestamp is None:
            for draft in plan.create:
                await self._create(service, draft)
        for draft in plan.update:
            await self._update(service, draft)
        for item in plan.delete:
            await self._delete(item)

    async def _create(self, service: Service, draft: SliceDraft) -> None:
        meta = service.metadata
        reference = controller_reference(service, SERVICE)
        document = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "generateName": f"{meta.name}-",
                "namespace": meta.namespace,
                "labels": labels_for(service),
                "ownerReferences": [msgspec.to_builtins(reference)],
            },
            "addressType": draft.family,
            **_content(draft),
        }
        try:
            self._note(service, await self._slices.create(document))
        except ApiError as error:
            if not is_namespace_ending(error):
                raise

    async def _update(self, service: Service, draft: SliceDraft) -> None:
        assert draft.present is not None
        meta = draft.present.metadata
        labels = create_merge_patch(meta.labels or {}, labels_for(service))
        document = {
            "metadata": {"resourceVersion": meta.resource_version, "labels": labels},
            **_content(draft),
        }
        written = await self._slices.patch(
            meta.name, MergePatch(document), namespace=meta.namespace
        )
        self._note(service, written)

    async def _delete(self, item: EndpointSlice) -> None:
        meta = item.metadata
        try:
            await self._slices.delete(
                meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
            )
        except NotFound:
            return

    def _note(self, service: Service, written: JsonObject) -> None:
        meta = service.metadata
        request = Request(meta.namespace, meta.name)
        self.guard.wrote(request, meta.uid, SLICES, written["metadata"]["resourceVersion"])


def _content(draft: SliceDraft) -> JsonObject:
    return {
        "endpoints": msgspec.to_builtins(draft.endpoints),
        "ports": msgspec.to_builtins(draft.ports),
    }


def _service_index(item: EndpointSlice) -> list[str]:
    name = item.service_name
    return [f"{item.metadata.namespace}/{name}"] if name else []


def _service_of(item: EndpointSlice) -> Iterable[Request]:
    if (item.metadata.labels or {}).get(MANAGED_BY) == CONTROLLER and item.service_name:
        yield Request(item.metadata.namespace, item.service_name)


def make(hub: Hub) -> Part:
    """Return the controller."""
    reconciler = SliceReconciler(hub)
    part = Part.of(NAME, reconciler, workers=2, guard=reconciler.guard)
    part.controller.watch(hub.informer(SERVICES, Service))
    part.controller.watch(hub.pods, mapping=services_of_pod(hub), predicates=[concerns_endpoints])
    part.controller.watch(hub.informer(SLICES, EndpointSlice), mapping=map_func(_service_of))
    # A pod on a node that is not there is left out; the node's coming and going matters.
    part.controller.watch(
        hub.informer(NODES, Node),
        mapping=map_func(lambda node: services_on_node(hub, node.metadata.name)),
        predicates=[by_kind(updated=lambda _note: False)],
    )
    return part
