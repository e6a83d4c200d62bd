"""A connection to a pod: one request at a time, kept for the next where both sides agree.

The pod's bytes go to the client as they come; only the head is read, and the body's end is looked
for. A pod that answers nonsense, or speaks without being asked, is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from elasti.resolver.proxy.framing import (
    Body,
    ChunkedBody,
    CloseBody,
    FramingError,
    LengthBody,
    NoBody,
)
from elasti.resolver.proxy.heads import Framing, HeadError, ResponseHead, parse_response

if TYPE_CHECKING:
    from elasti.resolver.proxy.pool import Pool
    from elasti.resolver.proxy.target import Address


class Asker(Protocol):
    """Who gets the answer: the client's side of an exchange."""

    def pod_interim(self, raw: bytes) -> None:
        """A 1xx response came."""

    def pod_head(self, head: ResponseHead, body: bytes) -> None:
        """The final head came, with the first bytes of the body."""

    def pod_body(self, data: bytes) -> None:
        """More of the body came."""

    def pod_done(self, *, reusable: bool) -> None:
        """The response is complete; `reusable` where the pod's connection may be kept."""

    def pod_switched(self, head: ResponseHead, rest: bytes) -> None:
        """The pod switched protocols: from here on both sides are bytes."""

    def pod_lost(self, *, answered: bool, clean: bool) -> None:
        """The connection ended before the response did; `answered` where some of it was seen."""

    def pod_writable(self, *, writable: bool) -> None:
        """The pod takes more bytes, or wants none for now."""


def body_of(head: ResponseHead) -> Body:
    """Return the reader for the response's body."""
    match head.framing:
        case Framing.NONE:
            return NoBody()
        case Framing.LENGTH:
            return LengthBody(head.length)
        case Framing.CHUNKED:
            return ChunkedBody()
        case Framing.CLOSE:
            return CloseBody()


class PodConnection(asyncio.Protocol):
    """One connection to a pod, idle in the pool or carrying one exchange."""

    __slots__ = (
        "_asker",
        "_body",
        "_head",
        "_method",
        "_pending",
        "_pool",
        "address",
        "transport",
        "used",
    )

    def __init__(self, pool: Pool, address: Address) -> None:
        self._pool = pool
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.used = False
        self._asker: Asker | None = None
        self._method = b""
        self._head: ResponseHead | None = None
        self._body: Body | None = None
        self._pending = b""

    def ask(self, asker: Asker, wire: bytes, method: bytes) -> None:
        """Send a request's head (and what is there of its body); the asker hears the rest."""
        assert self._asker is None
        assert self.transport is not None
        self._asker, self._method = asker, method
        self.transport.write(wire)

    def write(self, data: bytes) -> None:
        """Send more of the request."""
        assert self.transport is not None
        self.transport.write(data)

    def pause(self) -> None:
        """Read no more: the client is slow."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def drop(self) -> None:
        """End the connection; the asker hears nothing more."""
        self._asker = None
        if self.transport is not None:
            self.transport.abort()

    def release(self) -> None:
        """Forget the exchange and go back to the pool."""
        self._asker = self._head = self._body = None
        self.used = True
        self._pool.put(self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the interface, not the base class.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass the answer on."""
        if self._asker is None:
            # Nobody asked: whatever it is, the next request must not be answered with it.
            self._pool.forget(self)
            self.drop()
            return
        if self._pending:
            data, self._pending = self._pending + data, b""
        try:
            if self._body is None:
                self._read_head(data)
            else:
                self._read_body(data, 0)
        except (HeadError, FramingError):
            self._fail(clean=False)

    def eof_received(self) -> bool | None:
        """The pod sends no more; `connection_lost` tells the rest."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: fine when idle or when the body ends with it."""
        asker = self._asker
        if asker is None:
            self._pool.forget(self)
        elif isinstance(self._body, CloseBody) and exc is None:
            self._asker = None
            asker.pod_done(reusable=False)
        else:
            self._fail(clean=exc is None)
        self.transport = None

    def pause_writing(self) -> None:
        """The pod is slow to read."""
        if self._asker is not None:
            self._asker.pod_writable(writable=False)

    def resume_writing(self) -> None:
        """The pod reads again."""
        if self._asker is not None:
            self._asker.pod_writable(writable=True)

    # the response

    def _read_head(self, data: bytes) -> None:
        asker = self._asker
        assert asker is not None
        head = parse_response(data, self._method)
        if head is None:
            self._pending = data
            return
        if head.status == 101:
            self._asker = None
            asker.pod_switched(head, data[head.end :])
            return
        if head.status < 200:
            asker.pod_interim(head.raw)
            if head.end < len(data):
                self._read_head(data[head.end :])
            return
        self._head, self._body = head, body_of(head)
        end = self._body.take(data, head.end)
        asker.pod_head(head, data[head.end : end])
        self._after(data, end)

    def _read_body(self, data: bytes, start: int) -> None:
        assert self._body is not None
        assert self._asker is not None
        end = self._body.take(data, start)
        if end > start:
            self._asker.pod_body(data[start:end] if start or end < len(data) else data)
        self._after(data, end)

    def _after(self, data: bytes, end: int) -> None:
        assert self._body is not None
        if not self._body.done:
            self._pending = data[end:]
            return
        asker, head = self._asker, self._head
        assert head is not None
        if asker is not None:
            self._asker = None
            asker.pod_done(reusable=head.keep_alive and end == len(data))

    def _fail(self, *, clean: bool) -> None:
        asker, self._asker = self._asker, None
        answered = self._body is not None
        if self.transport is not None:
            self.transport.abort()
        if asker is not None:
            asker.pod_lost(answered=answered, clean=clean)
