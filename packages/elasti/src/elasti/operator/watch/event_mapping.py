"""Which ElastiServices an event concerns, and how soon they are reconciled for it.

`PodLabels` indexes the labels of every target's pods: a Service that comes, goes or changes its
selector concerns not only the ElastiServices that name it, but all whose pods it selects, or
selected.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from elasti.api.names import PLURAL
from elasti.api.states import State
from elasti.api.types import ElastiService
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.findings import lasting_selector
from elasti.operator.model.state import StateStore
from elasti.operator.model.targets import target_of, workers_of
from elasti.operator.pacing import BoundedRequeue
from elasti.operator.watch.caches import OperatorCaches
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.informer_manager import Scope, is_news
from kubeloop.controller.controller import Controller
from kubeloop.controller.reconcile import Request
from kubeloop.controller.sources import Mapping as EventMap
from kubeloop.controller.sources import map_func
from kubeloop.informer import Deleted
from kubeloop.informer.handlers import Notification
from kubeloop.objects.core import EndpointSlice, Service


class PodLabels:
    """The labels of the pods of every ElastiService's target. One writer: the leader's reconciler."""

    def __init__(self) -> None:
        self._labels: dict[Request, Mapping[str, str]] = {}
        self._having: dict[tuple[str, str, str], set[Request]] = {}

    def put(self, request: Request, labels: Mapping[str, str]) -> None:
        """Note the labels that a target gives its pods now."""
        if self._labels.get(request) == labels:
            return
        self.forget(request)
        self._labels[request] = labels
        for key, value in labels.items():
            self._having.setdefault((request.namespace, key, value), set()).add(request)

    def forget(self, request: Request) -> None:
        """The ElastiService is gone; safe if it is unknown."""
        for key, value in self._labels.pop(request, {}).items():
            pair = request.namespace, key, value
            having = self._having[pair]
            having.discard(request)
            if not having:
                del self._having[pair]

    def selected_by(self, namespace: str, selector: Mapping[str, str]) -> Iterator[Request]:
        """Iterate over the ElastiServices whose pods a selector finds; an empty one finds none."""
        if not selector:
            return
        pairs = ((namespace, key, value) for key, value in selector.items())
        fewest = min((self._having.get(pair, set()) for pair in pairs), key=len)
        for request in sorted(fewest):
            if selector.items() <= self._labels[request].items():
                yield request


@dataclasses.dataclass(eq=False, kw_only=True)
class EventMapping:
    """Turns events into reconciles."""

    caches: OperatorCaches
    directory: Directory
    states: StateStore
    pod_labels: PodLabels
    metrics: OperatorMetrics
    enqueue: Callable[[Request], None]
    bounded_requeue: BoundedRequeue

    # By the controller's queue

    def feed(self, controller: Controller) -> None:
        """Have the controller watch everything that concerns ElastiServices."""
        caches = self.caches
        self._watch(controller, caches.elastiservices, self._of_elastiservice, PLURAL)
        self._watch(controller, caches.services, self._of_service, "services", "service")
        self._watch(controller, caches.our_slices, self._of_slice, "slices", "slices")
        self._watch(controller, caches.private_slices, self._of_slice, "private-slices", "slices")

    def _watch(
        self, controller: Controller, scope: Scope[Any], concerned: Any, name: str, metric: str = ""
    ) -> None:
        mapping: EventMap[Any] = map_func(concerned)
        if metric:
            mapping = self._counted(mapping, metric, scope)
        for index, informer in enumerate(scope.informers):
            controller.watch(informer, mapping=mapping, name=f"{name}-{index}")

    def _counted(self, mapping: EventMap[Any], metric: str, scope: Scope[Any]) -> EventMap[Any]:
        def requests(event: Notification[Any]) -> Iterable[Request]:
            found = tuple(mapping(event))
            if is_news(event, scope.access):
                for request in found:
                    self.metrics.handled(request, metric)
            return found

        return requests

    def _of_elastiservice(self, es: ElastiService) -> Iterable[Request]:
        namespace = es.metadata.namespace
        own = Request(namespace, es.metadata.name)
        named = self.directory.naming(namespace, es.spec.service)
        also = self.directory.workers.concerned((target_of(es), *workers_of(es)))
        return (own, *named, *self.directory.graph.concerned(own), *also)

    def _of_service(self, service: Service) -> Iterable[Request]:
        namespace, selector = service.metadata.namespace, lasting_selector(service)
        named = self._concerned(namespace, service.metadata.name)
        return (*named, *self.pod_labels.selected_by(namespace, selector))

    def _of_slice(self, endpoint_slice: EndpointSlice) -> Iterable[Request]:
        found = tuple(self._concerned(endpoint_slice.metadata.namespace, endpoint_slice.service))
        # Those that wait for its pods, too.
        waiting = (one for request in found for one in self.directory.graph.dependents(request))
        return (*found, *waiting)

    def _concerned(self, namespace: str, service: str) -> Iterable[Request]:
        public = self.caches.public_name(namespace, service)
        return self.directory.naming(namespace, public)

    # At once

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Subscribe to deleted slices and to changes of resolvers."""
        handles = self.caches.our_slices.add_handler(self._slice_changed, name="leader")
        self.caches.resolvers.listen(self._resolvers_changed)
        try:
            yield
        finally:
            self.caches.resolvers.listen(None)
            for informer, handle in handles:
                await informer.remove_handler(handle)

    def _slice_changed(self, event: Notification[EndpointSlice]) -> None:
        if not isinstance(event, Deleted):
            return
        meta = event.obj.metadata
        for request in self._concerned(meta.namespace, event.obj.service):
            if (state := self.states.find(request)) is not None:
                state.own_writes.slices.gone(meta.name, meta.resource_version)
                self.enqueue(request)

    def _resolvers_changed(self, flipped: bool) -> None:  # noqa: FBT001 -- the listener's contract
        for request, state in self.states.items():
            if state.current in (State.ENGAGING, State.DRAINING, State.PARKING, State.WAKING):
                self.enqueue(request)
            elif flipped or state.current is State.PROXY:
                self.bounded_requeue.add(request)
