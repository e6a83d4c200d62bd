"""What the controllers share: one client, one set of informers, one recorder, one clock.

Each resource is watched once, in one slim representation, whoever reads it. Indices that several
controllers use are made here, since an informer takes each name only once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from elasti.devcluster.controllers.claims import controller_index
from elasti.devcluster.controllers.events import Recorder
from elasti.devcluster.controllers.pods import PODS, Pod
from elasti.devcluster.controllers.workloads import (
    DEPLOYMENTS,
    REPLICA_SETS,
    REVISIONS,
    STATEFUL_SETS,
    ControllerRevision,
    Deployment,
    ReplicaSet,
    StatefulSet,
)
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import SystemClock
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.informer.options import ReflectorOptions

if TYPE_CHECKING:
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.client.resource import Resource
    from kubeloop.informer.shared_informer import SharedInformer
    from kubeloop.objects.gvk import GroupVersionResource
    from kubeloop.objects.meta import JsonObject

T = TypeVar("T")

BY_CONTROLLER = "controller"
"""Index by the uid of an object's controller; see `claims.controller_index`."""
BY_NODE = "node"
"""Index of pods by their node."""

# A dev cluster's server is near and has few clients: whoever lost it may ask again soon.
_COMES_BACK = Backoff(duration=0.1, factor=2.0, jitter=0.5, cap=2.0)


class Hub:
    """The shared parts. Informers are made at first use and run by the factory's owner."""

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self.client = client
        self.clock = clock or SystemClock()
        self.factory = SharedInformerFactory(client, options=ReflectorOptions(backoff=_COMES_BACK))
        self.recorder = Recorder(client, clock=self.clock)
        self.informers: dict[GroupVersionResource, SharedInformer[Any]] = {}
        self.pods = self.informer(PODS, Pod)
        self.pods.add_indexers({BY_CONTROLLER: controller_index, BY_NODE: _node})
        self.deployments = self.informer(DEPLOYMENTS, Deployment)
        self.replica_sets = self.informer(REPLICA_SETS, ReplicaSet)
        self.stateful_sets = self.informer(STATEFUL_SETS, StatefulSet)
        self.revisions = self.informer(REVISIONS, ControllerRevision)
        for owned in (self.replica_sets, self.revisions):
            owned.add_indexers({BY_CONTROLLER: controller_index})

    def informer(self, resource: GroupVersionResource, kind: type[T]) -> SharedInformer[T]:
        """Return the one informer of a resource, over all namespaces."""
        if resource not in self.informers:
            self.informers[resource] = self.factory.informer(resource, kind)
        return self.informers[resource]

    def resource(self, resource: GroupVersionResource) -> Resource[JsonObject]:
        """Return a resource to write to."""
        return self.client.resource(resource)


def _node(pod: Pod) -> list[str]:
    return [pod.spec.node_name]
