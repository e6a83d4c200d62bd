"""A client's HTTP/1 connection: requests one after the other, each answered by a pod.

Bytes are parsed at heads and counted in bodies; everything else passes as it came. Requests that are
pipelined behind the running one wait in the buffer, which stops the reading when it is full. A bad
head gets its answer and the connection is closed: what follows a bad head cannot be trusted.

A request that is held gets no byte before a pod answers; with `Expect: 100-continue` its body stays
with the client until the pod itself asks for it. A client that closes while it waits looks like one
that only sends no more, so it is sent an interim response that means nothing (RFC 9110, 15.2): from a
client that is gone the kernel answers with a reset, and its place is free within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from elasti.resolver.proxy.h2.connection import H2Connection
from elasti.resolver.proxy.http1.bodies import BodyFramingError
from elasti.resolver.proxy.http1.exchange import FULL, POD_SLOW, Http1Exchange
from elasti.resolver.proxy.http1.heads import (
    Framing,
    HeadError,
    Http1RequestHead,
    parse_request,
    refuse_or_wait,
)
from elasti.resolver.proxy.http1.writer import HeadForwarder, forwarder_for, plain_response
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal
from elasti.resolver.proxy.upstream.pod_connection import body_of
from kubeloop.aio.relay import is_reset

if TYPE_CHECKING:
    import asyncio

_NO_BODY = Framing.NONE
_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
_POKE = b"HTTP/1.1 100 Continue\r\n\r\n"

# How much of a method, and of a path, the operator is told.
_SHOWN = 100


class ClientConnection(Http1Exchange, BufferedClientProtocol):
    """One client's connection on a port whose upstream is known."""

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
        """Go on with a connection that turned out to be HTTP; its port has counted it."""
        self._transport = transport
        self._write = transport.write
        self.handler.sweeper.add(self)
        self.data_received(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take no more of a request that waits than may be kept of it."""
        del sizehint
        buffer = self.handler.buffer
        if self._pod is not None or self._head is None:
            return buffer.whole
        return buffer.some(self._room())

    def buffer_updated(self, nbytes: int) -> None:
        """Use what was read."""
        self.data_received(self.handler.buffer.whole[:nbytes].tobytes())

    def data_received(self, data: bytes) -> None:
        """Start an exchange, or feed the running one."""
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
            self._refuse(400, str(error), retry=False)

    def eof_received(self) -> bool:
        """The client sends no more; the running answer is still wanted."""
        self._eof = True
        if self._head is None:
            # Requests that were sent before may wait for a client that is slow to read.
            return self._write_paused and self._buffer != b""
        if self._body is not None or self._watched is not None:
            return False
        if self._head.minor and not self._answered:
            self._write(_POKE)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: free everything that was held for it."""
        del exc
        transport, self._transport = self._transport, None
        self._ends()
        if transport is not None:
            self.handler.sweeper.discard(self)
            self.handler.leaves(transport)

    def pause_writing(self) -> None:
        """The client is slow to read: so is the pod's answer, and no other request is begun."""
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
            raise HeadError("CONNECT is for forward proxies, and this is none", 501)
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
        """Return who waits: address, method and path. A query may hold secrets, and is left out."""
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
        """Use bytes that are not the start of a request."""
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
        """Read no more of a body when enough of it waits for a pod."""
        if self._body is None:
            if self._buffer:
                self._keep_pipelined(self._buffer)
        elif self._pod is None:
            is_searching = self._waiting or self._opening is not None
            if self._room() <= 0 or (is_searching and not self.has_memory_for(self.kept())):
                self._pause(FULL)

    def _keep_pipelined(self, data: bytes) -> None:
        """Keep what follows the running request.

        Where there is no memory for it, the connection ends with the running answer: what was not
        answered then the client may send again.
        """
        self._buffer = data
        if not self.has_memory_for(len(data) if self._pod is not None else self.kept()):
            self._finished, self._buffer = True, b""

    def _needs_memory(self) -> None:
        """Refuse a head that is not complete where there is no memory for it."""
        if not self.has_memory_for(len(self._buffer)):
            self.refuse(Refusal.OVERFLOW)

    def _room(self) -> int:
        """How much of the client's bytes may still be kept while there is no pod."""
        return self.handler.limits.held_bytes - self.kept()

    def _continue_head(self, data: bytes) -> None:
        seen = len(self._buffer)
        self._buffer += data
        if self._buffer.find(b"\r\n\r\n", max(seen - 3, 0)) < 0:
            # The expression is not tried again for every byte that drips in.
            refuse_or_wait(self._buffer, 0, seen)
            self._needs_memory()
        else:
            self._next()

    def _next(self) -> None:
        """Go on with what is in the buffer, when nothing is in its way."""
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
            self._refuse(400, str(error), retry=False)
        if self._head is None:
            self._idle = not (self._buffer or self._write_paused or self._finished)
            if self._eof and not (self._write_paused and self._buffer):
                self._close(linger=False)

    def _feed(self, data: bytes) -> None:
        """Pass on what belongs to the request's body; keep the rest."""
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
        """Answer without a pod; a request whose body would have to be read ends the connection."""
        close = (
            not head.keep_alive
            or self._eof
            or self._finished
            or head.framing is not _NO_BODY
            or self.handler.upstream.stepping_aside
        )
        head_only = head.method == b"HEAD"
        self._write(plain_response(local.status, local.body, close=close, head_only=head_only))
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
            self._refuse(error.status, str(error), retry=False, linger=True)

    def _become_h2(self, data: bytes) -> None:
        transport, self._transport = self._transport, None
        assert transport is not None
        self.handler.sweeper.discard(self)
        self.has_memory_for(0)
        connection = H2Connection(self.handler)
        transport.set_protocol(connection)
        connection.take_over(transport, data)

    def _done(self) -> None:
        """The answer is complete: go on with what was pipelined, or close."""
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

    # time

    def sweep(self, tick: int) -> None:
        """Act where a deadline has passed."""
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
                self._refuse(408, "the request's head did not come in time", retry=False)
        elif age > (limits.idle if self._used else limits.first_byte):
            self._close(linger=False)

    def _held_longer(self, seconds: float) -> bool:
        return self.held_since is not None and self.handler.now() - self.held_since >= seconds

    def _sweep_exchange(self, age: int) -> None:
        limits, transport = self.handler.limits, self._transport
        assert transport is not None
        if (self._eof or self._pauses) and is_reset(transport):
            # A connection that is not read does not notice by itself.
            transport.abort()
        elif self._body is not None and not self._pauses:
            if age > limits.body_stall:
                self._refuse(408, "the request's body did not come in time", retry=False)
        elif self._write_paused:
            if age > limits.read_stall:
                self._break()
        elif self._pod is not None and not self._answered and age > limits.answer:
            self.refuse(Refusal.SILENT)


def _is_blank(data: bytes) -> bool:
    """Whether there is nothing but empty lines, as some clients send after a body."""
    return data.count(b"\r\n") * 2 == len(data)
