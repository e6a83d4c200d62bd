"""A port of the resolver as its listener sees it, and what all ports of a worker share.

    path = DataPath(limits=Limits())
    path.start()
    front = path.front(target, PortProtocol.HTTP, owner=("shop", "web"))
    server = await loop.create_server(front, host, port)     # a front makes a connection's protocol
    ...
    server.close(); front.close(); await path.aclose()

Descriptors are shared out by owner: each may always have its reserve, whatever the others do.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from elasti.resolver.proxy.allowance import Allowances
from elasti.resolver.proxy.client import ClientConnection
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.pool import Pool
from elasti.resolver.proxy.ports import PortProtocol
from elasti.resolver.proxy.raw import RawConnection
from elasti.resolver.proxy.reading import ReadBuffer
from elasti.resolver.proxy.refused import Refusals
from elasti.resolver.proxy.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from elasti.resolver.proxy.reading import Reading
    from elasti.resolver.proxy.target import Target


class Front:
    """One port: the protocol factory for its listener, its counters and its owner's shares.

    The counters are those of its target, whose other ports may have fronts of their own.
    """

    __slots__ = (
        "_allowance", "_refusals", "_transports", "buffer", "clients", "limits", "now", "pods", "pool",
        "protocol", "statistics", "sweeper", "target",
    )  # fmt: skip

    def __init__(
        self, *, path: DataPath, target: Target, protocol: PortProtocol, owner: Hashable
    ) -> None:
        self.target = target
        self.protocol = protocol
        self.limits = path.limits
        self.buffer = path.buffer
        self.now = path.now
        self.pool = path.pool
        self.sweeper = path.sweeper
        self.statistics = target.statistics
        self._refusals = path.refusals
        self._allowance = path.allowances.of(owner)
        self.clients, self.pods = self._allowance.clients, self._allowance.pods
        self._transports: set[asyncio.Transport] = set()

    def __call__(self) -> Reading:
        """Return the protocol for a connection that is being accepted."""
        if not self.admits():
            return self.refuse()
        if self.protocol is PortProtocol.HTTP:
            return ClientConnection(self)
        return RawConnection(self)

    def __repr__(self) -> str:
        return f"<Front {self.protocol.value} {self.statistics!r}>"

    @property
    def connections(self) -> int:
        """How many connections of clients this port has."""
        return len(self._transports)

    def admits(self) -> bool:
        """Take room for another connection, which `leaves` gives back; False where there is none."""
        if self.clients.take():
            return True
        self.statistics.refused += 1
        return False

    def refuse(self) -> Reading:
        """Return the protocol for a connection that there is no room for."""
        return self._refusals.refuse(is_http=self.protocol is PortProtocol.HTTP)

    def enters(self, transport: asyncio.Transport) -> None:
        """Count a client's connection in."""
        self.statistics.connections += 1
        self._transports.add(transport)

    def leaves(self, transport: asyncio.Transport) -> None:
        """Count it out."""
        self.statistics.connections -= 1
        self._transports.discard(transport)
        self.clients.give()

    def close(self) -> None:
        """Break every connection of the port and give its shares back."""
        for transport in list(self._transports):
            transport.abort()
        self._allowance.close()


class DataPath:
    """What all connections of one event loop share: connections to pods, deadlines, limits."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.buffer = ReadBuffer()
        self.now: Callable[[], float] = time.monotonic
        self.sweeper = Sweeper()
        self.pool = Pool(limits=self.limits, sweeper=self.sweeper)
        self.allowances = Allowances(self.limits)
        self.refusals = Refusals(
            most=self.limits.max_refusals, buffer=self.buffer, sweeper=self.sweeper
        )

    def start(self) -> None:
        """Start the deadlines, on the running loop, whose time is everybody's from now on."""
        self.now = asyncio.get_running_loop().time
        self.sweeper.add(self.pool)
        self.sweeper.start()

    def front(self, target: Target, protocol: PortProtocol, *, owner: Hashable = None) -> Front:
        """Return the front of a port; the owner of its listener closes it.

        Fronts of one `owner` share what it is allowed; without one a front is its own.
        """
        owner = object() if owner is None else owner
        return Front(path=self, target=target, protocol=protocol, owner=owner)

    async def aclose(self) -> None:
        """Stop the deadlines and close the connections to pods; the fronts are closed first."""
        self.sweeper.stop()
        await self.pool.aclose()
        # Transports tell of their end in the next turn of the loop.
        await asyncio.sleep(0)
