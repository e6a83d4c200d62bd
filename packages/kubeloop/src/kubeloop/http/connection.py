"""One connection of a client: the head of an answer, then its body, with back-pressure.

A `BufferedProtocol`: the kernel writes into one buffer that is reused for every read, the framing is taken
off in place, and what remains is copied once into the queue. The buffer is small until a read fills it, and
again after a lull: most watches are quiet. The queue is bounded: when the reader does not keep up, reading
from the socket stops until it does.

A complete answer with no byte behind it leaves the connection `reusable`:
`begin` awaits the next one. Nothing here interprets how a connection ended. `read()` returns b"" when the body is complete or
the peer left; `complete` tells which, and `error` why, for those who care.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from typing import cast

from kubeloop.http.framing import (
    BodyFraming,
    FramingError,
    HttpResponseHead,
    ResponseHeadReader,
    SizedFraming,
)

_BUFFER = 128 * 1024
_SMALL = 16 * 1024
_LULL = 1.0
QUEUE_LIMIT = 1024 * 1024


class Connection(asyncio.BufferedProtocol):
    """The client's side of one request. One task reads; `abort` may be called by anyone.

    The timeout of `set_idle_timeout` counts only while the body is being read and reading is not held back:
    after that many seconds without a byte the peer is taken for dead, and the body ends as if it had closed.
    """

    def __init__(self, *, queue_limit: int = QUEUE_LIMIT, buffer: int = _BUFFER) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(min(buffer, _SMALL)))
        self._most = buffer
        self._queue: list[bytes] = []
        self._queued = 0
        self._queue_limit = queue_limit
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._head_reader = ResponseHeadReader()
        self._head: HttpResponseHead | None = None
        self._body: BodyFraming | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = self._loop.create_future()
        self._ended = self._overrun = False
        self._established = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.expects_body = True  # an answer to HEAD has no body, whatever its head says
        self.error: Exception | None = None
        self._idle_timeout = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_byte = 0.0

    def __repr__(self) -> str:
        state = "ended" if self._ended else "paused" if self._paused else "open"
        return f"<Connection {state} head={self._head is not None} queued={self._queued}>"

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived (what ends with the connection always has)."""
        return self._body is not None and self._ended and self._body.may_end

    @property
    def begun(self) -> bool:
        """Whether any byte of an answer has come."""
        return self._head is not None or self._head_reader.begun

    @property
    def reusable(self) -> bool:
        """Whether the answer is complete and was read, and the connection may carry another."""
        if self._transport is None or self._transport.is_closing() or self._head is None:
            return False
        return not self._queue and self.complete and self._head.persists and not self._overrun

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; also called by hand after a TLS upgrade."""
        # Not checked: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Offer the one buffer; everything in it was consumed by the last update."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes off the wire."""
        if self._ended:
            self._overrun = True
            self.abort()
            return
        buffer, then, self._last_byte = self._buffer, self._last_byte, self._loop.time()
        if nbytes == len(buffer) < self._most:
            self._buffer = memoryview(bytearray(self._most))
        elif nbytes < _SMALL < len(buffer) and self._last_byte - then > _LULL:
            self._buffer = memoryview(bytearray(_SMALL))
        try:
            self._take(buffer[:nbytes])
        except FramingError as error:
            self._end(error)
            self.abort()

    def eof_received(self) -> None:
        """Note the peer's end; returning None lets the transport close.

        Under TLS it does so an iteration later, and drops what is written until then.
        """
        self._overrun = self._ended
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end and its reason, take what still waits behind TLS, and let go of the transport.

        Under TLS it refers back to this object, and a cycle of both, with their buffers, stays until the
        garbage collector runs: a server that refuses every request would fill the memory.
        """
        transport, self._transport = self._transport, None
        self._take_waiting(transport, math.inf)
        self._end(exc)
        self._buffer = memoryview(b"")
        self._may_write.set()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The peer does not keep up."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._may_write.set()

    # What the owner calls.

    def begin(self) -> None:
        """Await the next answer, on a connection that is `reusable`."""
        self._head_reader, self._head, self._body = ResponseHeadReader(), None, None
        self._ended, self.error = False, None

    async def drain(self) -> None:
        """Wait while the peer does not keep up. Raises ConnectionError if the connection is lost."""
        await self._may_write.wait()
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")

    def established(self) -> None:
        """Note that connecting has succeeded: from now on the loop promises `connection_lost`.

        It does not before: an attempt that is cancelled may be closed without a word (uvloop).
        """
        self._established = True

    def write(self, data: bytes) -> None:
        """Send bytes; if the connection is lost already, `head` says so."""
        if self._transport is not None:
            self._transport.write(data)

    async def head(self) -> HttpResponseHead:
        """Wait for the head of the final response.

        Raises FramingError or the transport's error; ConnectionError if the peer left without.
        """
        while self._head is None:
            if self._ended:
                raise self.error or ConnectionError("closed without an answer")
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """Return the body's next bytes, all that are there; b"" at its end. Never raises."""
        while not self._queue:
            if self._ended:
                return b""
            await self._wait()
        data = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        self._queue.clear()
        self._queued = 0
        if self._paused:
            self._resume()
        return data

    def set_idle_timeout(self, seconds: float) -> None:
        """End the body after that many seconds without a byte."""
        if self._ended:  # a timer would only keep this object, and its buffer, for as long
            return
        self._idle_timeout = seconds
        self._last_byte = self._loop.time()
        self._idle_timer = self._loop.call_later(seconds, self._check_idle)

    def abort(self) -> None:
        """Close at once, without waiting for anything to be sent or answered."""
        self._end(None)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Close at once and wait until the socket is freed. Safe to repeat."""
        self.abort()
        if self._established:
            # Shielded, so that two closers and a cancelled one do not disturb each other.
            await asyncio.shield(self._closed)

    def _take(self, data: memoryview) -> None:
        rest = self._take_head(data) if self._body is None else data
        body = self._body
        if body is None:
            return
        pieces = body.feed(rest)
        if pieces:
            joined = b"".join(pieces)
            self._queue.append(joined)
            self._queued += len(joined)
        if body.finished:
            self._overrun = body.overrun
            self._end(None)
        elif self._queued > self._queue_limit and not self._paused:
            self._pause()
        self._wake()

    def _take_head(self, data: memoryview) -> memoryview:
        found = self._head_reader.feed(data)
        if found is None:
            return data[:0]
        self._head, rest = found
        self._body = self._head.body() if self.expects_body else SizedFraming(0)
        return memoryview(rest)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.error = error
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._wake()

    async def _wait(self) -> None:
        assert self._waiter is None, "one task reads a connection"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self._last_byte = self._loop.time()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._take_waiting(transport, self._queue_limit)
            if not self._paused:
                transport.resume_reading()

    def _take_waiting(self, transport: asyncio.Transport | None, limit: float) -> None:
        """Take what waits behind TLS, until more than `limit` is queued.

        If the peer left during the pause, asyncio reads one buffer on resuming and drops the rest; uvloop reads
        nothing, and closes without waiting for us to resume.
        """
        found = transport and transport.get_extra_info("ssl_object")
        tls = cast("ssl.SSLObject | None", found)
        while tls is not None and self._queued <= limit and not self._ended:
            try:
                read = tls.read(len(self._buffer), self._buffer)
            except ssl.SSLError:
                return  # nothing waits; asyncio will meet any other error itself
            if not read:
                return  # the peer's goodbye
            self.buffer_updated(cast("int", read))

    def _check_idle(self) -> None:
        now = self._loop.time()
        # Silence that we made ourselves by not reading is not the peer's.
        since = now if self._paused else self._last_byte
        if now - since >= self._idle_timeout:
            self.abort()
        else:
            self._idle_timer = self._loop.call_at(since + self._idle_timeout, self._check_idle)
