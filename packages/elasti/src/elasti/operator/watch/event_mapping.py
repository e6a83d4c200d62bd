"""Which ElastiServices an event concerns, and how soon they are reconciled for it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from elasti.api.names import PLURAL
from elasti.operator.handover.machine import State
from elasti.operator.watch.informer_manager import Scope, is_news
from kubeloop.controller.reconcile import Request
from kubeloop.controller.sources import Mapping, map_func
from kubeloop.informer import Deleted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from elasti.api.types import ElastiService
    from elasti.operator.leader import LeaderDependencies
    from elasti.operator.pacing import BoundedRequeue
    from kubeloop.controller.controller import Controller
    from kubeloop.informer.handlers import Notification
    from kubeloop.objects.core import EndpointSlice, Service


class EventMapping:
    """Turns events into reconciles."""

    def __init__(self, deps: LeaderDependencies, bounded_requeue: BoundedRequeue) -> None:
        self._deps = deps
        self._caches = deps.caches
        self._bounded_requeue = bounded_requeue

    # By the controller's queue

    def feed(self, controller: Controller) -> None:
        """Have the controller watch everything that concerns ElastiServices."""
        caches = self._caches
        self._watch(controller, caches.elastiservices, self._of_elastiservice, PLURAL)
        self._watch(controller, caches.services, self._of_service, "services", "service")
        self._watch(controller, caches.our_slices, self._of_slice, "slices", "slices")
        self._watch(controller, caches.private_slices, self._of_slice, "private-slices", "slices")

    def _watch(
        self, controller: Controller, scope: Scope[Any], concerned: Any, name: str, metric: str = ""
    ) -> None:
        mapping: Mapping[Any] = map_func(concerned)
        if metric:
            mapping = self._counted(mapping, metric, scope)
        for index, informer in enumerate(scope.informers):
            controller.watch(informer, mapping=mapping, name=f"{name}-{index}")

    def _counted(self, mapping: Mapping[Any], metric: str, scope: Scope[Any]) -> Mapping[Any]:
        def requests(event: Notification[Any]) -> Iterable[Request]:
            found = tuple(mapping(event))
            if is_news(event, scope.access):
                for request in found:
                    self._deps.metrics.handled(request, metric)
            return found

        return requests

    def _of_elastiservice(self, es: ElastiService) -> Iterable[Request]:
        namespace = es.metadata.namespace
        own = Request(namespace, es.metadata.name)
        return (own, *self._deps.directory.naming(namespace, es.spec.service))

    def _of_service(self, service: Service) -> Iterable[Request]:
        namespace, selector = service.metadata.namespace, service.spec.selector or {}
        named = self._concerned(namespace, service.metadata.name)
        return (*named, *self._deps.pod_labels.selected_by(namespace, selector))

    def _of_slice(self, endpoint_slice: EndpointSlice) -> Iterable[Request]:
        return self._concerned(endpoint_slice.metadata.namespace, endpoint_slice.service)

    def _concerned(self, namespace: str, service: str) -> Iterable[Request]:
        public = self._caches.public_name(namespace, service)
        return self._deps.directory.naming(namespace, public)

    # At once

    @contextlib.asynccontextmanager
    async def listening(
        self, *, before_wake: Callable[[Request, str], None]
    ) -> AsyncIterator[None]:
        """Hear of slices that go, of resolvers, and of wake-ups (`before_wake` as they begin)."""
        handles = self._caches.our_slices.add_handler(self._slice_changed, name="leader")
        self._caches.resolvers.listen(self._resolvers_changed)
        self._deps.waker.listen(before=before_wake, after=self._deps.enqueue, asked=self._asked_up)
        try:
            yield
        finally:
            self._deps.waker.listen(before=None, after=None)
            self._caches.resolvers.listen(None)
            for informer, handle in handles:
                await informer.remove_handler(handle)

    def _asked_up(self, request: Request, scaled: bool) -> bool:  # noqa: FBT001 -- the listener's contract
        state = self._deps.states.find(request)
        if state is None or state.current is None:
            return False
        if scaled:
            state.requests.note_scale_written(self._deps.wall())
        return state.requests.scaled_at is not None

    def _slice_changed(self, event: Notification[EndpointSlice]) -> None:
        if not isinstance(event, Deleted):
            return
        meta = event.obj.metadata
        for request in self._concerned(meta.namespace, event.obj.service):
            if (state := self._deps.states.find(request)) is not None:
                state.own_writes.slices.gone(meta.name, meta.resource_version)
                self._deps.enqueue(request)

    def _resolvers_changed(self, flipped: bool) -> None:  # noqa: FBT001 -- the listener's contract
        for request, state in self._deps.states.items():
            if state.current in (State.ENGAGING, State.DRAINING, State.PARKING, State.WAKING):
                self._deps.enqueue(request)
            elif flipped or state.current is State.PROXY:
                self._bounded_requeue.add(request)
