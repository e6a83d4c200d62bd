"""Connections to pods: opened a few at a time, kept when idle, handed to whoever waits longest.

Idle connections are taken newest first, so that the others grow old and are closed by age. Who finds
none waits in a line per pod: the first free connection, new or released, goes to the head of it. That
keeps a crowd that was held for a waking pod from opening a thousand connections into a backlog of a
hundred, and keeps its order. A connection belongs to the pool or to one exchange, never to both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from elasti.resolver.proxy.pod import PodConnection
from elasti.resolver.proxy.sockets import is_open, watch_transport

if TYPE_CHECKING:
    from elasti.resolver.proxy.limits import Limits
    from elasti.resolver.proxy.shares import Share
    from elasti.resolver.proxy.sweeper import Sweeper
    from elasti.resolver.proxy.target import Address

# How many are told in one turn of the loop that a pod does not accept.
_PER_TURN = 64


class Taker(Protocol):
    """Who wants a connection to a pod."""

    @property
    def pod_share(self) -> Share:
        """Where the connection counts."""

    def connected(self, connection: PodConnection) -> None:
        """Here it is."""

    def connect_failed(self, address: Address) -> None:
        """The pod did not accept one."""


class Line:
    """What the pool knows of one pod."""

    __slots__ = ("address", "connecting", "failed", "fresh", "idle", "open", "waiting")

    def __init__(self, address: Address, *, fresh: bool) -> None:
        self.address = address
        self.fresh = fresh
        self.idle: dict[PodConnection, int] = {}
        self.waiting: dict[Taker, None] = {}
        # Those who are still to be told that the pod does not accept.
        self.failed: dict[Taker, None] = {}
        self.connecting = 0
        self.open = 0


class Pool:
    """The connections of one worker to pods."""

    def __init__(self, *, limits: Limits, sweeper: Sweeper) -> None:
        self._limits = limits
        self._sweeper = sweeper
        self._lines: dict[Address, Line] = {}
        # For protocols that need a connection of their own, never one that was used before.
        self._fresh: dict[Address, Line] = {}
        self._starved: set[Line] = set()
        self._attempts: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        lines = [*self._lines.values(), *self._fresh.values()]
        idle, waiting = sum(len(line.idle) for line in lines), sum(len(x.waiting) for x in lines)
        return f"<Pool {idle} idle, {sum(line.open for line in lines)} open, {waiting} waiting>"

    def take(self, address: Address, *, repeatable: bool) -> PodConnection | None:
        """Return an idle connection, or None.

        A request that cannot be repeated gets one that was used a moment ago, and of which the
        kernel knows no end: pods close idle connections unannounced, and a request that meets the
        closing is lost.
        """
        line = self._lines.get(address)
        if line is None or not line.idle:
            return None
        connection, tick = line.idle.popitem()
        age = self._sweeper.tick - tick
        if not repeatable and age > self._limits.pod_idle_unrepeatable:
            line.idle[connection] = tick
            return None
        transport = connection.transport
        if transport is None or transport.is_closing():
            return self.take(address, repeatable=repeatable)
        if not repeatable and not is_open(transport):
            connection.drop()
            return self.take(address, repeatable=repeatable)
        return connection

    def put(self, connection: PodConnection) -> None:
        """Take back a connection whose exchange is over."""
        line = connection.line
        if line.waiting:
            _serve_first(line, connection)
        elif len(line.idle) < self._limits.max_idle_per_pod:
            line.idle[connection] = self._sweeper.tick
        else:
            connection.drop()

    def open(self, address: Address, taker: Taker, *, fresh: bool = False) -> None:
        """Stand in line for a connection to a pod."""
        lines = self._fresh if fresh else self._lines
        line = lines.get(address)
        if line is None:
            line = lines[address] = Line(address, fresh=fresh)
        line.waiting[taker] = None
        self._pump(line)

    def cancel(self, address: Address, taker: Taker, *, fresh: bool = False) -> None:
        """Leave the line. Safe for one who is not in it."""
        line = (self._fresh if fresh else self._lines).get(address)
        if line is not None:
            line.waiting.pop(taker, None)
            line.failed.pop(taker, None)

    def lost(self, connection: PodConnection) -> None:
        """A connection is gone: somebody who found no descriptor may have it."""
        connection.line.open -= 1
        connection.line.idle.pop(connection, None)
        connection.share.give()
        starved, self._starved = self._starved, set()
        for line in starved:
            self._pump(line)

    def sweep(self, tick: int) -> None:
        """Close what has been idle for too long, and forget pods that nothing is open to."""
        oldest = tick - self._limits.pod_idle
        for lines in (self._lines, self._fresh):
            for address, line in list(lines.items()):
                for connection in [c for c, since in line.idle.items() if since < oldest]:
                    connection.drop()
                if not (line.open or line.waiting or line.failed or line.connecting):
                    del lines[address]

    async def aclose(self) -> None:
        """Close everything that is idle, and end every attempt."""
        for line in self._lines.values():
            for connection in list(line.idle):
                connection.drop()
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    def _pump(self, line: Line) -> None:
        """Open as many connections as there are waiting, within the limits."""
        wanted = min(len(line.waiting), self._limits.connects_per_pod)
        while line.connecting < wanted:
            share = next(iter(line.waiting)).pod_share
            if not share.take():
                self._starved.add(line)
                self._close_an_idle_one()
                return
            line.connecting += 1
            attempt = asyncio.get_running_loop().create_task(self._connect(line, share))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)

    def _close_an_idle_one(self) -> None:
        for line in self._lines.values():
            if line.idle:
                next(iter(line.idle)).drop()
                return

    async def _connect(self, line: Line, share: Share) -> None:
        loop = asyncio.get_running_loop()
        host, port = line.address
        connection = PodConnection(pool=self, line=line, share=share)
        try:
            async with asyncio.timeout(self._limits.connect):
                await loop.create_connection(lambda: connection, host, port)
        except (OSError, TimeoutError):
            line.connecting -= 1
            self._failed(line, connection)
        except BaseException:
            line.connecting -= 1
            if connection.transport is None:
                share.give()
            else:
                connection.drop()
            raise
        else:
            line.connecting -= 1
            self._connected(line, connection)

    def _connected(self, line: Line, connection: PodConnection) -> None:
        if connection.transport is None or connection.transport.is_closing():
            self._give_up(line)
            return
        watch_transport(connection.transport)
        if line.waiting:
            _serve_first(line, connection)
            self._pump(line)
        elif line.fresh:
            connection.drop()
        else:
            self.put(connection)

    def _failed(self, line: Line, connection: PodConnection) -> None:
        if connection.transport is None:
            connection.share.give()
        else:
            connection.drop()
        self._give_up(line)

    def _give_up(self, line: Line) -> None:
        """Send everybody in a line elsewhere."""
        # Apart from those who come now: they have not been refused.
        is_at_it = bool(line.failed)
        line.failed |= line.waiting
        line.waiting.clear()
        if not is_at_it:
            self._send_away(line)

    def _send_away(self, line: Line) -> None:
        for _ in range(_PER_TURN):
            if not line.failed:
                return
            # The last first: each goes to the head of the target's queue, so the first ends up there.
            taker, _ = line.failed.popitem()
            taker.connect_failed(line.address)
        if line.failed:
            asyncio.get_running_loop().call_soon(self._send_away, line)


def _serve_first(line: Line, connection: PodConnection) -> None:
    taker = next(iter(line.waiting))
    del line.waiting[taker]
    taker.connected(connection)
