"""Connections that there is no room for: told so, where they can be told, and closed.

An HTTP client is answered before it asks, and read on for a moment, or a reset would eat the answer.
That takes a descriptor while it lasts, so only so many are waited for at a time; in a flood the
others are closed as soon as they have been told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from elasti.resolver.proxy.answers import refusal_response
from elasti.resolver.proxy.reading import Reading
from elasti.resolver.proxy.target import Refusal
from kubeloop.aio.relay import end_writing

if TYPE_CHECKING:
    import asyncio

    from elasti.resolver.proxy.reading import ReadBuffer
    from elasti.resolver.proxy.sweeper import Sweeper

_ANSWER = refusal_response(Refusal.BUSY.status, Refusal.BUSY.words, retry=True)
_PATIENCE_TICKS = 1


class Refusals:
    """Refuses connections for a worker. `waiting` are those that may still read their answer."""

    __slots__ = ("_most", "buffer", "sweeper", "waiting")

    def __init__(self, *, most: int, buffer: ReadBuffer, sweeper: Sweeper) -> None:
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


class RefusedConnection(Reading):
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
