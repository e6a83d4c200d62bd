"""The resolvers that are there: the endpoints of the resolver's own Service, from a watch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kubeloop.objects.core import SERVICE_LABEL, SLICES, EndpointSlice, ServiceEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.operator.watch.informer_manager import Manager


class Resolvers:
    """Follows the resolver Service's slices, in its one namespace."""

    def __init__(self, manager: Manager, *, namespace: str, service: str) -> None:
        self._scope = manager.scope(
            SLICES,
            EndpointSlice,
            label_selector=f"{SERVICE_LABEL}={service}",
            namespace=namespace,
        )
        self._lost_since: float | None = None
        self._was_ready: frozenset[str] = frozenset()
        self._was_there: frozenset[str] = frozenset()
        self._on_change: Callable[[bool], None] | None = None
        self._scope.add_handler(lambda _event: self._changed(), name="resolver")

    def listen(self, on_change: Callable[[bool], None] | None) -> None:
        """Call from now on whenever resolvers come, go or change: True for the first and the last."""
        self._on_change = on_change

    def ready(self) -> tuple[ServiceEndpoint, ...]:
        """Return the resolvers that are ready, one for each address."""
        found = {
            endpoint.addresses[0]: endpoint
            for endpoint_slice in self._scope.all()
            for endpoint in endpoint_slice.ready_endpoints
        }
        return tuple(found[address] for address in sorted(found))

    def exists(self, address: str) -> bool:
        """Whether a resolver of that address is there at all, ready or on its way out."""
        return any(
            address in endpoint.addresses
            for endpoint_slice in self._scope.all()
            for endpoint in endpoint_slice.endpoints or ()
        )

    def lost_for(self) -> float:
        """Return for how many seconds no resolver has been ready; 0 where one is."""
        now = asyncio.get_running_loop().time()
        if self.ready():
            self._lost_since = None
            return 0.0
        if self._lost_since is None:
            self._lost_since = now
        return now - self._lost_since

    def _changed(self) -> None:
        now_ready = frozenset(endpoint.identity for endpoint in self.ready())
        flipped = bool(now_ready) != bool(self._was_ready)
        self.lost_for()
        there = frozenset(
            address
            for endpoint_slice in self._scope.all()
            for endpoint in endpoint_slice.endpoints or ()
            for address in endpoint.addresses
        )
        changed = (now_ready, there) != (self._was_ready, self._was_there)
        self._was_ready, self._was_there = now_ready, there
        if changed and self._on_change is not None:
            self._on_change(flipped)
