"""A client's HTTP/1 connection: one request after the other, each served by a pod.

Heads are parsed and body bytes are counted; everything else passes unchanged. Requests pipelined behind the running
one wait in the buffer, and reading stops when it is full. After a bad head the connection is closed: the bytes
that follow cannot be trusted.

A held request gets no byte before a pod answers. With `Expect: 100-continue` the client keeps its body until the
pod asks for it. A client that closes while it waits looks like one that half-closed, so it is sent a meaningless
interim response (RFC 9110, 15.2): the kernel of a client that is gone answers with a reset, and its place is free
within a second.
"""

from __future__ import annotations

import asyncio
from typing import cast

from elasti.resolver.proxy.h2.connection import H2Connection
from elasti.resolver.proxy.http1.bodies import BodyFramingError, body_of
from elasti.resolver.proxy.http1.exchange import FULL, POD_SLOW, Http1Exchange
from elasti.resolver.proxy.http1.heads import (
    Framing,
    HeadError,
    Http1RequestHead,
    parse_request,
    refuse_or_wait,
)
from elasti.resolver.proxy.http1.writer import HeadForwarder, forwarder_for
from elasti.resolver.proxy.own_responses import plain_response
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal
from kubeloop.aio.relay import is_reset

_NO_BODY = Framing.NONE
_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
_POKE = b"HTTP/1.1 100 Continue\r\n\r\n"

# How much of a method and a path is reported to the operator.
_SHOWN = 100


class ClientConnection(Http1Exchange, BufferedClientProtocol):
    """A client's connection on a port whose upstream is known."""

    __slots__ = ()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the interface, not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        self.handler.enters(self._transport)
        self.handler.sweeper.add(self)

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Continue a connection that turned out to be HTTP and is already counted."""
        self._transport = transport
        self._write = transport.write
        self.handler.sweeper.add(self)
        self.data_received(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Stop reading a held request at the limit of what may be kept."""
        del sizehint
        buffer = self.handler.buffer
        if self._pod is not None or self._head is None:
            return buffer.whole
        return buffer.some(self._room())

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes read."""
        self.data_received(self.handler.buffer.whole[:nbytes].tobytes())

    def data_received(self, data: bytes) -> None:
        """Start an exchange or feed the running one."""
        handler = self.handler
        handler.statistics.received += len(data)
        try:
            if self._idle:
                head = parse_request(data)
                if head is not None:
                    self._begin(head, data)
                    if self._head is None:
                        self._next()
                    return
                if _is_blank(data):
                    return
                self._idle = False
                self._tick = handler.sweeper.tick
                self._buffer = data
                self._needs_memory()
            else:
                self._more(data)
        except HeadError as error:
            self._bad_head(self._buffer or data, error)
        except BodyFramingError as error:
            self._refuse(400, str(error))

    def eof_received(self) -> bool:
        """The client half-closed; it still expects the running response."""
        self._eof = True
        if self._head is None:
            # Earlier requests may wait because the client reads slowly.
            return self._write_paused and self._buffer != b""
        if self._body is not None or self._watched is not None:
            return False
        if self._head.minor and not self._answered:
            self._write(_POKE)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: release everything held for it."""
        del exc
        transport, self._transport = self._transport, None
        self._ends()
        if transport is not None:
            self.handler.sweeper.discard(self)
            self.handler.leaves(transport)

    def pause_writing(self) -> None:
        """The client reads slowly: pause the pod's response, and start no other request."""
        self._write_paused = True
        self._idle = False
        self._tick = self.handler.sweeper.tick
        if self._pod is not None:
            self._pod.pause()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._write_paused = False
        self._tick = self.handler.sweeper.tick
        if self._pod is not None:
            self._pod.resume()
        if self._head is None:
            self._next()

    # requests

    def _begin(self, head: Http1RequestHead, data: bytes) -> None:
        """Start the exchange for a request at the start of `data`."""
        handler = self.handler
        upstream = handler.upstream
        local = upstream.answer_locally(head)
        if local is not None:
            self._answer(local, head, data)
            return
        if head.method == b"CONNECT":
            raise HeadError("CONNECT is not supported here", 501)
        self._began = now = handler.now()
        upstream.arrived(now)
        statistics = handler.statistics
        statistics.requests += 1
        statistics.active += 1
        self._idle = self._answered = False
        self._used = True
        self._head = head
        self._repeats = 0
        self._tick = handler.sweeper.tick
        forwarder = self._forwarder or self._make_forwarder()
        self._wire = forwarder.request_head(head)
        if head.framing is not _NO_BODY:
            self._body = body_of(head.framing, head.length)
            self._feed(data[head.end :])
            self._stop_when_full()
        elif head.end < len(data):
            self._keep_pipelined(data[head.end :])
        if head.watches and (page := upstream.page) is not None:
            self._watch(page)
            return
        address = upstream.pick()
        if address is None:
            self._wait(first=False)
        else:
            self._go(address)

    def client(self) -> str:
        """Return the client's address, method and path, without the query, which may hold secrets."""
        if (head := self._head) is None:
            return super().client()
        asked = b" ".join((head.method[:_SHOWN], head.target.partition(b"?")[0][:_SHOWN]))
        printable = "".join(chr(byte) if 32 <= byte < 127 else f"%{byte:02X}" for byte in asked)
        return f"{super().client()} {printable}"

    def _make_forwarder(self) -> HeadForwarder:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        self._forwarder = forwarder_for(peer[0] if peer else "unknown")
        return self._forwarder

    def _more(self, data: bytes) -> None:
        """Process bytes that do not start a request."""
        if self._finished and self._body is None:
            return
        if self._body is not None:
            self._feed(self._buffer + data if self._buffer else data)
            self._stop_when_full()
        elif self._head is not None or self._write_paused:
            self._keep_pipelined(self._buffer + data)
        else:
            self._continue_head(data)
        if len(self._buffer) > self.handler.limits.pipelined_bytes:
            self._pause(FULL)

    def _stop_when_full(self) -> None:
        """Pause reading when enough of a body is kept for a pod."""
        if self._body is None:
            if self._buffer:
                self._keep_pipelined(self._buffer)
        elif self._pod is None:
            is_searching = self._waiting or self._opening is not None
            if self._room() <= 0 or (is_searching and not self.has_memory_for(self.kept())):
                self._pause(FULL)

    def _keep_pipelined(self, data: bytes) -> None:
        """Keep the bytes behind the running request.

        Without memory for them the connection ends with the running response, and the client may repeat the
        requests that were not answered.
        """
        self._buffer = data
        if not self.has_memory_for(len(data) if self._pod is not None else self.kept()):
            self._finished, self._buffer = True, b""

    def _needs_memory(self) -> None:
        """Refuse an incomplete head if there is no memory for it."""
        if not self.has_memory_for(len(self._buffer)):
            self.refuse(Refusal.OVERFLOW)

    def _room(self) -> int:
        """How many more bytes may be kept while there is no pod."""
        return self.handler.limits.held_bytes - self.kept()

    def _continue_head(self, data: bytes) -> None:
        seen = len(self._buffer)
        self._buffer += data
        if self._buffer.find(b"\r\n\r\n", max(seen - 3, 0)) < 0:
            # Do not run the expression again for every byte that drips in.
            refuse_or_wait(self._buffer, 0, seen)
            self._needs_memory()
        else:
            self._next()

    def _next(self) -> None:
        """Continue with the buffer, if nothing is in the way."""
        try:
            while (
                self._buffer and self._head is None and not (self._write_paused or self._finished)
            ):
                head = parse_request(self._buffer)
                if head is None:
                    if not _is_blank(self._buffer):
                        return
                    self._buffer = b""
                    break
                data, self._buffer = self._buffer, b""
                if self._pages:
                    self.has_memory_for(0)
                self._begin(head, data)
        except HeadError as error:
            self._bad_head(self._buffer, error)
        except BodyFramingError as error:
            self._refuse(400, str(error))
        if self._head is None:
            self._idle = not (self._buffer or self._write_paused or self._finished)
            if self._eof and not (self._write_paused and self._buffer):
                self._close(linger=False)

    def _feed(self, data: bytes) -> None:
        """Forward the bytes of the request's body, and keep the rest."""
        body = self._body
        assert body is not None
        end = body.take(data)
        piece, self._buffer = (data, b"") if end == len(data) else (data[:end], data[end:])
        if body.done:
            self._body = None
        self._tick = self.handler.sweeper.tick
        if not piece:
            return
        if self._pod is not None:
            self._wire = None
            self._pod.write(piece)
        elif self._wire is not None:
            self._wire += piece

    def _answer(self, local: LocalAnswer, head: Http1RequestHead, data: bytes) -> None:
        """Answer without a pod. A request with a body ends the connection."""
        close = (
            not head.keep_alive
            or self._eof
            or self._finished
            or head.framing is not _NO_BODY
            or self.handler.upstream.stepping_aside
        )
        head_only = head.method == b"HEAD"
        self._write(
            plain_response(
                local.status, local.body, close=close, head_only=head_only, fields=local.fields
            )
        )
        if local.counted:
            self.handler.statistics.answers[local.status // 100].add(0.0)
        self._used, self._tick = True, self.handler.sweeper.tick
        self._idle, self._buffer = False, data[head.end :]
        if close:
            self._close(linger=head.framing is not _NO_BODY)

    def _bad_head(self, data: bytes, error: HeadError) -> None:
        if not self._used and data.startswith(_PREFACE):
            self._become_h2(data)
        else:
            self._refuse(error.status, str(error), linger=True)

    def _become_h2(self, data: bytes) -> None:
        transport, self._transport = self._transport, None
        assert transport is not None
        self.handler.sweeper.discard(self)
        self.has_memory_for(0)
        connection = H2Connection(self.handler)
        transport.set_protocol(connection)
        connection.take_over(transport, data)

    def _done(self) -> None:
        """The response is complete: continue with pipelined requests, or close."""
        self._head = self._wire = None
        self.handler.statistics.active -= 1
        if self.held_since is not None or self._tries:
            self.held_since, self._tries, self._waiting_page = None, 0, None
        self._tick = self.handler.sweeper.tick
        if self._finished or self._body is not None:
            self._close(linger=self._body is not None)
            return
        if self._pauses:
            self._resume(FULL | POD_SLOW)
        if self._buffer or self._write_paused or self._eof:
            self._next()
        else:
            self._idle = True

    def shed(self) -> bool:
        """End the connection, unless a pod serves it; between requests there is nothing to answer."""
        transport = self._transport
        if self._head is not None or self._buffer or transport is None or transport.is_closing():
            return super().shed()
        # A client that does not read what it was sent would keep its descriptor.
        (transport.abort if transport.get_write_buffer_size() else transport.close)()
        return True

    # time

    def sweep(self, tick: int) -> None:
        """Act if a deadline has passed."""
        limits, age = self.handler.limits, tick - self._tick
        if self._head is not None:
            page = self._waiting_page
            if self._watched is not None and not self._write_paused:
                self._sweep_watch(age)
            elif page is not None and self._waiting and self._held_longer(page.after):
                self._show_page(page)
            elif not self.gave_up_search(tick):
                self._sweep_exchange(age)
        elif self._lingering:
            if age > limits.linger:
                self._break()
        elif self._write_paused or self._finished:
            if age > limits.read_stall:
                self._break()
        elif self._buffer:
            if age > limits.head:
                self._refuse(408, "the request head was not received in time")
        elif age > (limits.idle if self._used else limits.first_byte):
            self._close(linger=False)

    def _held_longer(self, seconds: float) -> bool:
        return self.held_since is not None and self.handler.now() - self.held_since >= seconds

    def _sweep_exchange(self, age: int) -> None:
        limits, transport = self.handler.limits, self._transport
        assert transport is not None
        if (self._eof or self._pauses) and is_reset(transport):
            # A connection that is not read does not notice a reset.
            transport.abort()
        elif self._body is not None and not self._pauses:
            if age > limits.body_stall:
                self._refuse(408, "the request body was not received in time")
        elif self._write_paused:
            if age > limits.read_stall:
                self._break()
        elif self._pod is not None and not self._answered and age > limits.answer:
            self.refuse(Refusal.SILENT)


def _is_blank(data: bytes) -> bool:
    """Whether there are only empty lines, which some clients send after a body."""
    return data.count(b"\r\n") * 2 == len(data)
