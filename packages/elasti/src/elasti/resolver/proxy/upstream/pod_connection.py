"""A connection to a pod: one request at a time, kept alive if both sides agree.

The pod's bytes go to the client as they come; only the head is parsed and the end of the body is found. A
response that arrives in one piece, as most do, is forwarded as one piece. The connection is closed if the pod
sends an invalid response or unsolicited bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Protocol, cast

from elasti.resolver.proxy.http1.bodies import (
    BodyFramingError,
    BodyReader,
    CloseBodyReader,
    body_of,
)
from elasti.resolver.proxy.http1.heads import (
    Framing,
    HeadError,
    Http1ResponseHead,
    parse_response,
    refuse_or_wait,
)
from elasti.resolver.proxy.quota import QuotaShare
from elasti.resolver.proxy.transport import READ_SIZE
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.proxy.upstream.parallel import ParallelEvidence
from kubeloop.aio.relay import is_open

_NONE, _LENGTH = Framing.NONE, Framing.LENGTH


class ResponseSink(Protocol):
    """Receives the response. A client's connection implements it."""

    def pod_interim(self, head: Http1ResponseHead) -> None:
        """A 1xx response came."""

    def pod_whole(self, head: Http1ResponseHead, data: bytes) -> None:
        """The whole response is in `data`; the sink gives the connection back."""

    def pod_head(self, head: Http1ResponseHead, body: bytes) -> None:
        """The final head came, with the first bytes of the body."""

    def pod_body(self, data: bytes) -> None:
        """More of the body came."""

    def pod_done(self, *, reusable: bool) -> None:
        """The response is complete. `reusable`: the connection may be kept."""

    def pod_switched(self, head: Http1ResponseHead, rest: bytes) -> None:
        """The pod switched protocols: tunnel bytes from here on."""

    def pod_lost(self, *, heard: bool, answered: bool) -> None:
        """The connection ended before the response did.

        `heard`: some bytes came, even if incomplete or invalid. `answered`: some were forwarded.
        """

    def pod_writable(self, *, writable: bool) -> None:
        """The pod takes more bytes, or pushes back."""


class PodConsumer(Protocol):
    """Waits for a connection to a pod: a client's connection, or one request of it."""

    @property
    def pod_share(self) -> QuotaShare:
        """The quota that the connection counts in."""

    def connected(self, connection: PodConnection) -> None:
        """Take a connection."""

    def connect_failed(self, address: UpstreamAddress) -> None:
        """The pod did not accept a connection."""


class PodPool:
    """The pool's state for one pod.

    A queue does not connect to a starting pod all at once: many servers have a backlog of 5 to 128, and
    connections beyond it wait for a second. `credit` is how many connections may be opened. Each response adds two,
    so that they double, or one after a connection was not accepted. Without responses, as in streams, they double
    with time.
    """

    __slots__ = (
        "address", "answers", "connecting", "credit", "doubting", "failed", "fresh", "gain", "idle", "open",
        "pacing", "parallel", "patience", "silent_since", "step", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        address: UpstreamAddress,
        *,
        fresh: bool,
        credit: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.fresh = fresh
        self.credit = self.step = credit
        # Responses since the last look, and the credit for each.
        self.answers = 0
        self.gain = 2
        self.pacing: asyncio.TimerHandle | None = None
        # How long a connection attempt may take, and when the first one in a row failed.
        self.patience = 0.0
        self.silent_since: float | None = None
        self.idle: dict[PodConnection, int] = {}
        self.waiting: dict[PodConsumer, None] = {}
        # Consumers still to be sent away, because the pod does not accept.
        self.failed: dict[PodConsumer, None] = {}
        self.connecting = 0
        self.open = 0
        self.parallel = ParallelEvidence(now)
        # After it idle connections end, if a request still waits on another one.
        self.doubting: asyncio.TimerHandle | None = None


class PodConnectionPool(Protocol):
    """The pool that a connection belongs to while no exchange has it."""

    def put(self, connection: PodConnection) -> None:
        """Take back a connection whose exchange is over."""

    def lost(self, connection: PodConnection) -> None:
        """A connection is gone."""


class PodConnection(asyncio.Protocol):
    """One connection to a pod, idle in the pool or carrying one exchange."""

    __slots__ = (
        "_abandoned",
        "_body",
        "_ended",
        "_made",
        "_method",
        "_paused",
        "_pending",
        "_pool",
        "_reusable",
        "_sink",
        "pod_pool",
        "share",
        "transport",
        "write",
    )  # fmt: skip

    def __init__(self, *, pool: PodConnectionPool, pod_pool: PodPool, share: QuotaShare) -> None:
        self._pool = pool
        self.pod_pool = pod_pool
        self.share = share
        self.transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None]
        self._sink: ResponseSink | None = None
        self._method = b""
        self._body: BodyReader | None = None
        self._reusable = False
        self._pending = b""
        self._paused = False
        self._made = self._abandoned = self._ended = False

    @property
    def address(self) -> UpstreamAddress:
        """The pod's address."""
        return self.pod_pool.address

    def ask(self, sink: ResponseSink, wire: bytes, method: bytes) -> None:
        """Send a request's head and the body bytes at hand; the sink gets the response."""
        self._sink, self._method = sink, method
        if not (parallel := self.pod_pool.parallel).proven:
            parallel.asked(self)
        self.write(wire)

    def pause(self) -> None:
        """Pause reading: the client is slow."""
        if self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def is_open(self) -> bool:
        """Whether neither side has closed the connection, as far as the kernel knows."""
        transport = self.transport
        return transport is not None and not transport.is_closing() and is_open(transport)

    def drop(self) -> None:
        """Close the connection; the sink gets nothing more."""
        self._sink = None
        self.pod_pool.idle.pop(self, None)
        self.pod_pool.parallel.gone(self)
        if self.transport is not None:
            self.transport.abort()

    def abandon(self) -> None:
        """Give up on a connection that was not made in time.

        The loop may still make it, and uvloop closes such a connection without notice.
        """
        self._abandoned, transport = True, self.transport
        if transport is not None:
            transport.abort()
            self.lost()
        elif not self._made:
            self.share.give()

    def release(self) -> None:
        """End the exchange and return to the pool."""
        self._sink = self._body = None
        if self._ended:
            return
        if self._paused:
            self.resume()
        self._pool.put(self)

    def detach(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Switch to another protocol, which then has to call `lost`.

        It gets the bytes that the pod sent unasked.
        """
        transport, early = self.transport, self._pending
        assert transport is not None
        self._sink, self._pending = None, b""
        transport.set_protocol(protocol)
        if early:
            protocol.data_received(early)
        if not transport.is_closing():
            transport.resume_reading()
        return transport

    def lost(self) -> None:
        """The connection is gone."""
        self.transport = None
        self.pod_pool.parallel.gone(self)
        self._pool.lost(self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the interface, not the base class.
        made = cast("asyncio.Transport", transport)
        if self._abandoned:
            made.abort()
            return
        self._made = True
        self.transport = made
        self.write = made.write
        self.pod_pool.open += 1

    def data_received(self, data: bytes) -> None:
        """Forward the response."""
        sink = self._sink
        if sink is None:
            self._unsolicited(data)
            return
        if not (parallel := self.pod_pool.parallel).proven:
            parallel.answered(self)
        try:
            if self._body is not None:
                self._read_body(sink, data)
            elif self._pending:
                self._read_late_head(sink, data)
            else:
                self._read_head(sink, data)
        except (HeadError, BodyFramingError):
            self._fail(heard=True)

    def eof_received(self) -> None:
        """The pod half-closed; `connection_lost` follows."""
        self.pod_pool.idle.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone. That is fine if it was idle or if the body ends with it."""
        if self._abandoned:
            return
        if exc is not None and self._sink is not None:
            self._read_rest()
        sink = self._sink
        if sink is not None:
            if exc is None and isinstance(self._body, CloseBodyReader):
                self._sink = None
                sink.pod_done(reusable=False)
            else:
                self._fail(heard=bool(self._pending))
        self.lost()

    def pause_writing(self) -> None:
        """The pod reads slowly."""
        if self._sink is not None:
            self._sink.pod_writable(writable=False)

    def resume_writing(self) -> None:
        """The pod reads again."""
        if self._sink is not None:
            self._sink.pod_writable(writable=True)

    # the response

    def _read_rest(self) -> None:
        """Read the response that a pod sent before it closed, after a write has failed.

        A server that refuses an upload does this: its response is in the socket, followed by a reset.
        """
        self._ended = True
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        with contextlib.suppress(OSError):
            while sock is not None and self._sink is not None:
                if not (data := os.read(sock.fileno(), READ_SIZE)):
                    return
                self.data_received(data)

    def _unsolicited(self, data: bytes) -> None:
        """Keep the bytes of a pod that speaks first for `detach`; close a pooled connection."""
        if self.pod_pool.fresh and self.transport is not None:
            self._pending += data
            self.transport.pause_reading()
        else:
            # The next request must not get these bytes as its response.
            self.drop()

    def _read_head(self, sink: ResponseSink, data: bytes) -> None:
        head = parse_response(data, self._method)
        if head is None:
            self._pending = data
            return
        framing = head.framing
        if framing is _LENGTH and head.end + head.length == len(data):
            self._sink = None
            sink.pod_whole(head, data)
        elif head.status < 200:
            self._read_interim(sink, head, data)
        elif framing is _NONE and head.end == len(data):
            self._sink = None
            sink.pod_whole(head, data)
        else:
            self._begin_body(sink, head, data)

    def _read_late_head(self, sink: ResponseSink, data: bytes) -> None:
        seen = len(self._pending)
        data = self._pending + data
        if data.find(b"\r\n\r\n", max(seen - 3, 0)) < 0:
            refuse_or_wait(data, 0, seen)
            self._pending = data
            return
        self._pending = b""
        self._read_head(sink, data)

    def _read_interim(self, sink: ResponseSink, head: Http1ResponseHead, data: bytes) -> None:
        """Forward interim responses; a pod may send several in one piece."""
        interim: Http1ResponseHead | None = head
        start = 0
        while interim is not None and interim.status < 200:
            if interim.status == 101:
                sink.pod_switched(interim, data[interim.end :])
                return
            sink.pod_interim(interim)
            start = interim.end
            if start == len(data) or self._sink is not sink:
                return
            interim = parse_response(data, self._method, start)
        self._read_head(sink, data[start:])

    def _begin_body(self, sink: ResponseSink, head: Http1ResponseHead, data: bytes) -> None:
        body = self._body = body_of(head.framing, head.length, is_response=True)
        self._reusable = head.keep_alive
        start = head.end
        end = body.take(data, start) if body is not None else start
        sink.pod_head(head, data[start:end])
        self._after(body, data, end)

    def _read_body(self, sink: ResponseSink, data: bytes) -> None:
        body = self._body
        assert body is not None
        if self._pending:
            data, self._pending = self._pending + data, b""
        end = body.take(data)
        if end:
            sink.pod_body(data if end == len(data) else data[:end])
        self._after(body, data, end)

    def _after(self, body: BodyReader | None, data: bytes, end: int) -> None:
        sink = self._sink
        if sink is None:
            return
        if body is None or body.done:
            self._sink = self._body = None
            sink.pod_done(reusable=self._reusable and end == len(data))
        elif end < len(data):
            self._pending = data[end:]

    def _fail(self, *, heard: bool) -> None:
        sink, self._sink = self._sink, None
        answered, self._body = self._body is not None, None
        if self.transport is not None:
            self.transport.abort()
        if sink is not None:
            sink.pod_lost(heard=heard or answered, answered=answered)
