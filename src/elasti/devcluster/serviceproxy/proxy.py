"""The proxy of one node: Services and slices in, listening sockets out.

Handlers only note which Service changed; one task works through the notes and brings that Service's
listeners to what routing says. So there is one writer, however fast the changes come. A Service that
nobody can listen for is told so with an event, where there is a recorder, and in the log.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

from elasti.devcluster.serviceproxy.affinity import Affinity
from elasti.devcluster.serviceproxy.counters import Counters
from elasti.devcluster.serviceproxy.listener import PortListener
from elasti.devcluster.serviceproxy.objects import EndpointSlice, Service
from elasti.devcluster.serviceproxy.propagation import Propagation
from elasti.devcluster.serviceproxy.routing import Frontend, backends, family_of, frontends
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.gvk import GroupVersionKind

if TYPE_CHECKING:
    from kubeloop.controller.events import EventRecorder
    from kubeloop.informer import Notification
    from kubeloop.informer.factory import ResourceClient

_SERVICE = GroupVersionKind("", "v1", "Service")

_log = logging.getLogger(__name__)


class ServiceProxy:
    """Makes cluster IPs lead somewhere; runs until cancelled."""

    def __init__(
        self,
        client: ResourceClient,
        *,
        node: str = "",
        propagation: Propagation | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        self._factory = SharedInformerFactory(client, name=f"service proxy {node}")
        self._services = self._factory.informer("v1/services", Service)
        self._slices = self._factory.informer("discovery.k8s.io/v1/endpointslices", EndpointSlice)
        self._node = node
        self._recorder = recorder
        self.propagation = propagation or Propagation()
        self._seen_services: dict[str, Service] = {}
        self._seen_slices: dict[str, dict[str, EndpointSlice]] = {}
        self._slice_owners: dict[str, str] = {}
        self._listeners: dict[str, dict[Frontend, PortListener]] = {}
        self._counters: dict[str, Counters] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    def counters(self, namespace: str, name: str) -> Counters:
        """Return the connection counts of a Service; zeros where it was never reached."""
        return self._counters.setdefault(f"{namespace}/{name}", Counters())

    async def run(self) -> None:
        """Follow the cluster until cancelled; every socket is closed then."""
        self._services.add_handler(on_event=self._service_event)
        self._slices.add_handler(on_event=self._slice_event)
        try:
            async with self._factory.running():
                await self._factory.wait_for_sync()
                while True:
                    await self._update(await self._changed.get())
        finally:
            self.propagation.close()
            for key in list(self._listeners):
                await self._drop(key)

    # What the cluster says, as late as this node hears of it

    def _service_event(self, note: Notification[Service]) -> None:
        obj = self._services.store.get(note.key)
        self.propagation.pass_on(f"service {note.key}", lambda: self._see_service(note.key, obj))

    def _slice_event(self, note: Notification[EndpointSlice]) -> None:
        obj = self._slices.store.get(note.key)
        self.propagation.pass_on(f"slice {note.key}", lambda: self._see_slice(note.key, obj))

    def _see_service(self, key: str, service: Service | None) -> None:
        if service is None:
            self._seen_services.pop(key, None)
        else:
            self._seen_services[key] = service
        self._changed.put_nowait(key)

    def _see_slice(self, key: str, piece: EndpointSlice | None) -> None:
        owner = self._slice_owners.pop(key, "")
        if owner:
            del self._seen_slices[owner][key]
            self._changed.put_nowait(owner)
        if piece is not None and piece.service_key:
            self._slice_owners[key] = piece.service_key
            self._seen_slices.setdefault(piece.service_key, {})[key] = piece
            self._changed.put_nowait(piece.service_key)

    # Sockets

    async def _update(self, key: str) -> None:
        service = self._seen_services.get(key)
        if service is None:
            await self._drop(key)
            return
        listeners = self._listeners.setdefault(key, {})
        wanted = dict(frontends(service))
        for frontend in listeners.keys() - wanted.keys():
            await listeners.pop(frontend).close()
        slices = list(self._seen_slices.get(key, {}).values())
        for frontend, port in wanted.items():
            if frontend not in listeners:
                listeners[frontend] = PortListener(
                    frontend,
                    affinity=Affinity.for_service(service.spec),
                    counters=self._counters.setdefault(key, Counters()),
                    complain=functools.partial(self._complain, service),
                )
            family = family_of(frontend.host)
            await listeners[frontend].route_to(
                backends(service, port, slices, family=family, node=self._node)
            )

    def _complain(self, service: Service, message: str) -> None:
        meta = service.metadata
        _log.warning("Service %s/%s: %s", meta.namespace, meta.name, message)
        if self._recorder is not None:
            self._recorder.warning(service, "CannotListen", message, gvk=_SERVICE)

    async def _drop(self, key: str) -> None:
        for listener in self._listeners.pop(key, {}).values():
            await listener.close()
