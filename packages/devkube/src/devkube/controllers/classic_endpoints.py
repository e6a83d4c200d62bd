"""The Endpoints controller: one object for each Service, ready and other addresses apart."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from devkube.controllers.context import ControllerSpec
from devkube.controllers.endpoint_slice import concerns_endpoints, pods_of, services_of_pod
from devkube.controllers.endpoint_slice_plan import (
    ENDPOINTS,
    HEADLESS,
    SERVICES,
    ClassicEndpoints,
    SelectingService,
    addresses_of,
    families_of,
    family_of,
    ports_of,
)
from devkube.controllers.pod_control import is_namespace_ending
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.objects.patches import MergePatch, create_merge_patch, same_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from devkube.controllers.context import SharedInformers
    from devkube.controllers.endpoint_slice_plan import Ports
    from devkube.controllers.objects import SlimPod
    from kubeloop.controller.reconcile import Request
    from kubeloop.objects.meta import JsonObject


MANAGED_BY = "endpoints.kubernetes.io/managed-by"
CONTROLLER = "endpoint-controller"
# The object says so itself when there are more; nobody in a dev cluster has as many.
_MOST = 1000


def labels_for(service: SelectingService) -> dict[str, str]:
    """Return the Service's labels and the one that says who made it."""
    labels = {**(service.metadata.labels or {}), MANAGED_BY: CONTROLLER}
    labels.pop(HEADLESS, None)
    return {**labels, HEADLESS: ""} if service.is_headless else labels


def subsets_of(service: SelectingService, pods: Collection[SlimPod]) -> list[JsonObject]:
    """Return the addresses of the pods by the ports that they have in common."""
    groups: dict[Ports, dict[str, list[JsonObject]]] = {}
    for pod in sorted(_listed(service, pods), key=addresses_of):
        ports = ports_of(service, pod)
        address = _address(service, pod)
        if address is None or (not ports and (service.spec.ports or not service.is_headless)):
            continue
        ready = service.spec.publish_not_ready_addresses or pod.is_ready
        group = groups.setdefault(ports, {})
        group.setdefault("addresses" if ready else "notReadyAddresses", []).append(address)
    return [_subset(ports, groups[ports]) for ports in sorted(groups, key=str)]


def _listed(service: SelectingService, pods: Iterable[SlimPod]) -> list[SlimPod]:
    everything = service.spec.publish_not_ready_addresses
    return [
        pod
        for pod in pods
        if not pod.is_terminal and addresses_of(pod) and (everything or not pod.is_deleting)
    ][:_MOST]


def _address(service: SelectingService, pod: SlimPod) -> JsonObject | None:
    family = families_of(service)[0]
    address = next((a for a in addresses_of(pod) if family_of(a) == family), None)
    if address is None:
        return None
    meta, spec = pod.metadata, pod.spec
    document: JsonObject = {
        "ip": address,
        "targetRef": {
            "kind": "Pod",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
    }
    if spec.node_name:
        document["nodeName"] = spec.node_name
    if spec.hostname and spec.subdomain == service.metadata.name:
        document["hostname"] = spec.hostname
    return document


def _subset(ports: Ports, group: dict[str, list[JsonObject]]) -> JsonObject:
    if not ports:
        return dict(group)
    return {
        **group,
        "ports": [_port(port.name, port.port, port.protocol, port.app_protocol) for port in ports],
    }


def _port(
    name: str | None, number: int | None, protocol: str | None, app_protocol: str | None
) -> JsonObject:
    document: JsonObject = {"port": number, "protocol": protocol}
    if name:
        document["name"] = name
    if app_protocol:
        document["appProtocol"] = app_protocol
    return document


NAME = "endpoints"


class EndpointsReconciler:
    """Keeps the Endpoints of one Service."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._services = shared.informer(SERVICES, SelectingService)
        self._cache = shared.informer(ENDPOINTS, ClassicEndpoints)
        self._endpoints = shared.resource(ENDPOINTS)
        self.guard = ConsistencyGuard()
        self.guard.follow(ENDPOINTS, self._cache.store)

    async def __call__(self, request: Request) -> None:
        """Compare and write."""
        service = self._services.lister.find(*request)
        present = self._cache.lister.find(*request)
        if service is None:
            self.guard.clear(request)
            if present is not None and MANAGED_BY in (present.metadata.labels or {}):
                await self._delete(request)
        elif service.has_endpoints:
            await self._write(request, service, present)

    async def _write(
        self, request: Request, service: SelectingService, present: ClassicEndpoints | None
    ) -> None:
        labels = labels_for(service)
        subsets = subsets_of(service, pods_of(self._shared, service))
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

    async def _create(
        self, request: Request, service: SelectingService, content: dict[str, object]
    ) -> None:
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


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    reconciler = EndpointsReconciler(shared)
    part = ControllerSpec.of(NAME, reconciler, guard=reconciler.guard)
    part.controller.watch(shared.informer(SERVICES, SelectingService))
    part.controller.watch(
        shared.pods, mapping=services_of_pod(shared), predicates=[concerns_endpoints]
    )
    part.controller.watch(shared.informer(ENDPOINTS, ClassicEndpoints))
    return part
