"""The EndpointSlice controller, and which Services a change concerns."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from devkube.controllers.context import BY_NODE, ControllerSpec, SharedInformers
from devkube.controllers.endpoint_slice_plan import (
    CONTROLLER,
    FAMILY,
    SERVICE,
    SERVICES,
    SLICES,
    SliceDraft,
    SlicePlan,
    labels_for,
    plan_slices,
)
from devkube.controllers.objects import NODES, SlimNode, SlimPod
from devkube.controllers.pod_control import (
    controller_reference,
    delete_same,
    is_namespace_ending,
    note_write,
    patch_owned,
)
from kubeloop.client.errors import ApiError, KubeError
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request
from kubeloop.controller.sources import map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.informer.handlers import Notification, Updated
from kubeloop.objects.core import MANAGED_BY_LABEL, EndpointSlice, Service
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import create_merge_patch

NAME = "endpointslice"
BY_SERVICE = "service"


def pods_of(shared: SharedInformers, service: Service) -> list[SlimPod]:
    """Return the pods that a Service selects."""
    pods = shared.pods.lister.namespace(service.metadata.namespace).list()
    return [pod for pod in pods if service.selects(pod.metadata.labels)]


def services_of_pod(shared: SharedInformers, pod: SlimPod) -> Iterable[Request]:
    """Return the Services that select a pod."""
    namespace = pod.metadata.namespace
    for service in shared.informer(SERVICES, Service).lister.namespace(namespace).list():
        if service.has_endpoints and service.selects(pod.metadata.labels):
            yield Request(namespace, service.metadata.name)


def services_on_node(shared: SharedInformers, node: str) -> Iterable[Request]:
    """Return the Services that have pods on a node."""
    for pod in shared.pods.store.by_index(BY_NODE, node):
        yield from services_of_pod(shared, pod)


def concerns_endpoints(note: Notification[SlimPod]) -> bool:
    """Whether a pod changed in a way that shows in endpoints."""
    return _face(note.old) != _face(note.new) if isinstance(note, Updated) else True


def _face(pod: SlimPod) -> tuple[object, ...]:
    meta, spec = pod.metadata, pod.spec
    state = (pod.is_ready, pod.is_deleting, pod.is_terminal)
    return (meta.uid, meta.labels, *state, pod.addresses, spec.node_name, spec.hostname)


class SliceReconciler:
    """Keeps the slices of one Service."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._services = shared.informer(SERVICES, Service)
        self._nodes = shared.informer(NODES, SlimNode)
        self._cache = shared.informer(SLICES, EndpointSlice)
        self._cache.add_indexers({BY_SERVICE: _service_index})
        self._slices = shared.resource(SLICES)
        self._events = shared.recorder("endpoint-slice-controller")
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
        plan = plan_slices(service, pods_of(self._shared, service), self._existing(request), nodes)
        try:
            await self._carry_out(service, plan)
        except KubeError as error:
            message = f"Error updating Endpoint Slices for Service {request}: {error}"
            self._events.warning(service, "FailedToUpdateEndpointSlices", message, gvk=SERVICE)
            raise

    def _existing(self, request: Request) -> list[EndpointSlice]:
        return [
            item
            for item in self._cache.store.by_index(BY_SERVICE, request.key)
            if (item.metadata.labels or {}).get(MANAGED_BY_LABEL) == CONTROLLER
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
            await delete_same(self._slices, item.metadata)

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
            "addressType": FAMILY,
            **_content(draft),
        }
        try:
            note_write(self.guard, service, SLICES, await self._slices.create(document))
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
        await patch_owned(self.guard, service, self._slices, meta, document)


def _content(draft: SliceDraft) -> JsonObject:
    return {
        "endpoints": msgspec.to_builtins(draft.endpoints),
        "ports": msgspec.to_builtins(draft.ports),
    }


def _service_index(item: EndpointSlice) -> list[str]:
    name = item.service
    return [f"{item.metadata.namespace}/{name}"] if name else []


def _service_of(item: EndpointSlice) -> Iterable[Request]:
    if (item.metadata.labels or {}).get(MANAGED_BY_LABEL) == CONTROLLER and item.service:
        yield Request(item.metadata.namespace, item.service)


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    reconciler = SliceReconciler(shared)
    part = ControllerSpec.of(NAME, reconciler, workers=2, guard=reconciler.guard)
    part.controller.watch(shared.informer(SERVICES, Service))
    part.controller.watch(
        shared.pods,
        mapping=map_func(lambda pod: services_of_pod(shared, pod)),
        predicates=[concerns_endpoints],
    )
    part.controller.watch(shared.informer(SLICES, EndpointSlice), mapping=map_func(_service_of))
    # A pod on a node that is not there is left out; the node's coming and going matters.
    part.controller.watch(
        shared.informer(NODES, SlimNode),
        mapping=map_func(lambda node: services_on_node(shared, node.metadata.name)),
        predicates=[by_kind(updated=lambda _note: False)],
    )
    return part
