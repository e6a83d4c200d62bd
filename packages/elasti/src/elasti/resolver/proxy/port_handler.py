"""A port handler makes the protocols of its connections; the data path is what all share.

    path = DataPath(limits=Limits())
    path.start()
    handler = path.handler(upstream, PortProtocol.HTTP, owner=("shop", "web"))
    server = await loop.create_server(handler, host, port)   # the handler is the protocol factory
    ...
    server.close(); handler.close(); await path.aclose()

Descriptors and memory are shared out by owner: each may always have its reserve, whatever the others do. A client
address may have a bounded number of connections. A connection that there is no room for is refused (`refused`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Hashable

from elasti.resolver.proxy.brief import BriefPoll
from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.http1.connection import ClientConnection
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.port import Sheddable
from elasti.resolver.proxy.quota import ClientAddresses, ServiceQuotas
from elasti.resolver.proxy.refused import Refusals
from elasti.resolver.proxy.tcp import TcpConnection
from elasti.resolver.proxy.transport import BufferedClientProtocol, ReadBuffer
from elasti.resolver.proxy.upstream.interface import PortProtocol, RequestFacts, Upstream
from elasti.resolver.proxy.upstream.pool import UpstreamPool
from elasti.resolver.proxy.upstream.search import UpstreamSearch

# An address may stand for many clients, of which one has all its connections: a Service with fewer
# than this many of its own takes another from any address, so that it can be woken.
_FROM_ANYWHERE = 4
# How many of the youngest connections are looked at for one to shed.
_LOOKED_AT = 64


class PortHandler:
    """One port: the protocol factory for its listener, its counters and its owner's quota.

    The counters are those of its upstream, whose other ports may have handlers of their own.
    """

    __slots__ = (
        "_addresses", "_brief_poll", "_quota", "_refusals", "_shed_from", "_transports", "accepts", "buffer", "clients", "connections", "held", "limits", "memory",
        "now", "pods", "pool", "protocol", "statistics", "sweeper", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        *,
        path: DataPath,
        upstream: Upstream,
        protocol: PortProtocol,
        owner: Hashable,
        accepts: Callable[[RequestFacts], bool] | None = None,
    ) -> None:
        # On a port that Services share: whether a request is for this upstream. A connection there
        # carries one HTTP/1 request, since the next may be for another Service.
        self.accepts = accepts
        self.upstream = upstream
        self.protocol = protocol
        self.limits = path.limits
        self.buffer = path.buffer
        self.now = path.now
        self.pool = path.pool
        self.sweeper = path.sweeper
        self.statistics = upstream.statistics
        self._refusals = path.refusals
        self._brief_poll = path.brief_poll
        self._addresses = path.addresses
        self._quota = path.quotas.of(owner)
        self._quota.sheds.append(self._shed)
        self.held: dict[Sheddable, None] = {}
        self.clients, self.pods = self._quota.clients, self._quota.pods
        self.memory = self._quota.memory
        # In the order in which they came, each with the key of its client's address.
        self._transports: dict[asyncio.Transport, str] = {}
        self._shed_from = 0
        # From when a connection is admitted, which is before its transport is there: a handler that has
        # one is not to be closed.
        self.connections = 0

    def __call__(self, client: str = "") -> BufferedClientProtocol:
        """Return the protocol for a connection that is being accepted from a client's address."""
        if not self.admits(client):
            return self.refuse()
        if self.protocol is PortProtocol.HTTP:
            return ClientConnection(self)
        return TcpConnection(self)

    def __repr__(self) -> str:
        return f"<PortHandler {self.protocol.value} {self.statistics!r}>"

    def admits(self, client: str) -> bool:
        """Take room for another connection, which `leaves` gives back; False if there is no room."""
        clients = self.clients
        may = clients.used < _FROM_ANYWHERE or not self._addresses.is_full(client)
        if may and clients.take():
            self.connections += 1
            return True
        self.statistics.refused += 1
        return False

    def refuse(self) -> BufferedClientProtocol:
        """Return the protocol for a connection that there is no room for."""
        return self._refusals.refuse(is_http=self.protocol is PortProtocol.HTTP)

    def brief_poll(self) -> BriefPoll | None:
        """Return the observer of a connection that ends with its first answer; None if it may not."""
        is_brief = self.protocol is PortProtocol.HTTP and self.upstream.stepping_aside
        return self._brief_poll if is_brief else None

    def enters(self, transport: asyncio.Transport) -> None:
        """Count a client's connection in."""
        self.statistics.connections += 1
        peer = transport.get_extra_info("peername")
        self._transports[transport] = self._addresses.add(peer[0] if peer else "")

    def leaves(self, transport: asyncio.Transport) -> None:
        """Count it out."""
        self.statistics.connections -= 1
        self._addresses.remove(self._transports.pop(transport, ""))
        self.connections -= 1
        self.clients.give()

    def close(self) -> None:
        """Break every connection of the port and give its quota back."""
        for transport in list(self._transports):
            transport.abort()
        self._quota.sheds.remove(self._shed)
        self._quota.close()

    def _shed(self, memory: bool) -> bool:  # noqa: FBT001 -- called through the quota
        """End the youngest held connection, otherwise one that no pod serves; returns whether one was ended.

        For memory it is one that has some.
        """
        if self.held:
            # The last, found without a search.
            youngest, _ = self.held.popitem()
            self.held[youngest] = None
            if youngest.shed():
                self.statistics.refused += 1
                return True
        # The youngest first; if pods serve all of those, the next call goes on behind them.
        first, self._shed_from = self._shed_from, 0
        for transport in itertools.islice(reversed(self._transports), first, first + _LOOKED_AT):
            protocol = transport.get_protocol()
            if not isinstance(protocol, UpstreamSearch) or (memory and not protocol.has_memory):
                continue
            if protocol.shed():
                self._shed_from = first
                self.statistics.refused += 1
                return True
        if first + _LOOKED_AT < len(self._transports):
            self._shed_from = first + _LOOKED_AT
        return False


class DataPath:
    """The objects that all connections of one event loop share: connections to pods, deadlines, limits."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.buffer = ReadBuffer()
        self.now: Callable[[], float] = time.monotonic
        self.sweeper = DeadlineSweeper()
        self.pool = UpstreamPool(limits=self.limits, sweeper=self.sweeper)
        self.quotas = ServiceQuotas(self.limits)
        self.addresses = ClientAddresses(
            most=self.limits.max_per_client, exempt=self.limits.unlimited_clients
        )
        self.brief_poll = BriefPoll()
        self.refusals = Refusals(
            most=self.limits.max_refusals, buffer=self.buffer, sweeper=self.sweeper
        )

    def start(self) -> None:
        """Start the deadlines, on the running loop, whose clock all connections use from now on."""
        self.now = asyncio.get_running_loop().time
        self.brief_poll.start()
        self.sweeper.start()

    def handler(
        self,
        upstream: Upstream,
        protocol: PortProtocol,
        *,
        owner: Hashable = None,
        accepts: Callable[[RequestFacts], bool] | None = None,
    ) -> PortHandler:
        """Return the handler of a port; the owner of its listener closes it.

        Handlers of one `owner` share its quota; without one a handler is its own owner.
        """
        owner = object() if owner is None else owner
        return PortHandler(
            path=self, upstream=upstream, protocol=protocol, owner=owner, accepts=accepts
        )

    async def aclose(self) -> None:
        """Stop the deadlines and close the connections to pods; the handlers are closed first."""
        self.sweeper.stop()
        await self.pool.aclose()
        # Transports report their end in the next iteration of the loop.
        await asyncio.sleep(0)
        self.brief_poll.close()
