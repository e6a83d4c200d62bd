"""A connection that its port has no room for: told so, where it can be told, and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from elasti.resolver.proxy.answers import refusal_response
from elasti.resolver.proxy.ports import PortProtocol
from elasti.resolver.proxy.reading import Reading
from elasti.resolver.proxy.target import Refusal
from kubeloop.aio.relay import end_writing

if TYPE_CHECKING:
    import asyncio

    from elasti.resolver.proxy.front import Front


class RefusedConnection(Reading):
    """Answers HTTP before it is asked, reads on for a while so that the answer arrives, and ends."""

    __slots__ = ("_front", "_tick", "_transport")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._tick = front.sweeper.tick
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say why on a port that speaks HTTP."""
        # uvloop's transports have the interface, not the base class.
        self._transport = cast("asyncio.Transport", transport)
        if self._front.protocol is not PortProtocol.HTTP:
            self._transport.close()
            return
        self._front.sweeper.add(self)
        refusal = Refusal.BUSY
        self._transport.write(refusal_response(refusal.status, refusal.words, retry=True))
        end_writing(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read what comes, so that the answer is read."""
        del sizehint
        return self._front.buffer.whole

    def buffer_updated(self, nbytes: int) -> None:
        """Throw it away."""

    def data_received(self, data: bytes) -> None:
        """Throw it away."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        del exc
        self._front.sweeper.discard(self)

    def sweep(self, tick: int) -> None:
        """Wait no longer for the client to close."""
        if self._transport is not None and tick - self._tick > 1:
            self._transport.abort()
