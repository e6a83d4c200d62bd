"""Idle connections to pods, kept for the next request.

The newest is taken first, so that the others grow old and are closed by age. A connection belongs
to the pool or to one exchange, never to both.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING

from elasti.resolver.proxy.pod import PodConnection

if TYPE_CHECKING:
    from elasti.resolver.proxy.target import Address

CONNECT_TIMEOUT = 5.0


class Pool:
    """The idle connections of one worker, by pod."""

    def __init__(self, *, max_idle_per_pod: int = 100, max_age: float = 30.0) -> None:
        self._max_idle = max_idle_per_pod
        self._max_age = max_age
        self._idle: dict[Address, collections.deque[tuple[PodConnection, float]]] = {}

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle.values()))
        return f"<Pool {idle} idle to {len(self._idle)} pods>"

    def take(self, address: Address) -> PodConnection | None:
        """Return an idle connection to a pod, or None."""
        waiting = self._idle.get(address)
        while waiting:
            connection, _ = waiting.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    def put(self, connection: PodConnection) -> None:
        """Keep a connection whose exchange is over; closed where there are enough."""
        waiting = self._idle.setdefault(connection.address, collections.deque())
        if len(waiting) >= self._max_idle or connection.transport is None:
            connection.drop()
            return
        waiting.append((connection, asyncio.get_running_loop().time()))

    def forget(self, connection: PodConnection) -> None:
        """Drop an idle connection that the pod closed. Safe for one that is not here."""
        waiting = self._idle.get(connection.address)
        if waiting is None:
            return
        kept = [item for item in waiting if item[0] is not connection]
        if len(kept) != len(waiting):
            self._replace(connection.address, kept)

    async def connect(self, address: Address) -> PodConnection:
        """Open a new connection; raises OSError or TimeoutError where the pod does not accept."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, connection = await loop.create_connection(
                lambda: PodConnection(self, address), address.host, address.port
            )
        return connection

    def close_old(self) -> None:
        """Close what has been idle for too long; the caller's ticker calls it."""
        oldest = asyncio.get_running_loop().time() - self._max_age
        for address in list(self._idle):
            waiting = self._idle[address]
            while waiting and waiting[0][1] < oldest:
                waiting.popleft()[0].drop()
            if not waiting:
                del self._idle[address]

    def close(self) -> None:
        """Close everything that is idle."""
        for waiting in self._idle.values():
            for connection, _ in waiting:
                connection.drop()
        self._idle.clear()

    def _replace(self, address: Address, kept: list[tuple[PodConnection, float]]) -> None:
        if kept:
            self._idle[address] = collections.deque(kept)
        else:
            del self._idle[address]
