"""The service proxy: Services and slices in, listening sockets out.

Handlers only note which Service changed; one task works through the notes and brings that Service's
listeners to what routing says. So there is one writer, however fast the changes come.

A userspace proxy can refuse a connection only by not listening. So a socket is opened when the
first backend appears and closed when the last one goes; connections that run are left alone, as
kube-proxy leaves them.

Where a connection may go is kube-proxy's rule (`frontends`, `backends`: pure): the ready endpoints of all of
the Service's slices, each with its own slice's port; if none is ready, those that are terminating but
still serve; else nothing. There is one proxy for all nodes and one family of addresses: a client is not kept
with an endpoint, nor with the endpoints of its node.

Real nodes see endpoint changes after a delay, and not all in the same order. For tests a
`PropagationDelay` keeps each change back for its delay plus a random part of its jitter; changes to the
same object stay in order, changes to different ones may overtake each other.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from devkube.kubelet.stats import CONNECTION, ByteCounts
from kubeloop.aio.relay import RelayEnd
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.informer import Notification, SharedInformerFactory
from kubeloop.informer.factory import ResourceClient
from kubeloop.objects.core import (
    SERVICES,
    SLICES,
    EndpointSlice,
    Service,
    ServiceEndpoint,
    ServicePort,
)
from kubeloop.objects.gvk import GroupVersionKind

_log = logging.getLogger(__name__)
_BACKLOG = 4096
_FIRST_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
_SERVICE = GroupVersionKind("", "v1", "Service")


class Backend(NamedTuple):
    """An address that a connection may be sent to."""

    host: str
    port: int


class Frontend(NamedTuple):
    """An address that clients of a Service connect to."""

    host: str
    port: int


def frontends(service: Service) -> Iterator[tuple[Frontend, ServicePort]]:
    """Yield every address of a Service that listens: none for headless and external Services."""
    if service.spec.type != "ExternalName" and service.spec.cluster_ip not in {"", "None"}:
        for port in service.tcp_ports:
            yield Frontend(service.spec.cluster_ip, port.port), port


def backends(port: ServicePort, slices: Iterable[EndpointSlice]) -> list[Backend]:
    """Return where a connection to that port may go, in a stable order, without duplicates."""
    found = [
        (endpoint, Backend(endpoint.addresses[0], number))
        for endpoint_slice in slices
        if endpoint_slice.address_type == "IPv4"
        for number in _ports(endpoint_slice, port.name)
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.addresses
    ]
    ready = {backend for endpoint, backend in found if endpoint.conditions.ready is not False}
    if ready:
        return sorted(ready)
    return sorted({backend for endpoint, backend in found if _is_last_resort(endpoint)})


def _ports(endpoint_slice: EndpointSlice, name: str) -> list[int]:
    wanted = [port for port in endpoint_slice.ports or () if (port.name or "") == name]
    return [port.port for port in wanted if port.port and (port.protocol or "TCP") == "TCP"]


def _is_last_resort(endpoint: ServiceEndpoint) -> bool:
    """Whether it is going away but still serves."""
    return bool(endpoint.conditions.terminating and endpoint.conditions.serving)


class PropagationDelay:
    """Delays changes; with no delay and no jitter they pass at once."""

    def __init__(self, *, delay: float = 0.0, jitter: float = 0.0) -> None:
        self.delay = delay
        self.jitter = jitter
        self._coming: dict[str, collections.deque[Callable[[], None]]] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def pass_on(self, key: str, apply: Callable[[], None]) -> None:
        """Call `apply` when the change of the object `key` has arrived here."""
        if not self.delay and not self.jitter and key not in self._coming:
            apply()
            return
        self._coming.setdefault(key, collections.deque()).append(apply)
        self._after(self.delay + self.jitter * random.random(), key)

    def _after(self, seconds: float, key: str) -> None:
        def arrive() -> None:
            self._timers.discard(timer)
            # Whichever timer fires, it is the oldest change that arrives.
            coming = self._coming[key]
            apply = coming.popleft()
            if not coming:
                del self._coming[key]
            apply()

        timer = asyncio.get_running_loop().call_later(seconds, arrive)
        self._timers.add(timer)

    def close(self) -> None:
        """Forget what has not arrived."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._coming.clear()


@dataclasses.dataclass(eq=False)
class PortListener:
    """Accepts connections for one frontend and relays them to its backends."""

    frontend: Frontend
    _: dataclasses.KW_ONLY
    complain: Callable[[str], None] = _log.warning
    counts: ByteCounts = dataclasses.field(default_factory=ByteCounts)

    def __post_init__(self) -> None:
        self._backends: list[Backend] = []
        self._server: asyncio.Server | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._open: set[RelayEnd] = set()

    async def route_to(self, backends: list[Backend]) -> None:
        """Send new connections to these; listen only if there are any."""
        self._backends = backends
        if backends and self._server is None:
            await self._listen()
        elif not backends and self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Stop listening and break what is open."""
        await self.route_to([])
        for task in self._joining:
            task.cancel()
        if self._joining:
            await asyncio.wait(self._joining)
        for end in list(self._open):
            end.abort()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self.frontend
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=_BACKLOG)
        except PermissionError:
            self.complain(
                f"nothing listens on {host}:{port}: ports below {_unprivileged()} take a privilege"
                " here; give the Service a higher port, or start the cluster as root"
            )
        except OSError as error:
            self.complain(f"nothing listens on {host}:{port}: {error}")

    def _accept(self) -> RelayEnd:
        end = _ClientEnd(self._accepted, self._open.discard)
        self._open.add(end)
        return end

    def _accepted(self, client: RelayEnd) -> None:
        if not self._backends:
            client.abort()
            return
        backend = random.choice(self._backends)
        task = asyncio.get_running_loop().create_task(self._join(client, backend))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, client: RelayEnd, backend: Backend) -> None:
        loop = asyncio.get_running_loop()
        count = functools.partial(self.counts.add, backend.host)
        try:
            _, pod = await loop.create_connection(
                lambda: _PodEnd(count), backend.host, backend.port
            )
        except OSError:
            # The kernel's NAT would have let the client see the pod's own refusal.
            client.abort()
            return
        client.join(pod)


def _unprivileged() -> int:
    """Return the first port that any user may listen on."""
    try:
        return int(_FIRST_PORT.read_text())
    except (OSError, ValueError):
        return 1024


class _ClientEnd(RelayEnd):
    """A client's end, which says that it came and that it went."""

    __slots__ = ("_accepted",)

    def __init__(
        self, accepted: Callable[[RelayEnd], None], lost: Callable[[RelayEnd], None]
    ) -> None:
        super().__init__(lambda: lost(self))
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._accepted(self)


class _PodEnd(RelayEnd):
    """A pod's end, whose bytes are counted."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[int], None]) -> None:
        super().__init__()
        self._count = count

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._count(CONNECTION)

    def write(self, data: bytes) -> None:
        self._count(len(data))
        super().write(data)

    def data_received(self, data: bytes) -> None:
        self._count(len(data))
        super().data_received(data)


class ServiceProxy:
    """Makes cluster IPs lead somewhere; runs until cancelled."""

    def __init__(
        self,
        client: ResourceClient,
        *,
        propagation: PropagationDelay | None = None,
        recorder: EventRecorder | None = None,
        counts: ByteCounts | None = None,
    ) -> None:
        self._counts = counts or ByteCounts()
        self._factory = SharedInformerFactory(client, name="service proxy")
        self._services = self._factory.informer(SERVICES, Service)
        self._slices = self._factory.informer(SLICES, EndpointSlice)
        self._recorder = recorder
        self.propagation = propagation or PropagationDelay()
        self._seen_services: dict[str, Service] = {}
        self._seen_slices: dict[str, dict[str, EndpointSlice]] = {}
        self._slice_owners: dict[str, str] = {}
        self._listeners: dict[str, dict[Frontend, PortListener]] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()

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

    # Changes from the cluster, as late as this node sees them

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

    def _see_slice(self, key: str, endpoint_slice: EndpointSlice | None) -> None:
        owner = self._slice_owners.pop(key, "")
        if owner:
            del self._seen_slices[owner][key]
            self._changed.put_nowait(owner)
        if endpoint_slice is not None and endpoint_slice.service:
            owner = f"{endpoint_slice.metadata.namespace}/{endpoint_slice.service}"
            self._slice_owners[key] = owner
            self._seen_slices.setdefault(owner, {})[key] = endpoint_slice
            self._changed.put_nowait(owner)

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
                    complain=functools.partial(self._complain, service),
                    counts=self._counts,
                )
            await listeners[frontend].route_to(backends(port, slices))

    def _complain(self, service: Service, message: str) -> None:
        meta = service.metadata
        _log.warning("Service %s/%s: %s", meta.namespace, meta.name, message)
        if self._recorder is not None:
            self._recorder.warning(service, "CannotListen", message, gvk=_SERVICE)

    async def _drop(self, key: str) -> None:
        for listener in self._listeners.pop(key, {}).values():
            await listener.close()
