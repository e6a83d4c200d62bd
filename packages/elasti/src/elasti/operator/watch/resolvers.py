"""The resolvers that are there: the endpoints of the resolver's own Service, from a watch and by probes.

For most of a minute after a node was lost Kubernetes calls its pods ready, and a slice that lists them loses
every connection that is sent there. So every operator replica keeps a connection to each resolver, and
reconnects when it ends. A resolver that fails two probes in a row counts as not ready until two succeed. The
kernel accepts connections, so a busy resolver does not count as lost; whether it answers in time is up to the
kubelet's readiness probe. If no resolver accepts, the network between is as likely to be at fault: then all of
them count as ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from elasti.logger import get_logger
from kubeloop.aio.wait import until
from kubeloop.objects.core import SERVICE_LABEL, SLICES, EndpointSlice, ServiceEndpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from elasti.operator.watch.informer_manager import InformerManager

    Reachable = Callable[[str, Callable[[], None]], Awaitable[bool]]

# A lost node ends its connections in two seconds; with the second look and a connect's 1.2 s that is under four.
# While all connections last there is nothing to look at, so this is only for what was never thought of.
_PERIOD = 30.0
_PERIOD_OF_LOST = 0.5
# Short: a process that was killed refuses at once, and its clients are refused until it is out of the slices.
_SECOND_LOOK = 0.02
_ROUNDS = 2

_log = get_logger(__name__)


class Resolvers:
    """Follows the resolver Service's slices, in its one namespace."""

    def __init__(self, manager: InformerManager, *, namespace: str, service: str) -> None:
        self._scope = manager.scope(
            SLICES, EndpointSlice, label_selector=f"{SERVICE_LABEL}={service}", namespace=namespace
        )
        self._lost_since: float | None = None
        self._was_ready: frozenset[str] = frozenset()
        self._was_there: frozenset[str] = frozenset()
        self._on_change: Callable[[bool], None] | None = None
        self._unreachable: frozenset[str] = frozenset()
        self._on_slice: Callable[[], None] = lambda: None
        self._scope.add_handler(lambda _event: self._slice_changed(), name="resolver")

    def listen(self, on_change: Callable[[bool], None] | None) -> None:
        """Call from now on whenever resolvers come, go or change: True for the first and the last."""
        self._on_change = on_change

    def listen_to_slices(self, on_slice: Callable[[], None]) -> None:
        """Call from now on whenever Kubernetes says something new of resolvers."""
        self._on_slice = on_slice

    def ready(self) -> tuple[ServiceEndpoint, ...]:
        """Return the resolvers that are ready and can be reached, one for each address.

        If no resolver of an address family can be reached, all of that family: a doubtful resolver is better than none.
        """
        found = self._said_ready()
        reachable = {":" in address for address in found if address not in self._unreachable}
        return tuple(
            found[address]
            for address in sorted(found)
            if address not in self._unreachable or (":" in address) not in reachable
        )

    def lost(self, listed: Iterable[ServiceEndpoint]) -> bool:
        """Whether one of these is not ready any longer, so that connections to it may be refused."""
        ready = {endpoint.place for endpoint in self.ready()}
        return any(endpoint.place not in ready for endpoint in listed)

    def addresses(self) -> list[str]:
        """Return the addresses of resolvers that Kubernetes reports as ready."""
        return sorted(self._said_ready())

    def set_unreachable(self, addresses: frozenset[str]) -> None:
        """These resolvers accept no connection, whatever Kubernetes says of them."""
        if addresses != self._unreachable:
            for address in addresses - self._unreachable:
                _log.warning("resolver unreachable", address=address)
            for address in self._unreachable - addresses:
                _log.info("resolver reachable again", address=address)
            self._unreachable = addresses
            self._changed()

    def _said_ready(self) -> dict[str, ServiceEndpoint]:
        return {
            endpoint.addresses[0]: endpoint
            for endpoint_slice in self._scope.all()
            for endpoint in endpoint_slice.ready_endpoints
        }

    def exists(self, address: str) -> bool:
        """Whether a resolver of that address is there at all, ready or on its way out."""
        return address in self._there()

    def _there(self) -> frozenset[str]:
        return frozenset(
            address
            for endpoint_slice in self._scope.all()
            for endpoint in endpoint_slice.endpoints or ()
            for address in endpoint.addresses
        )

    def lost_for(self) -> float:
        """Return for how many seconds no resolver has been ready; 0 if one is."""
        now = asyncio.get_running_loop().time()
        if self.ready():
            self._lost_since = None
            return 0.0
        if self._lost_since is None:
            self._lost_since = now
        return now - self._lost_since

    def _slice_changed(self) -> None:
        self._changed()
        self._on_slice()

    def _changed(self) -> None:
        now_ready = frozenset(endpoint.identity for endpoint in self.ready())
        flipped = bool(now_ready) != bool(self._was_ready)
        self.lost_for()
        there = self._there()
        changed = (now_ready, there) != (self._was_ready, self._was_there)
        self._was_ready, self._was_there = now_ready, there
        if changed and self._on_change is not None:
            self._on_change(flipped)


class ResolverProbes:
    """Looks for every resolver again and again; runs on every replica."""

    def __init__(self, resolvers: Resolvers, reachable: Reachable) -> None:
        self._resolvers = resolvers
        self._reachable = reachable
        self._ended = asyncio.Event()
        self._unreachable: frozenset[str] = frozenset()
        # How often in a row each was found otherwise than it counts.
        self._contrary: dict[str, int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        self._resolvers.listen_to_slices(self._ended.set)
        await until(self._look, _SECOND_LOOK)

    async def _look(self) -> None:
        """Probe each; if nothing is in doubt, wait until a connection ends, a slice changes or a while has passed."""
        self._ended.clear()
        addresses = self._resolvers.addresses()
        answers = await asyncio.gather(*(self._reachable(a, self._ended.set) for a in addresses))
        self._resolvers.set_unreachable(self.judge(dict(zip(addresses, answers, strict=True))))
        if self._contrary:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PERIOD_OF_LOST if self._unreachable else _PERIOD):
                await self._ended.wait()

    def judge(self, accepted: Mapping[str, bool]) -> frozenset[str]:
        """Return which resolvers count as unreachable after another round."""
        unreachable = set(self._unreachable & accepted.keys())
        contrary = {}
        for address, answer in accepted.items():
            if answer != (address in unreachable):
                continue
            contrary[address] = self._contrary.get(address, 0) + 1
            if contrary[address] >= _ROUNDS:
                del contrary[address]
                unreachable ^= {address}
        self._contrary, self._unreachable = contrary, frozenset(unreachable)
        return self._unreachable
