"""The port that all Services share: KubeElasti's, where the Host tells whom a request is for.

The head of a connection's first request is read here; then the connection goes to the Service's own
front, with every byte that was read. It carries one request and is closed: the next one may be for
another Service, and must be looked at anew. Requests for nobody get 404 and wake nobody.

h2 is served where the client sends its first request without waiting for our SETTINGS; those that
wait need a port of their own, which every port of an ElastiService has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from elasti.resolver.proxy.answers import refusal_response
from elasti.resolver.proxy.h2frames import PREFACE
from elasti.resolver.proxy.h2held import Beginning, H2Error, H2Request
from elasti.resolver.proxy.heads import MAX_HEAD, HeadError, parse_request
from elasti.resolver.proxy.reading import Reading

if TYPE_CHECKING:
    import asyncio

    from elasti.resolver.proxy.reading import ReadBuffer
    from elasti.resolver.proxy.shares import Share
    from elasti.resolver.proxy.statistics import Statistics
    from elasti.resolver.proxy.sweeper import Sweeper
    from elasti.resolver.proxy.target import (
        Address,
        Asked,
        LocalAnswer,
        Refusal,
        Target,
        Waiter,
    )

_PATIENCE_TICKS = 30
_PREFACE = b"PRI * HTTP/2.0\r\n"


class Directory(Protocol):
    """Finds the front of whom a request is for."""

    def protocol_for(self, asked: Asked) -> Reading | None:
        """Return the protocol that goes on with the connection; None for nobody."""


class OneRequest:
    """A target whose connections end after one answer."""

    __slots__ = ("_target",)

    stepping_aside = True

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def statistics(self) -> Statistics:
        """The target's."""
        return self._target.statistics

    def pick(self) -> Address | None:
        """As the target."""
        return self._target.pick()

    def wait(self, waiter: Waiter, *, first: bool = False) -> Refusal | None:
        """As the target."""
        return self._target.wait(waiter, first=first)

    def leave(self, waiter: Waiter) -> None:
        """As the target."""
        self._target.leave(waiter)

    def refused(self, address: Address) -> None:
        """As the target."""
        self._target.refused(address)

    def answer_locally(self, asked: Asked) -> LocalAnswer | None:
        """As the target."""
        return self._target.answer_locally(asked)

    def arrived(self, now: float) -> None:
        """As the target."""
        self._target.arrived(now)


class SharedConnection(Reading):
    """A connection of which nobody knows yet whom it is for; it has taken of the share."""

    __slots__ = ("_buffer", "_directory", "_reads", "_share", "_sweeper", "_tick", "_transport")

    def __init__(
        self, *, directory: Directory, sweeper: Sweeper, reads: ReadBuffer, share: Share
    ) -> None:
        self._directory = directory
        self._reads = reads
        self._sweeper = sweeper
        self._share = share
        self._buffer = b""
        self._tick = sweeper.tick
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a head."""
        self._transport = cast("asyncio.Transport", transport)
        self._sweeper.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take a head at most, or what of it is missing."""
        del sizehint
        return self._reads.some(MAX_HEAD + 1 - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Use what was read."""
        self.data_received(self._reads.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Read the head; hand the connection over when it is complete."""
        if self._transport is None:
            return
        self._buffer += data
        try:
            asked = self._asked()
        except HeadError as error:
            self._refuse(error.status, str(error))
            return
        except H2Error as error:
            self._refuse(400, str(error))
            return
        if asked is not None:
            self._hand_over(asked)
        elif len(self._buffer) > MAX_HEAD:
            self._refuse(431, "the request's head is too long")

    def eof_received(self) -> bool:
        """No request will come."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody came."""
        del exc
        self._lets_go()

    def sweep(self, tick: int) -> None:
        """Wait no longer for a head."""
        if self._transport is not None and tick - self._tick > _PATIENCE_TICKS:
            self._transport.abort()

    def _asked(self) -> Asked | None:
        if self._buffer.startswith(_PREFACE):
            return _first_h2_request(self._buffer)
        return parse_request(self._buffer)

    def _hand_over(self, asked: Asked) -> None:
        protocol = self._directory.protocol_for(asked)
        if protocol is None:
            self._refuse(404, "no ElastiService is for the Service that the Host header names")
            return
        transport = self._lets_go()
        if transport is not None and not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(self._buffer)

    def _refuse(self, status: int, words: str) -> None:
        transport = self._transport
        if transport is not None:
            transport.write(refusal_response(status, words, retry=False))
            transport.close()

    def _lets_go(self) -> asyncio.Transport | None:
        transport, self._transport = self._transport, None
        if transport is not None:
            self._sweeper.discard(self)
            self._share.give()
        return transport


def _first_h2_request(data: bytes) -> H2Request | None:
    """Return the first request of an h2 connection; None while it is not complete."""
    if len(data) < len(PREFACE):
        return None
    if not data.startswith(PREFACE):
        raise H2Error("the preface of HTTP/2 is not complete")
    events = Beginning().read(data[len(PREFACE) :])
    return next((event for event in events if isinstance(event, H2Request)), None)
