"""The registry: builds Services from watched objects, and notifies listeners of changes.

It needs four watches, for any number of Services: ElastiServices; private Services, which have the public
Services' ports and protocols; their EndpointSlices, which list the pods; and the slices that list resolvers.
Handlers only find out which Service changed. `_refresh` then reads all four caches and writes the whole state of
that Service. It is the only writer, so the order of watch events does not matter.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from elasti.api.names import (
    ELASTISERVICES,
    MANAGED_BY,
    PRIVATE_LABEL,
    private_service_name,
    resolver_slice_name,
)
from elasti.api.types import WakeSpec
from elasti.resolver.ports.claims import PortClaim, PortClaims
from elasti.resolver.ports.listeners import ServicePortListeners
from elasti.resolver.projections import (
    ElastiView,
    ListedEndpoint,
    ServiceKey,
    ServiceView,
    SliceView,
    endpoints_of,
)
from elasti.resolver.proxy.upstream.interface import PortProtocol, UpstreamAddress
from elasti.resolver.services.service import ServiceDeps, WakeablePort, WakeableService
from kubeloop.aio.tasks import finish
from kubeloop.informer import Deleted, Notification, SharedInformer, SharedInformerFactory, Updated
from kubeloop.metrics.text import Histogram
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICES, SLICES, ServicePort

_BY_SERVICE = "service"
# No port name begins with it.
_PLACEHOLDER = "?"


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class ServiceRegistry:
    """All Services that have an ElastiService. `bounds` limits their `spec.wake`.

    A replica's `maxHeld` is divided among its `workers`.
    """

    factories: Iterable[SharedInformerFactory]
    deps: ServiceDeps
    claims: PortClaims
    bounds: WakeSpec | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        self._listeners: ServicePortListeners | None = None
        self._services: dict[ServiceKey, WakeableService] = {}
        # Services that lost their ElastiService, but whose ports some nodes still use.
        self._left: dict[ServiceKey, WakeableService] = {}
        # The Service of each private Service, and the ElastiServices of each Service.
        self._by_private: dict[ServiceKey, ServiceKey] = {}
        self._objects: dict[ServiceKey, dict[str, ElastiView]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._informers = [_Informers(factory, self) for factory in self.factories]

    def __repr__(self) -> str:
        return f"<ServiceRegistry {len(self._services)} services>"

    @property
    def cold_starts(self) -> Mapping[str, Histogram]:
        """Durations of cold starts, by stage."""
        return self.deps.cold_starts

    def __len__(self) -> int:
        return len(self._services)

    def __contains__(self, key: object) -> bool:
        return key in self._services

    def __iter__(self) -> Iterator[WakeableService]:
        return iter(self._services.values())

    def get(self, key: ServiceKey) -> WakeableService | None:
        """Return a Service; None if it has no ElastiService."""
        return self._services.get(key)

    def attach(self, listeners: ServicePortListeners) -> None:
        """Notify these listeners of changed ports from now on."""
        self._listeners = listeners

    def object_name(self, key: ServiceKey) -> str | None:
        """Return the name of a Service's ElastiService."""
        view = self._view(key)
        return view.metadata.name if view is not None else None

    def port(self, claim: PortClaim) -> WakeablePort:
        """Return the upstream of a claim, even if its Service was removed."""
        service = self._services.get(claim.key) or self._left[claim.key]
        return service.port(claim.port_name)

    def unbound(self, key: ServiceKey) -> None:
        """Forget a removed Service whose last socket was closed."""
        if not self.claims.has_any(key):
            self._left.pop(key, None)

    def default_port(self, key: ServiceKey, number: int | None) -> WakeablePort | None:
        """Return the upstream of a Service's port by number, or of its first port."""
        service = self._services.get(key)
        if service is None:
            return None
        name = _port_name(self._service_ports(key), number)
        return service.port(_placeholder_name(number) if name is None else name)

    def is_listed(self, address: str) -> bool:
        """Whether an EndpointSlice lists this resolver's address."""
        return any(
            address in endpoint.addresses
            for informers in self._informers
            for endpoint_slice in informers.published.lister.list()
            for endpoint in endpoint_slice.endpoints or ()
        )

    # For checks of the watches

    def unserved(self) -> list[ServiceKey]:
        """Return the Services that have held connections but no serving pod."""
        return [key for key, service in self._services.items() if service.unserved]

    def pods_heard_at(self, namespace: str) -> float | None:
        """Return the loop's time of the last sign of life of a namespace's slice watch."""
        return max((c.endpoints.last_heard or 0.0 for c in self._in(namespace)), default=None)

    def relist(self, namespace: str, reason: str) -> None:
        """Restart the watches of a namespace, which have missed a change."""
        for informers in self._in(namespace):
            for informer in informers.all:
                informer.relist(reason)

    def doubts(self) -> list[str]:
        """Return the watches that may be behind, each with its reason."""
        return [
            f"{informer.name}: {informer.doubt}"
            for informers in self._informers
            for informer in informers.all
            if informer.doubt
        ]

    def _in(self, namespace: str) -> list[_Informers]:
        return [c for c in self._informers if c.namespace in ("", namespace)]

    async def aclose(self) -> None:
        """Close every Service."""
        for service in self._services.values():
            await service.aclose()
        await finish(self._closing, cancel=False)

    # Watch events

    def object_changed(self, note: Notification[ElastiView]) -> None:
        """An ElastiService was added, changed or deleted."""
        old = note.old if isinstance(note, Updated) else note.obj
        self._drop_object(old.key, str(note.key))
        new = note.new if isinstance(note, Updated) else note.obj
        if not isinstance(note, Deleted):
            self._objects.setdefault(new.key, {})[str(note.key)] = new
            private = ServiceKey(new.key.namespace, private_service_name(new.spec.service))
            self._by_private[private] = new.key
        for key in {old.key, new.key}:
            self._refresh(key)

    def private_changed(self, note: Notification[ServiceView]) -> None:
        """A private Service was added, changed or deleted."""
        meta = (note.new if isinstance(note, Updated) else note.obj).metadata
        self._refresh_private(ServiceKey(meta.namespace, meta.name))

    def endpoints_changed(self, note: Notification[SliceView]) -> None:
        """A slice of pods was added, changed or deleted."""
        for owner in _owners(note):
            self._refresh_private(owner)

    def published_changed(self, note: Notification[SliceView]) -> None:
        """A slice of resolvers was added, changed or deleted."""
        for owner in _owners(note):
            ports = frozenset(port for _, port in self._published_ports(owner))
            now = asyncio.get_running_loop().time()
            self._touch(self.claims.publish(owner, ports, now=now))
            self._refresh(owner)

    # One writer

    def _refresh_private(self, private: ServiceKey) -> None:
        key = self._by_private.get(private)
        if key is not None:
            self._refresh(key)

    def _refresh(self, key: ServiceKey) -> None:
        view = self._view(key)
        if view is None:
            self._remove(key)
            return
        service = self._services.get(key)
        if service is None:
            service = self._services[key] = WakeableService(key, deps=self.deps)
            self._left.pop(key, None)
        service.configure(wake=self._bounded(view.spec.wake), responses=view.spec.probe_response)
        service.publish(published=bool(self._published_slices(key)))
        # If its private Service is gone, or every slice of that, it is about to end: connections that clients have
        # kept still reach its pods. A Service that merely has no pods keeps a slice that lists none.
        knew_ports = any(service.numbers.values())
        stands = self.private_slices(key) and (self._service_ports(key) or not knew_ports)
        if stands or not service.lists_pods:
            service.set_endpoints(self._endpoints(service))
        self._touch(self.claims.claim(key, self._wanted(view)))

    def _endpoints(
        self, service: WakeableService
    ) -> dict[str, dict[UpstreamAddress, ListedEndpoint]]:
        """Return the pods by port name.

        A port that was looked up by number gets the pods of its name. A renamed port gets the pods of the
        number's new name, since connections may still use the old name.
        """
        found = endpoints_of(self.private_slices(service.key))
        ports = self._service_ports(service.key)
        known = {name: service.numbers.get(name, 0) for name in service.port_names}
        service.numbers = known | {port.name: port.port for port in ports}
        by_number = {port.port: port.name for port in ports}
        for waiting in service.port_names:
            if waiting.startswith(_PLACEHOLDER):
                number = waiting.removeprefix(_PLACEHOLDER)
                name = _port_name(ports, int(number) if number else None)
            elif waiting not in found:
                name = by_number.get(service.numbers[waiting])
            else:
                continue
            found[waiting] = {} if name is None else found.get(name, {})
        return found

    def _bounded(self, wake: WakeSpec) -> WakeSpec:
        bounds = self.bounds or wake
        most = min(wake.max_held, bounds.max_held)
        return msgspec.structs.replace(
            wake,
            timeout_seconds=min(wake.timeout_seconds, bounds.timeout_seconds),
            max_held=max(most // self.workers, 1),
            page=msgspec.structs.replace(wake.page, mode=wake.page.mode or bounds.page.mode),
            ignore=bounds.ignore.extended_by(wake.ignore),
        )

    def _remove(self, key: ServiceKey) -> None:
        ports = self.claims.claim(key, {})
        self._touch(ports)
        service = self._services.pop(key, None)
        if service is not None:
            if ports:
                # Accept queues may hold connections for it.
                self._left[key] = service
            private = ServiceKey(key.namespace, private_service_name(key.service))
            self._by_private.pop(private, None)
            task = asyncio.get_running_loop().create_task(service.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _wanted(self, view: ElastiView) -> dict[int, PortClaim]:
        """Return the claims of a Service. Slices win over status.

        If they differ, both ports are open: traffic arrives at the slice's port, and the operator publishes the
        other one only after it has answered.
        """
        by_name = {port.name: port for port in self._service_ports(view.key)}
        reported = [(port.name, port.resolver_port) for port in view.status.resolver_ports]
        numbers = {number for _, number in reported}
        claims = {}
        for name, number in (*reported, *self._published_ports(view.key)):
            known = by_name.get(name)
            protocol = PortProtocol.of_port(
                app_protocol=known.app_protocol if known else None, name=name
            )
            claims[number] = PortClaim(
                key=view.key,
                port_name=name,
                protocol=protocol,
                age=view.age,
                reported=number in numbers,
            )
        return claims

    def _touch(self, ports: Iterable[int]) -> None:
        if self._listeners is not None:
            self._listeners.touch(ports)

    # Cache lookups

    def _view(self, key: ServiceKey) -> ElastiView | None:
        views = self._objects.get(key)
        return min(views.values(), key=lambda view: view.age) if views else None

    def _drop_object(self, key: ServiceKey, name: str) -> None:
        views = self._objects.get(key)
        if views is not None:
            views.pop(name, None)
            if not views:
                del self._objects[key]

    def _service_ports(self, key: ServiceKey) -> tuple[ServicePort, ...]:
        name = private_service_name(key.service)
        for informers in self._informers:
            found = informers.private.lister.find(key.namespace, name)
            if found is not None:
                return found.ports
        return ()

    def private_slices(self, key: ServiceKey) -> list[SliceView]:
        """Return the cached slices of a Service's pods."""
        private = ServiceKey(key.namespace, private_service_name(key.service))
        return [
            p
            for c in self._informers
            for p in c.endpoints.store.by_index(_BY_SERVICE, str(private))
        ]

    def _published_slices(self, key: ServiceKey) -> list[SliceView]:
        """Return the operator's slices, by name: other slices may have its label."""
        name = resolver_slice_name(key.service)
        return [
            found
            for informers in self._informers
            for found in informers.published.store.by_index(_BY_SERVICE, str(key))
            if found.metadata.name in (name, f"{name}-ipv6")
        ]

    def _published_ports(self, key: ServiceKey) -> list[tuple[str, int]]:
        return [
            (port.name or "", port.port)
            for endpoint_slice in self._published_slices(key)
            for port in endpoint_slice.ports or ()
            if port.port
        ]


class _Informers:
    """The four informers of one namespace, or of the whole cluster."""

    def __init__(self, factory: SharedInformerFactory, registry: ServiceRegistry) -> None:
        self.objects = factory.informer(ELASTISERVICES, ElastiView)
        self.private = factory.informer(
            SERVICES, ServiceView, label_selector=f"{PRIVATE_LABEL}=true"
        )
        self.endpoints = factory.informer(SLICES, SliceView, label_selector=f"{PRIVATE_LABEL}=true")
        self.published = factory.informer(
            SLICES, SliceView, label_selector=f"{MANAGED_BY_LABEL}={MANAGED_BY}"
        )
        self.namespace = factory.namespace
        self.all: tuple[SharedInformer[Any], ...] = (
            self.objects,
            self.private,
            self.endpoints,
            self.published,
        )
        for slices in (self.endpoints, self.published):
            slices.add_indexers({_BY_SERVICE: lambda endpoint_slice: [str(endpoint_slice.owner)]})
        self.objects.add_handler(on_event=registry.object_changed)
        self.private.add_handler(on_event=registry.private_changed)
        self.endpoints.add_handler(on_event=registry.endpoints_changed)
        self.published.add_handler(on_event=registry.published_changed)


def _port_name(ports: Sequence[ServicePort], number: int | None) -> str | None:
    """Return the name of the port with that number, or of the first port; None if no port is known."""
    chosen = next((port for port in ports if port.port == number), None)
    if chosen is None and ports:
        chosen = ports[0]
    return chosen.name if chosen else None


def _placeholder_name(number: int | None) -> str:
    """Return a name for an upstream until its port's name is known."""
    return f"{_PLACEHOLDER}{number or ''}"


def _owners(note: Notification[SliceView]) -> set[ServiceKey]:
    if isinstance(note, Updated):
        return {note.old.owner, note.new.owner}
    return {note.obj.owner}
