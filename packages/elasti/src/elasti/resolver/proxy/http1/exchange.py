"""One request on a client's connection: the search for a pod, and its response.

A request that reached a pod is repeated only if no byte of the response was seen, its method is idempotent, and
all of it is still here. A response goes to the client as it comes; if it breaks off, so does the client's
connection.

A browser's navigation that waits too long gets the waiting page, and is never sent to a pod. The page then asks
for the progress of the wake-up, with a header field of its own. That request waits in the queue like any other,
and its response is a line for each stage.

`ClientConnection` (connection.py) inherits from this class: the two are one object, so that a request on a kept
connection to a pod allocates nothing but its head.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from elasti.resolver.proxy.http1.bodies import BodyReader
from elasti.resolver.proxy.http1.heads import Framing, Http1RequestHead, Http1ResponseHead
from elasti.resolver.proxy.http1.writer import HeadForwarder, response_head
from elasti.resolver.proxy.own_responses import plain_response, refusal_response
from elasti.resolver.proxy.port import Port
from elasti.resolver.proxy.statistics import SERVED, SHOWN_PAGE
from elasti.resolver.proxy.tunnel import tunnel
from elasti.resolver.proxy.upstream.interface import Refusal, Stage, UpstreamAddress, WaitingPage
from elasti.resolver.proxy.upstream.pod_connection import PodConnection
from elasti.resolver.proxy.upstream.search import UpstreamSearch
from kubeloop.aio.relay import end_writing, reset

_CLOSE = Framing.CLOSE
_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
_MAX_REPEATS = 2
# Why reading is paused: the pod is slow, or enough bytes are kept.
POD_SLOW, FULL = 1, 2
# Proxies end responses that are silent for a minute; in seconds.
_HEARTBEAT = 15
_STAGES = {Refusal.OVERFLOW: Stage.BUSY, Refusal.TIMEOUT: Stage.FAILED}
# The response ends with the connection. No proxy may buffer its lines.
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nCache-Control: no-store, no-transform\r\n"
    b"X-Accel-Buffering: no\r\nX-Elasti-State: waiting\r\nConnection: close\r\n\r\n"
)


class Http1Exchange(UpstreamSearch):
    """The running request of a client's connection, and the connection's state."""

    __slots__ = (
        "_answered",
        "_began",
        "_body",
        "_buffer",
        "_eof",
        "_finished",
        "_forwarder",
        "_head",
        "_idle",
        "_lingering",
        "_pauses",
        "_pod",
        "_repeats",
        "_tick",
        "_transport",
        "_used",
        "_waiting_page",
        "_watched",
        "_wire",
        "_write",
        "_write_paused",
    )  # fmt: skip

    fresh: ClassVar[bool] = False

    def __init__(self, handler: Port) -> None:
        super().__init__(handler)
        self._transport: asyncio.Transport | None = None
        self._write: Callable[[bytes], None]
        self._forwarder: HeadForwarder | None = None
        # Unused bytes; the running request, and the rest of its body.
        self._buffer = b""
        self._head: Http1RequestHead | None = None
        self._body: BodyReader | None = None
        self._pod: PodConnection | None = None
        # The request for the pod; dropped once it must not be repeated.
        self._wire: bytes | None = None
        self._repeats = 0
        # The loop's time at which the running request arrived.
        self._began = 0.0
        # Whether the next bytes start a new request.
        self._idle = True
        self._answered = False
        self._used = False
        # No request after the running one; the client half-closed; it does not read.
        self._finished = handler.accepts is not None
        self._eof = False
        self._write_paused = False
        self._lingering = False
        self._pauses = 0
        self._tick = handler.sweeper.tick
        # The page for the running request if it waits too long; the last line sent to an open page.
        self._waiting_page: WaitingPage | None = None
        self._watched: bytes | None = None

    @abc.abstractmethod
    def sweep(self, tick: int) -> None:
        """Act if a deadline has passed."""

    @abc.abstractmethod
    def _done(self) -> None:
        """The response is complete."""

    # the search for a pod

    def _go(self, address: UpstreamAddress) -> None:
        repeatable = self._is_repeatable()
        pod = self.handler.pool.take(address, repeatable=repeatable)
        if pod is None:
            super()._go(address)
            return
        if self.held_since is not None:
            self.found()
        self._send(pod, repeatable=repeatable)

    @property
    def is_served(self) -> bool:
        """Whether a pod has the running request."""
        return self._pod is not None

    def connected(self, connection: PodConnection) -> None:
        """A connection to a pod is open."""
        self.found()
        self._tick = self.handler.sweeper.tick
        self._send(connection, repeatable=self._is_repeatable())

    def refuse(self, refusal: Refusal) -> None:
        """Answer with the reason and Retry-After."""
        if self._watched is not None:
            self._end_watch(_STAGES.get(refusal, Stage.READY))
        elif refusal is Refusal.OVERFLOW and self._waiting_page is not None:
            self._show_page(self._waiting_page)
        else:
            explained = self.handler.upstream.explain(refusal)
            self._refuse(refusal.status, explained, refusal=refusal)

    def admit(self, address: UpstreamAddress) -> None:
        """A pod serves: go there, or let an open page reload."""
        if self._watched is None:
            super().admit(address)
        elif self._waiting:
            self._ends_waiting()
            self._end_watch(Stage.READY)

    def _wait(self, *, first: bool) -> None:
        # A request that a pod may have seen gets a pod's response or an error, never the page.
        page, head = self.handler.upstream.page, self._head
        may_be_shown = self._watched is None and not self._repeats
        # Set each time: an earlier request's page is not this one's.
        self._waiting_page = None
        if may_be_shown and page is not None and head is not None and page.offers(head):
            self._waiting_page = page
        if self._waiting_page is not None and not self._waiting_page.after:
            self._show_page(self._waiting_page)
        else:
            super()._wait(first=first)

    def _show_page(self, page: WaitingPage) -> None:
        """Answer with the page. The request was not sent to a pod, and will not be."""
        head, handler = self._head, self.handler
        assert head is not None
        # Before it leaves the queue: if nothing waits, the page says that the target is asleep.
        answer = page.answer()
        self.leave_queue()
        self.has_memory_for(len(self._buffer))
        keeps = head.keep_alive and head.minor and not handler.upstream.stepping_aside
        # Browsers do not pipeline, and a thousand pages must not be written at once.
        if self._eof or self._buffer or not keeps:
            self._finished = True
        wire = plain_response(
            answer.status, answer.body, close=self._finished, head_only=False, fields=answer.fields
        )
        handler.statistics.sent += len(wire)
        handler.statistics.answers[answer.status // 100].add(handler.now() - self._began)
        handler.statistics.holds[SHOWN_PAGE].add(self.held_for)
        self._write(wire)
        self._done()

    def _watch(self, page: WaitingPage) -> None:
        """Stream the stages of the wake-up to an open page. It waits like a navigation."""
        self._answered = self._finished = True
        self._watched = b""
        self._count(200)
        self._write(_STREAM_HEAD)
        self._wait(first=False)
        if self._watched is not None:
            # Only now: the stage depends on whether a connection waits.
            self._watched = page.line()
            self._write(self._watched)

    def _sweep_watch(self, age: int) -> None:
        upstream = self.handler.upstream
        if upstream.stepping_aside or upstream.page is None:
            # The page asks again, and reaches a pod or another resolver.
            self._end_watch(None)
        elif (line := upstream.page.line()) != self._watched or age >= _HEARTBEAT:
            self._write(b"\n" if line == self._watched else line)
            self._watched, self._tick = line, self.handler.sweeper.tick

    def _end_watch(self, stage: Stage | None) -> None:
        page = self.handler.upstream.page
        if page is not None and stage is not None:
            self._write(page.line(stage))
        self._watched = None
        self.leave_queue()
        self._done()

    def kept(self) -> int:
        """Return how many bytes of the request and of pipelined requests are kept."""
        return len(self._buffer) + (0 if self._wire is None else len(self._wire))

    def kept_behind(self) -> int:
        """Return how many pipelined bytes are kept."""
        return len(self._buffer)

    def _send(self, pod: PodConnection, *, repeatable: bool) -> None:
        wire, head = self._wire, self._head
        assert wire is not None
        assert head is not None
        self._pod = pod
        if not repeatable:
            self._wire = None
        if self.held_since is not None and head.field(b"x-request-start") is None:
            # Tools that monitor applications show the hold as the time in a queue.
            began = time.time() - (self.handler.now() - self._began)
            wire = wire.replace(b"\r\n", b"\r\nX-Request-Start: t=%.3f\r\n" % began, 1)
        if self._pauses:
            self._resume(FULL | POD_SLOW)
        pod.ask(self, wire, head.method)

    def _is_repeatable(self) -> bool:
        head = self._head
        return head is not None and head.method in _IDEMPOTENT and self._body is None

    # ResponseSink

    def pod_whole(self, head: Http1ResponseHead, data: bytes) -> None:
        """The whole response came: forward it in one piece if nothing has to change."""
        pod, self._pod = self._pod, None
        request, handler = self._head, self.handler
        assert pod is not None
        assert request is not None
        self._give_back(pod, reusable=head.keep_alive)
        if (
            head.edited
            or self._finished
            or self.held_since is not None
            or self._body is not None
            or not (request.keep_alive and request.minor)
            or handler.upstream.stepping_aside
        ):
            self._write_head(head, data[head.end :])
        else:
            statistics = handler.statistics
            statistics.sent += len(data)
            statistics.answers[head.status // 100].add(handler.now() - self._began)
            self._write(data)
        self._done()

    def pod_interim(self, head: Http1ResponseHead) -> None:
        """Forward a 1xx response, except to HTTP/1.0 clients."""
        self._wire = None
        if self._head is not None and self._head.minor:
            self._write(head.raw)

    def pod_head(self, head: Http1ResponseHead, body: bytes) -> None:
        """Send the final head and the first bytes of the body."""
        self._wire = None
        self._answered = True
        self._write_head(head, body)

    def pod_body(self, data: bytes) -> None:
        """Send more of the body."""
        self.handler.statistics.sent += len(data)
        self._write(data)

    def pod_done(self, *, reusable: bool) -> None:
        """The response is complete; keep the pod's connection if the request is complete, too."""
        pod, self._pod = self._pod, None
        if pod is not None:
            self._give_back(pod, reusable=reusable)
        self._done()

    def _give_back(self, pod: PodConnection, *, reusable: bool) -> None:
        """Keep the pod's connection, unless part of the request is still unsent."""
        if reusable and self._body is None and not self._pauses & POD_SLOW:
            pod.release()
        else:
            pod.drop()

    def pod_switched(self, head: Http1ResponseHead, rest: bytes) -> None:
        """Become a tunnel after an upgrade."""
        pod, transport, request = self._pod, self._transport, self._head
        if pod is None or transport is None or request is None or request.upgrade is None:
            self._refuse(Refusal.BROKEN.status, Refusal.BROKEN.message, refusal=Refusal.BROKEN)
            return
        self._write_head(head, rest)
        if self._buffer:
            pod.write(self._buffer)
        self._pod, self._transport = None, None
        self._ends()
        self.handler.sweeper.discard(self)
        tunnel(
            transport,
            pod,
            statistics=self.handler.statistics,
            on_client_lost=lambda: self.handler.leaves(transport),
            client_is_slow=self._write_paused,
        )

    def pod_lost(self, *, heard: bool, answered: bool) -> None:
        """The pod closed early: repeat the request if allowed, otherwise let the client see the failure."""
        self._pod = None
        if answered:
            self.handler.statistics.broken += 1
            self._break()
        elif not heard and self._wire is not None and self._repeats < _MAX_REPEATS:
            self._repeats += 1
            self.search_again()
        else:
            self.refuse(Refusal.BROKEN)

    def pod_writable(self, *, writable: bool) -> None:
        """The pod takes more bytes, or pushes back."""
        if writable:
            self._resume(POD_SLOW)
        else:
            self._pause(POD_SLOW)

    # the answer

    def _write_head(self, head: Http1ResponseHead, body: bytes) -> None:
        request = self._head
        assert request is not None
        if (
            not request.keep_alive
            or self._body is not None
            or head.framing is _CLOSE
            or self.handler.upstream.stepping_aside
        ):
            self._finished = True
        extra = b"" if self.held_since is None else self._held_fields()
        keep_1_0 = request.minor == 0
        wire = response_head(head, close=self._finished, keep_alive_1_0=keep_1_0, extra=extra)
        self.handler.statistics.sent += len(wire) + len(body)
        self._count(head.status)
        self._write(wire + body)

    def _count(self, status: int, outcome: str = SERVED) -> None:
        handler = self.handler
        handler.statistics.answers[status // 100].add(handler.now() - self._began)
        self._hold_ended(status, outcome)

    def _trace_parent(self) -> bytes:
        return (self._head and self._head.field(b"traceparent")) or b""

    def _held_fields(self) -> bytes:
        held = self.held_for * 1000
        return b"X-Elasti-Cold-Start: true\r\nServer-Timing: elasti-hold;dur=%.1f\r\n" % held

    def _ends(self) -> None:
        """Stop all work for the running request."""
        self.stop_search()
        pod, self._pod = self._pod, None
        if pod is not None:
            pod.drop()
        if self._head is not None:
            self._head = self._wire = None
            self.handler.statistics.active -= 1

    def _refuse(
        self, status: int, message: str, *, refusal: Refusal | None = None, linger: bool = False
    ) -> None:
        """Answer with an error of our own, and close. With a refusal the client may retry."""
        if self._transport is None:
            return
        head_only = self._head is not None and self._head.method == b"HEAD"
        unread = self._body is not None or self._buffer != b""
        answered = self._answered and self._head is not None
        if self._head is not None and not answered:
            self.leave_queue()
            self._count(status, (refusal or Refusal.BROKEN).outcome)
        elif self._head is None:
            self.handler.statistics.answers[status // 100].add(0.0)
        self._ends()
        if answered:
            self._break()
            return
        self._write(
            refusal_response(status, message, retry=refusal is not None, head_only=head_only)
        )
        self._close(linger=linger or unread)

    def _close(self, *, linger: bool) -> None:
        """End the connection; with `linger` read on for a while, or a reset eats the answer."""
        transport = self._transport
        self._finished, self._idle = True, False
        self._tick = self.handler.sweeper.tick
        linger = linger or self._buffer != b""
        self._buffer, self._body = b"", None
        if transport is None or transport.is_closing():
            return
        if not linger or self._eof:
            transport.close()
            return
        self._lingering = True
        self._resume(FULL | POD_SLOW)
        end_writing(transport)

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
        self._tick = self.handler.sweeper.tick
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
