"""A client's HTTP/1 connection: requests one after the other, each answered by a pod.

Bytes are parsed at heads and counted in bodies; everything else passes as it came. Requests that are
pipelined behind the running one wait in the buffer, which stops the reading when it is full. A bad
head gets its answer and the connection is closed: what follows a bad head cannot be trusted.

Nothing is sent twice: a request that reached a pod is repeated only when nothing of the answer was
seen, its method is idempotent, and all of it is still here.

A request that is held gets no byte before a pod answers; with `Expect: 100-continue` its body stays
with the client until the pod itself asks for it. A client that closes while it waits looks like one
that only sends no more, so it is sent an interim response that means nothing (RFC 9110, 15.2): from a
client that is gone the kernel answers with a reset, and its place is free within a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, cast

from elasti.resolver.proxy.answers import plain_response, refusal_response
from elasti.resolver.proxy.framing import FramingError
from elasti.resolver.proxy.h2 import H2Connection
from elasti.resolver.proxy.heads import (
    Framing,
    HeadError,
    RequestHead,
    ResponseHead,
    parse_request,
    refuse_or_wait,
)
from elasti.resolver.proxy.pod import body_of
from elasti.resolver.proxy.rewrite import Forwarder, response_head
from elasti.resolver.proxy.seeker import Seeker
from elasti.resolver.proxy.sockets import is_reset, reset
from elasti.resolver.proxy.target import Refusal
from elasti.resolver.proxy.tunnel import tunnel

if TYPE_CHECKING:
    from elasti.resolver.proxy.framing import Body
    from elasti.resolver.proxy.front import Front
    from elasti.resolver.proxy.pod import PodConnection
    from elasti.resolver.proxy.target import Address, LocalAnswer

_NO_BODY, _CLOSE = Framing.NONE, Framing.CLOSE
_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
_MAX_REPEATS = 2
_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
_POKE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Why the client is not read: its pod is slow, or enough of its bytes wait here.
_POD_SLOW, _FULL = 1, 2


class ClientConnection(Seeker, asyncio.Protocol):
    """One client's connection on a port whose target is known."""

    __slots__ = (
        "_answered", "_body", "_buffer", "_eof", "_finished", "_forwarder", "_head", "_lingering",
        "_pauses", "_pod", "_repeats", "_resting", "_stuck", "_tick", "_transport", "_used", "_wire",
        "_write",
    )  # fmt: skip

    fresh: ClassVar[bool] = False

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._transport: asyncio.Transport | None = None
        self._forwarder: Forwarder | None = None
        # What was read and not used yet; the running request and what is left of its body.
        self._buffer = b""
        self._head: RequestHead | None = None
        self._body: Body | None = None
        self._pod: PodConnection | None = None
        # The request as it goes to a pod; dropped once it may not be sent again.
        self._wire: bytes | None = None
        self._repeats = 0
        # Whether the next bytes are a new request's, and nothing is in its way.
        self._resting = True
        self._answered = False
        self._used = False
        # No request after the running one; the client sends no more; it does not read.
        self._finished = False
        self._eof = False
        self._stuck = False
        self._lingering = False
        self._pauses = 0
        self._tick = front.sweeper.tick

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the interface, not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        self.front.enters(self._transport)
        self.front.sweeper.add(self)

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Go on with a connection that turned out to be HTTP; its port has counted it."""
        self._transport = transport
        self._write = transport.write
        self.front.sweeper.add(self)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Start an exchange, or feed the running one."""
        front = self.front
        front.statistics.received += len(data)
        try:
            if self._resting:
                head = parse_request(data)
                if head is not None:
                    self._begin(head, data)
                    if self._head is None:
                        self._next()
                    return
                self._resting = False
                self._tick = front.sweeper.tick
                self._buffer = data
            else:
                self._more(data)
        except HeadError as error:
            self._bad_head(self._buffer or data, error)
        except FramingError as error:
            self._refuse(400, str(error), retry=False)

    def eof_received(self) -> bool:
        """The client sends no more; the running answer is still wanted."""
        self._eof = self._finished = True
        if self._head is None or self._body is not None:
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
            self.front.sweeper.discard(self)
            self.front.leaves(transport)

    def pause_writing(self) -> None:
        """The client is slow to read: so is the pod's answer, and no other request is begun."""
        self._stuck = True
        self._resting = False
        self._tick = self.front.sweeper.tick
        if self._pod is not None:
            self._pod.pause()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck = False
        self._tick = self.front.sweeper.tick
        if self._pod is not None:
            self._pod.resume()
        if self._head is None:
            self._next()

    # requests

    def _begin(self, head: RequestHead, data: bytes) -> None:
        """Start the exchange for a request at the start of `data`."""
        front = self.front
        target = front.target
        local = target.answer_locally(head)
        if local is not None:
            self._answer(local, head, data)
            return
        if head.method == b"CONNECT":
            raise HeadError("CONNECT is for forward proxies, and this is none", 501)
        target.arrived()
        statistics = front.statistics
        statistics.requests += 1
        statistics.active += 1
        self._resting = self._answered = False
        self._used = True
        self._head = head
        self._repeats = 0
        self._tick = front.sweeper.tick
        forwarder = self._forwarder or self._make_forwarder()
        self._wire = forwarder.request_head(head)
        if head.framing is not _NO_BODY:
            self._body = body_of(head.framing, head.length)
            self._feed(data[head.end :])
        elif head.end < len(data):
            self._buffer = data[head.end :]
        address = target.pick()
        if address is None:
            self._wait(first=False)
        else:
            self._go(address)

    def _make_forwarder(self) -> Forwarder:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        self._forwarder = Forwarder(peer[0] if peer else "unknown")
        return self._forwarder

    def _more(self, data: bytes) -> None:
        """Use bytes that are not the start of a request."""
        if self._finished and self._body is None:
            return
        if self._body is not None:
            self._feed(self._buffer + data if self._buffer else data)
        elif self._head is not None or self._stuck:
            self._buffer += data
        else:
            self._continue_head(data)
        if len(self._buffer) > self.front.limits.pipelined_bytes:
            self._pause(_FULL)

    def _continue_head(self, data: bytes) -> None:
        seen = len(self._buffer)
        self._buffer += data
        if self._buffer.find(b"\r\n\r\n", max(seen - 3, 0)) < 0:
            # The expression is not tried again for every byte that drips in.
            refuse_or_wait(self._buffer, 0, seen)
        else:
            self._next()

    def _next(self) -> None:
        """Go on with what is in the buffer, when nothing is in its way."""
        try:
            while self._buffer and self._head is None and not (self._stuck or self._finished):
                head = parse_request(self._buffer)
                if head is None:
                    return
                data, self._buffer = self._buffer, b""
                self._begin(head, data)
        except HeadError as error:
            self._bad_head(self._buffer, error)
        except FramingError as error:
            self._refuse(400, str(error), retry=False)
        if self._head is None:
            self._resting = not (self._buffer or self._stuck or self._finished)

    def _feed(self, data: bytes) -> None:
        """Pass on what belongs to the request's body; keep the rest."""
        body = self._body
        assert body is not None
        end = body.take(data)
        piece, self._buffer = (data, b"") if end == len(data) else (data[:end], data[end:])
        if body.done:
            self._body = None
        self._tick = self.front.sweeper.tick
        if not piece:
            return
        if self._pod is not None:
            self._wire = None
            self._pod.write(piece)
        elif self._wire is not None:
            self._wire += piece
            if len(self._wire) > self.front.limits.held_bytes and self._body is not None:
                self._pause(_FULL)

    def _answer(self, local: LocalAnswer, head: RequestHead, data: bytes) -> None:
        """Answer without a pod; a request whose body would have to be read ends the connection."""
        close = not head.keep_alive or self._eof or head.framing is not _NO_BODY
        head_only = head.method == b"HEAD"
        self._write(plain_response(local.status, local.body, close=close, head_only=head_only))
        self.front.statistics.by_class[local.status // 100] += 1
        self._used, self._tick = True, self.front.sweeper.tick
        self._resting, self._buffer = False, data[head.end :]
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
        self.front.sweeper.discard(self)
        connection = H2Connection(self.front)
        transport.set_protocol(connection)
        connection.take_over(transport, data)

    # the search for a pod

    def _go(self, address: Address) -> None:
        repeatable = self._is_repeatable()
        pod = self.front.pool.take(address, repeatable=repeatable)
        if pod is None:
            super()._go(address)
        else:
            self._send(pod, repeatable=repeatable)

    def connected(self, connection: PodConnection) -> None:
        """A connection to a pod is open."""
        self.found()
        self._tick = self.front.sweeper.tick
        self._send(connection, repeatable=self._is_repeatable())

    def refuse(self, refusal: Refusal) -> None:
        """Tell the client why, and when to come back."""
        self._refuse(refusal.status, refusal.words, retry=True)

    def _send(self, pod: PodConnection, *, repeatable: bool) -> None:
        wire, head = self._wire, self._head
        assert wire is not None
        assert head is not None
        self._pod = pod
        if not repeatable:
            self._wire = None
        pod.ask(self, wire, head.method)
        if self._pauses:
            self._resume(_FULL)

    def _is_repeatable(self) -> bool:
        head = self._head
        return head is not None and head.method in _IDEMPOTENT and self._body is None

    # Asker

    def pod_whole(self, head: ResponseHead, data: bytes) -> None:
        """The whole response came: pass it on in one piece where nothing has to be changed."""
        pod, self._pod = self._pod, None
        request, front = self._head, self.front
        assert pod is not None
        assert request is not None
        if head.keep_alive and self._body is None:
            pod.release()
        else:
            pod.drop()
        if (
            head.edited
            or self._finished
            or self.held_since is not None
            or self._body is not None
            or not (request.keep_alive and request.minor)
            or front.target.stepping_aside
        ):
            self._write_head(head, data[head.end :])
        else:
            statistics = front.statistics
            statistics.sent += len(data)
            statistics.by_class[head.status // 100] += 1
            self._write(data)
        self._done()

    def pod_interim(self, head: ResponseHead) -> None:
        """Pass a 1xx response on; HTTP/1.0 clients do not know them."""
        self._wire = None
        if self._head is not None and self._head.minor:
            self._write(head.raw)

    def pod_head(self, head: ResponseHead, body: bytes) -> None:
        """Send the final head and the first bytes of the body."""
        self._wire = None
        self._answered = True
        self._write_head(head, body)

    def pod_body(self, data: bytes) -> None:
        """Send more of the body."""
        self.front.statistics.sent += len(data)
        self._write(data)

    def pod_done(self, *, reusable: bool) -> None:
        """The answer is complete; the pod's connection is kept where the request is, too."""
        pod, self._pod = self._pod, None
        if pod is not None:
            if reusable and self._body is None:
                pod.release()
            else:
                pod.drop()
        self._done()

    def pod_switched(self, head: ResponseHead, rest: bytes) -> None:
        """Become a tunnel: the upgrade was agreed on."""
        pod, transport, request = self._pod, self._transport, self._head
        if pod is None or transport is None or request is None or request.upgrade is None:
            self._refuse(Refusal.BROKEN.status, Refusal.BROKEN.words, retry=True)
            return
        self._write_head(head, rest)
        if self._buffer:
            pod.write(self._buffer)
        self._pod, self._transport = None, None
        self._ends()
        self.front.sweeper.discard(self)
        tunnel(
            transport,
            pod,
            statistics=self.front.statistics,
            on_client_lost=lambda: self.front.leaves(transport),
            client_is_slow=self._stuck,
        )

    def pod_lost(self, *, answered: bool) -> None:
        """The pod went away in the middle: again where it may be, else the client sees that it did."""
        self._pod = None
        if answered:
            self.front.statistics.broken += 1
            self._break()
        elif self._wire is not None and self._repeats < _MAX_REPEATS:
            self._repeats += 1
            self.seek_again()
        else:
            self.refuse(Refusal.BROKEN)

    def pod_writable(self, *, writable: bool) -> None:
        """The pod takes more bytes, or wants none for now."""
        if writable:
            self._resume(_POD_SLOW)
        else:
            self._pause(_POD_SLOW)

    # the answer

    def _write_head(self, head: ResponseHead, body: bytes) -> None:
        request = self._head
        assert request is not None
        if (
            not request.keep_alive
            or self._body is not None
            or head.framing is _CLOSE
            or self.front.target.stepping_aside
        ):
            self._finished = True
        extra = b"" if self.held_since is None else self._held_fields(self.held_since)
        keep_1_0 = request.minor == 0
        wire = response_head(head, close=self._finished, keep_alive_1_0=keep_1_0, extra=extra)
        statistics = self.front.statistics
        statistics.sent += len(wire) + len(body)
        statistics.by_class[head.status // 100] += 1
        self._write(wire + body)

    @staticmethod
    def _held_fields(since: float) -> bytes:
        held = (asyncio.get_running_loop().time() - since) * 1000
        return b"X-Elasti-Cold-Start: true\r\nServer-Timing: elasti-hold;dur=%.1f\r\n" % held

    def _done(self) -> None:
        """The answer is complete: go on with what was pipelined, or close."""
        self._head = self._wire = None
        self.front.statistics.active -= 1
        if self.held_since is not None or self._tries:
            self.held_since, self._tries = None, 0
        self._tick = self.front.sweeper.tick
        if self._finished or self._body is not None:
            self._close(linger=self._body is not None)
            return
        if self._pauses:
            self._resume(_FULL)
        if self._buffer or self._stuck:
            self._next()
        else:
            self._resting = True

    def _ends(self) -> None:
        """Stop whatever was under way for the running request."""
        self.stop_seeking()
        pod, self._pod = self._pod, None
        if pod is not None:
            pod.drop()
        if self._head is not None:
            self._head = self._wire = None
            self.front.statistics.active -= 1

    def _refuse(self, status: int, words: str, *, retry: bool, linger: bool = False) -> None:
        """Answer with an error of our own, and close."""
        if self._transport is None:
            return
        head_only = self._head is not None and self._head.method == b"HEAD"
        unread = self._body is not None or self._buffer != b""
        answered = self._answered and self._head is not None
        self._ends()
        if answered:
            self._break()
            return
        self._write(refusal_response(status, words, retry=retry, head_only=head_only))
        self.front.statistics.by_class[status // 100] += 1
        self._close(linger=linger or unread)

    def _close(self, *, linger: bool) -> None:
        """End the connection; with `linger` read on for a while, or a reset eats the answer."""
        transport = self._transport
        self._finished, self._resting = True, False
        self._tick = self.front.sweeper.tick
        linger = linger or self._buffer != b""
        self._buffer, self._body = b"", None
        if transport is None or transport.is_closing():
            return
        if not linger or self._eof:
            transport.close()
            return
        self._lingering = True
        self._resume(_FULL | _POD_SLOW)
        transport.write_eof()

    def _break(self) -> None:
        """Cut the connection, so that half an answer is not taken for a whole one."""
        self._ends()
        if self._transport is not None:
            reset(self._transport)

    # flow and time

    def _pause(self, reason: int) -> None:
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= reason

    def _resume(self, reason: int) -> None:
        before, self._pauses = self._pauses, self._pauses & ~reason
        if not before or self._pauses or self._eof:
            return
        self._tick = self.front.sweeper.tick
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def sweep(self, tick: int) -> None:
        """Act where a deadline has passed."""
        limits, age = self.front.limits, tick - self._tick
        if self._head is not None:
            self._sweep_exchange(age)
        elif self._lingering:
            if age > limits.linger:
                self._break()
        elif self._stuck or self._finished:
            if age > limits.read_stall:
                self._break()
        elif self._buffer:
            if age > limits.head:
                self._refuse(408, "the request's head did not come in time", retry=False)
        elif age > (limits.idle if self._used else limits.first_byte):
            self._close(linger=False)

    def _sweep_exchange(self, age: int) -> None:
        limits, transport = self.front.limits, self._transport
        assert transport is not None
        if (self._eof or self._pauses) and is_reset(transport):
            # Nobody reads this connection, so nothing else would notice.
            transport.abort()
        elif self._body is not None and not self._pauses:
            if age > limits.body_stall:
                self._refuse(408, "the request's body did not come in time", retry=False)
        elif self._stuck:
            if age > limits.read_stall:
                self._break()
        elif self._pod is not None and not self._answered and age > limits.answer:
            self.refuse(Refusal.SILENT)
