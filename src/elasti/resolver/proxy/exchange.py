"""One request's way through a client's connection: the search for a pod, and its answer.

Nothing is sent twice: a request that reached a pod is repeated only when nothing of the answer was
seen, its method is idempotent, and all of it is still here. An answer goes to the client as it comes;
one that breaks off makes the client's connection break off, too.

It is a part of the connection and no object of its own, since a request that finds a kept connection
to a pod should make none but its head.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

from elasti.resolver.proxy.answers import refusal_response
from elasti.resolver.proxy.heads import Framing, RequestHead, ResponseHead
from elasti.resolver.proxy.rewrite import response_head
from elasti.resolver.proxy.seeker import Seeker
from elasti.resolver.proxy.target import Refusal
from elasti.resolver.proxy.tunnel import tunnel
from kubeloop.aio.relay import end_writing, reset

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from elasti.resolver.proxy.framing import Body
    from elasti.resolver.proxy.front import Front
    from elasti.resolver.proxy.pod import PodConnection
    from elasti.resolver.proxy.rewrite import Forwarder
    from elasti.resolver.proxy.target import Address

_CLOSE = Framing.CLOSE
_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
_MAX_REPEATS = 2
# Why the client is not read: its pod is slow, or enough of its bytes wait here.
POD_SLOW, FULL = 1, 2


class Exchange(Seeker):
    """The running request of a client's connection, and the state of the connection around it."""

    __slots__ = (
        "_answered", "_began", "_body", "_buffer", "_eof", "_finished", "_forwarder", "_head", "_lingering",
        "_pauses", "_pod", "_repeats", "_resting", "_stuck", "_tick", "_transport", "_used", "_wire",
        "_write",
    )  # fmt: skip

    fresh: ClassVar[bool] = False

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._transport: asyncio.Transport | None = None
        self._write: Callable[[bytes], None]
        self._forwarder: Forwarder | None = None
        # What was read and not used yet; the running request and what is left of its body.
        self._buffer = b""
        self._head: RequestHead | None = None
        self._body: Body | None = None
        self._pod: PodConnection | None = None
        # The request as it goes to a pod; dropped once it may not be sent again.
        self._wire: bytes | None = None
        self._repeats = 0
        # The loop's time at which the running request came.
        self._began = 0.0
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

    @abc.abstractmethod
    def sweep(self, tick: int) -> None:
        """Act where a deadline has passed."""

    @abc.abstractmethod
    def _done(self) -> None:
        """The answer is complete."""

    # the search for a pod

    def _go(self, address: Address) -> None:
        repeatable = self._is_repeatable()
        pod = self.front.pool.take(address, repeatable=repeatable)
        if pod is None:
            super()._go(address)
            return
        if self.held_since is not None:
            self.found()
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
        if self._pauses:
            self._resume(FULL | POD_SLOW)
        pod.ask(self, wire, head.method)

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
        self._give_back(pod, reusable=head.keep_alive)
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
            statistics.answers[head.status // 100].add(front.now() - self._began)
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
            self._give_back(pod, reusable=reusable)
        self._done()

    def _give_back(self, pod: PodConnection, *, reusable: bool) -> None:
        """Keep the pod's connection, unless it still has to take a part of the request."""
        if reusable and self._body is None and not self._pauses & POD_SLOW:
            pod.release()
        else:
            pod.drop()

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

    def pod_lost(self, *, heard: bool, answered: bool) -> None:
        """The pod went away in the middle: again where it may be, else the client sees that it did."""
        self._pod = None
        if answered:
            self.front.statistics.broken += 1
            self._break()
        elif not heard and self._wire is not None and self._repeats < _MAX_REPEATS:
            self._repeats += 1
            self.seek_again()
        else:
            self.refuse(Refusal.BROKEN)

    def pod_writable(self, *, writable: bool) -> None:
        """The pod takes more bytes, or wants none for now."""
        if writable:
            self._resume(POD_SLOW)
        else:
            self._pause(POD_SLOW)

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
        extra = b"" if self.held_since is None else self._held_fields()
        keep_1_0 = request.minor == 0
        wire = response_head(head, close=self._finished, keep_alive_1_0=keep_1_0, extra=extra)
        self.front.statistics.sent += len(wire) + len(body)
        self._count(head.status)
        self._write(wire + body)

    def _count(self, status: int) -> None:
        front = self.front
        front.statistics.answers[status // 100].add(front.now() - self._began)
        if self.held_since is not None:
            front.statistics.held_until(status, self.held_for)

    def _held_fields(self) -> bytes:
        held = self.held_for * 1000
        return b"X-Elasti-Cold-Start: true\r\nServer-Timing: elasti-hold;dur=%.1f\r\n" % held

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
        if self._head is not None and not answered:
            self.leave_queue()
            self._count(status)
        elif self._head is None:
            self.front.statistics.answers[status // 100].add(0.0)
        self._ends()
        if answered:
            self._break()
            return
        self._write(refusal_response(status, words, retry=retry, head_only=head_only))
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
        self._tick = self.front.sweeper.tick
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
