"""Connections that there is no room for.

An HTTP client is answered before it asks, and its bytes are read for a moment longer, or a reset would destroy the
answer. That takes a descriptor while it lasts, so only a bounded number of them is waited for at a time. In a flood the
others are answered and closed when they are accepted, before anything is made for them.
"""

from __future__ import annotations

import asyncio
from typing import cast

from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.own_responses import refusal_response
from elasti.resolver.proxy.transport import BufferedClientProtocol, ReadBuffer
from elasti.resolver.proxy.upstream.interface import Refusal
from kubeloop.aio.relay import end_writing

_ANSWER = refusal_response(Refusal.BUSY.status, Refusal.BUSY.message, retry=True)
_PATIENCE_TICKS = 1


class Refusals:
    """Refuses connections for a worker."""

    __slots__ = ("_most", "buffer", "sweeper", "waiting")

    def __init__(self, *, most: int, buffer: ReadBuffer, sweeper: DeadlineSweeper) -> None:
        self._most = most
        self.buffer = buffer
        self.sweeper = sweeper
        #: How many connections may still read their answer.
        self.waiting = 0

    def refuse(self, *, is_http: bool) -> RefusedConnection:
        """Return the protocol for a connection that is being accepted."""
        waits = is_http and self.waiting < self._most
        self.waiting += waits
        return RefusedConnection(self, b"" if waits else _ANSWER if is_http else b"", waits=waits)


class RefusedConnection(BufferedClientProtocol):
    """Answers HTTP before it is asked, reads on for a while so that the answer arrives, and ends."""

    __slots__ = ("_refusals", "_tick", "_transport", "_waits", "at_once")

    def __init__(self, refusals: Refusals, at_once: bytes, *, waits: bool) -> None:
        self._refusals = refusals
        self._waits = waits
        #: The client's result if the connection is closed as soon as it is accepted.
        self.at_once = None if waits else at_once
        self._tick = refusals.sweeper.tick
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send an HTTP client the reason."""
        # uvloop's transports have the interface, not the base class.
        refused = cast("asyncio.Transport", transport)
        refused.write(_ANSWER if self.at_once is None else self.at_once)
        if not self._waits:
            refused.close()
            return
        self._transport = refused
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
