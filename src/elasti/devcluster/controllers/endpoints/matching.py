"""Which Services a change concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.controllers.endpoints.desired import addresses_of
from elasti.devcluster.controllers.endpoints.objects import SERVICES, Service
from elasti.devcluster.controllers.hub import BY_NODE
from kubeloop.controller.mapping import map_func
from kubeloop.controller.reconcile import Request
from kubeloop.informer.notifications import Updated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.controller.mapping import Mapping
    from kubeloop.informer.notifications import Notification


def pods_of(hub: Hub, service: Service) -> list[Pod]:
    """Return the pods that a Service selects."""
    pods = hub.pods.lister.namespace(service.metadata.namespace).list()
    return [pod for pod in pods if service.selects(pod.metadata.labels)]


def services_of_pod(hub: Hub) -> Mapping[Pod]:
    """Reconcile the Services that select a pod, or did before it changed."""
    services = hub.informer(SERVICES, Service)

    def selecting(pod: Pod) -> Iterable[Request]:
        namespace = pod.metadata.namespace
        for service in services.lister.namespace(namespace).list():
            if service.has_endpoints and service.selects(pod.metadata.labels):
                yield Request(namespace, service.metadata.name)

    return map_func(selecting)


def services_on_node(hub: Hub, node: str) -> Iterable[Request]:
    """Return the Services that have pods on a node."""
    services = hub.informer(SERVICES, Service).lister
    for pod in hub.pods.store.by_index(BY_NODE, node):
        namespace = pod.metadata.namespace
        for service in services.namespace(namespace).list():
            if service.has_endpoints and service.selects(pod.metadata.labels):
                yield Request(namespace, service.metadata.name)


def concerns_endpoints(note: Notification[Pod]) -> bool:
    """Whether a pod changed in a way that shows in endpoints."""
    if isinstance(note, Updated):
        return _face(note.old) != _face(note.new)
    return True


def _face(pod: Pod) -> tuple[object, ...]:
    meta, spec = pod.metadata, pod.spec
    state = (pod.is_ready, pod.is_deleting, pod.is_terminal)
    return (meta.uid, meta.labels, *state, addresses_of(pod), spec.node_name, spec.hostname)
