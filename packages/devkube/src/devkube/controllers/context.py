"""The surroundings of every controller: shared informers, and a loop that can be paused.

Each resource is watched once, in one slim representation, however many controllers read it. Indices that
several controllers use are made here, since an informer takes each name only once. A paused controller
keeps its requests, as one that hangs would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from devkube.controllers import objects
from devkube.controllers.pod_control import controller_index
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.client.client import Client
from kubeloop.client.resource import Resource
from kubeloop.controller.controller import Controller
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import ApiEventSink, EventRecorder
from kubeloop.controller.queue.ratelimiters import ExponentialLimiter, RateLimiter
from kubeloop.controller.reconcile import Reconcile, Request, Result
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.informer.reflector.source import ReflectorOptions
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject

T = TypeVar("T")

BY_CONTROLLER = "controller"
"""Index by the uid of an object's controller; see `claims.controller_index`."""
BY_NODE = "node"
"""Index of pods by their node."""

# A dev cluster's server is near and has few clients: one that lost it may ask again soon.
_COMES_BACK = Backoff(duration=0.1, factor=2.0, jitter=0.5, cap=2.0)
# A dev cluster's objects are few and its users wait: failures are tried again soon.
_LONGEST_RETRY = 10.0


class SharedInformers:
    """The shared parts. Informers are made at first use and run by the factory's owner."""

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self.client = client
        self.clock = clock or SystemClock()
        self.factory = SharedInformerFactory(client, options=ReflectorOptions(backoff=_COMES_BACK))
        self.recorders: dict[str, EventRecorder] = {}
        self.informers: dict[GroupVersionResource, SharedInformer[Any]] = {}
        self.pods = self.informer(objects.PODS, objects.SlimPod)
        self.pods.add_indexers({BY_CONTROLLER: controller_index, BY_NODE: _node})
        self.deployments = self.informer(objects.DEPLOYMENTS, objects.Deployment)
        self.replica_sets = self.informer(objects.REPLICA_SETS, objects.ReplicaSet)
        self.stateful_sets = self.informer(objects.STATEFUL_SETS, objects.StatefulSet)
        self.revisions = self.informer(objects.REVISIONS, objects.ControllerRevision)
        for owned in (self.replica_sets, self.revisions):
            owned.add_indexers({BY_CONTROLLER: controller_index})

    def informer(self, resource: GroupVersionResource, kind: type[T]) -> SharedInformer[T]:
        """Return the one informer of a resource, over all namespaces."""
        if resource not in self.informers:
            self.informers[resource] = self.factory.informer(resource, kind)
        return self.informers[resource]

    def recorder(self, component: str) -> EventRecorder:
        """Return the one event recorder of a component."""
        if component not in self.recorders:
            self.recorders[component] = EventRecorder(
                Reporter(component), ApiEventSink(self.client), clock=self.clock
            )
        return self.recorders[component]

    def resource(self, resource: GroupVersionResource) -> Resource[JsonObject]:
        """Return a resource to write to."""
        return self.client.resource(resource)


def _node(pod: objects.SlimPod) -> list[str]:
    return [pod.spec.node_name]


class PausableReconciler:
    """Passes requests on; while paused it keeps them.

    Nothing is awaited while paused, so that a stop does not wait for a pause to end.
    """

    def __init__(self, reconcile: Reconcile) -> None:
        self._reconcile = reconcile
        self.is_paused = False
        """Whether requests are kept."""
        self._held: dict[Request, None] = {}

    def pause(self) -> None:
        """Begin no further reconcile; one that runs goes on to its end."""
        self.is_paused = True

    def resume(self) -> tuple[Request, ...]:
        """Go on; returns what was kept, for the queue."""
        self.is_paused = False
        held, self._held = tuple(self._held), {}
        return held

    async def __call__(self, request: Request) -> Result | None:
        """Reconcile, or keep the request."""
        if self.is_paused:
            self._held[request] = None
            return None
        return await self._reconcile(request)


@dataclasses.dataclass(frozen=True, slots=True)
class ControllerSpec:
    """A controller that can be paused."""

    name: str
    controller: Controller
    gate: PausableReconciler
    background: Callable[[], Coroutine[Any, Any, None]] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 1,
        guard: ConsistencyGuard | None = None,
        background: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> ControllerSpec:
        """Build one around a reconciler; its watches are added to `controller`.

        `background` runs beside it, and is not paused with it.
        """
        gate = PausableReconciler(reconcile)
        limiter: RateLimiter[Request] = ExponentialLimiter(cap=_LONGEST_RETRY)
        controller = Controller(
            name, gate, workers=workers, consistency=guard, rate_limiter=limiter
        )
        return cls(name, controller, gate, background)

    def pause(self) -> None:
        """Do nothing from now on, as a controller that hangs."""
        self.gate.pause()

    def resume(self) -> None:
        """Go on with everything that was asked for meanwhile."""
        for request in self.gate.resume():
            self.controller.queue.add(request)
