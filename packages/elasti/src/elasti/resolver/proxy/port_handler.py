"""A port handler makes the protocols of its connections; the data path is what all share.

    path = DataPath(limits=Limits())
    path.start()
    handler = path.handler(upstream, PortProtocol.HTTP, owner=("shop", "web"))
    server = await loop.create_server(handler, host, port)   # the handler is the protocol factory
    ...
    server.close(); handler.close(); await path.aclose()

Descriptors are shared out by owner: each may always have its reserve, whatever the others do. A connection
that there is no room for is refused: an HTTP client is answered before it asks, and its bytes are read for a
moment longer, or a reset would destroy the answer. That takes a descriptor while it lasts, so only a bounded
number of them is waited for at a time; in a flood the others are closed as soon as they have been answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import cast

from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.http1.connection import ClientConnection
from elasti.resolver.proxy.http1.writer import refusal_response
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.quota import ServiceQuotas
from elasti.resolver.proxy.tcp import TcpConnection
from elasti.resolver.proxy.transport import BriefPoll, BufferedClientProtocol, ReadBuffer
from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, RequestFacts, Upstream
from elasti.resolver.proxy.upstream.pool import UpstreamPool
from kubeloop.aio.relay import end_writing

_ANSWER = refusal_response(Refusal.BUSY.status, Refusal.BUSY.message, retry=True)
_PATIENCE_TICKS = 1


class Refusals:
    """Refuses connections for a worker. `waiting` are those that may still read their answer."""

    __slots__ = ("_most", "buffer", "sweeper", "waiting")

    def __init__(self, *, most: int, buffer: ReadBuffer, sweeper: DeadlineSweeper) -> None:
        self._most = most
        self.buffer = buffer
        self.sweeper = sweeper
        self.waiting = 0

    def refuse(self, *, is_http: bool) -> RefusedConnection:
        """Return the protocol for a connection that is being accepted."""
        return RefusedConnection(self, is_http=is_http)

    def has_time(self) -> bool:
        """Whether another one may be waited for."""
        return self.waiting < self._most


class RefusedConnection(BufferedClientProtocol):
    """Answers HTTP before it is asked, reads on for a while so that the answer arrives, and ends."""

    __slots__ = ("_is_http", "_refusals", "_tick", "_transport")

    def __init__(self, refusals: Refusals, *, is_http: bool) -> None:
        self._refusals = refusals
        self._is_http = is_http
        self._tick = refusals.sweeper.tick
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say why on a port that speaks HTTP."""
        # uvloop's transports have the interface, not the base class.
        refused = cast("asyncio.Transport", transport)
        if self._is_http:
            refused.write(_ANSWER)
        if not self._is_http or not self._refusals.has_time():
            refused.close()
            return
        self._transport = refused
        self._refusals.waiting += 1
        self._refusals.sweeper.add(self)
        end_writing(refused)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read what comes, so that the answer is read."""
        del sizehint
        return self._refusals.buffer.whole

    def buffer_updated(self, nbytes: int) -> None:
        """Throw it away."""

    def data_received(self, data: bytes) -> None:
        """Throw it away."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        del exc
        if self._transport is not None:
            self._transport = None
            self._refusals.waiting -= 1
            self._refusals.sweeper.discard(self)

    def sweep(self, tick: int) -> None:
        """Wait no longer for the client to close."""
        if self._transport is not None and tick - self._tick > _PATIENCE_TICKS:
            self._transport.abort()


class PortHandler:
    """One port: the protocol factory for its listener, its counters and its owner's quota.

    The counters are those of its upstream, whose other ports may have handlers of their own.
    """

    __slots__ = (
        "_brief_poll", "_quota", "_refusals", "_transports", "accepts", "buffer", "clients", "connections", "limits", "memory",
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
        self._quota = path.quotas.of(owner)
        self.clients, self.pods = self._quota.clients, self._quota.pods
        self.memory = self._quota.memory
        self._transports: set[asyncio.Transport] = set()
        # From when a connection is admitted, which is before its transport is there: a handler that has
        # one is not to be closed.
        self.connections = 0

    def __call__(self) -> BufferedClientProtocol:
        """Return the protocol for a connection that is being accepted."""
        if not self.admits():
            return self.refuse()
        if self.protocol is PortProtocol.HTTP:
            return ClientConnection(self)
        return TcpConnection(self)

    def __repr__(self) -> str:
        return f"<PortHandler {self.protocol.value} {self.statistics!r}>"

    def admits(self) -> bool:
        """Take room for another connection, which `leaves` gives back; False where there is none."""
        if self.clients.take():
            self.connections += 1
            return True
        self.statistics.refused += 1
        return False

    def refuse(self) -> BufferedClientProtocol:
        """Return the protocol for a connection that there is no room for."""
        return self._refusals.refuse(is_http=self.protocol is PortProtocol.HTTP)

    def brief_poll(self) -> BriefPoll | None:
        """Return what watches a connection that ends with its first answer; None where it may not."""
        is_brief = self.protocol is PortProtocol.HTTP and self.upstream.stepping_aside
        return self._brief_poll if is_brief else None

    def enters(self, transport: asyncio.Transport) -> None:
        """Count a client's connection in."""
        self.statistics.connections += 1
        self._transports.add(transport)

    def leaves(self, transport: asyncio.Transport) -> None:
        """Count it out."""
        self.statistics.connections -= 1
        self._transports.discard(transport)
        self.connections -= 1
        self.clients.give()

    def close(self) -> None:
        """Break every connection of the port and give its quota back."""
        for transport in list(self._transports):
            transport.abort()
        self._quota.close()


class DataPath:
    """What all connections of one event loop share: connections to pods, deadlines, limits."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.buffer = ReadBuffer()
        self.now: Callable[[], float] = time.monotonic
        self.sweeper = DeadlineSweeper()
        self.pool = UpstreamPool(limits=self.limits, sweeper=self.sweeper)
        self.quotas = ServiceQuotas(self.limits)
        self.brief_poll = BriefPoll()
        self.refusals = Refusals(
            most=self.limits.max_refusals, buffer=self.buffer, sweeper=self.sweeper
        )

    def start(self) -> None:
        """Start the deadlines, on the running loop, whose clock all connections use from now on."""
        self.now = asyncio.get_running_loop().time
        self.brief_poll.start()
        self.sweeper.add(self.pool)
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
