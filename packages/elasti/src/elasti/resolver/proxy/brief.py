"""A light transport for connections that end with their first response, as all do after the release.

The loop's own transports are built for long connections: opening and closing one takes several iterations of
the loop and more system calls than the request itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from typing import Any

from elasti.resolver.proxy.transport import READ_SIZE, BufferedClientProtocol

_NOW = socket.MSG_DONTWAIT
_HIGH, _LOW = 64 * 1024, 16 * 1024
_IN_A_TURN = 256


class BriefPoll:
    """Polls brief connections: the loop watches one epoll descriptor for all of them."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.reads: dict[int, Callable[[], None]] = {}

    def start(self) -> None:
        """Start polling on the running loop."""
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.epoll.fileno(), self._ready)

    def close(self) -> None:
        """Stop polling."""
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    def _ready(self) -> None:
        for descriptor, _ in self.epoll.poll(0, _IN_A_TURN):
            # An earlier one in this turn may have ended it.
            if (read := self.reads.get(descriptor)) is not None:
                read()


class BriefTransport(asyncio.Transport):
    """A client's connection that ends with its first response."""

    __slots__ = (
        "_buffer", "_closing", "_descriptor", "_ended", "_eof", "_peer", "_poll", "_protocol", "_slow", "_sock", "_waits",
    )  # fmt: skip

    def __init__(
        self, poll: BriefPoll, sock: socket.SocketType, peer: str, protocol: Any
    ) -> None:  # any protocol of asyncio's
        self._poll, self._sock, self._peer, self._protocol = poll, sock, peer, protocol
        self._descriptor = sock.fileno()
        self._buffer = b""
        self._closing = self._ended = self._eof = self._slow = self._waits = False
        protocol.connection_made(self)
        self.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket or the peer's address."""
        if name == "peername":
            return (self._peer,)
        return self._sock if name == "socket" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Switch to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        """Whether it is closing."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the kernel has not taken yet."""
        return len(self._buffer)

    def is_reading(self) -> bool:
        """Whether reading is on."""
        return self._descriptor in self._poll.reads

    def pause_reading(self) -> None:
        """Pause reading."""
        if self._poll.reads.pop(self._descriptor, None) is not None:
            self._poll.epoll.unregister(self._descriptor)

    def resume_reading(self) -> None:
        """Resume reading."""
        if not self._closing and not self.is_reading():
            self._poll.reads[self._descriptor] = self._read
            self._poll.epoll.register(self._descriptor, select.EPOLLIN)

    def _read(self) -> None:
        if self._closing:
            # Do not begin a request behind the last response: its client retries it elsewhere.
            return
        protocol, size = self._protocol, READ_SIZE
        try:
            if isinstance(protocol, BufferedClientProtocol):
                size = len(protocol.get_buffer(-1))
            data = self._sock.recv(size, _NOW)
            if data:
                protocol.data_received(data)
            elif protocol.eof_received():
                self.pause_reading()
            else:
                self.close()
        except BlockingIOError:
            pass
        except Exception as error:  # noqa: BLE001 -- reported; it ends this connection
            self._fail(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send what the kernel accepts now, and the rest later."""
        if not self._ended:
            self._buffer += data
            self._flush()

    def _flush(self) -> None:
        try:
            self._buffer = self._buffer[self._sock.send(self._buffer, _NOW) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)
            return
        if self._waits is not (waits := bool(self._buffer)):
            self._waits = waits
            if waits:
                self._poll.loop.add_writer(self._descriptor, self._flush)
            else:
                self._poll.loop.remove_writer(self._descriptor)
        if self._slow is not (len(self._buffer) > (_LOW if self._slow else _HIGH)):
            self._slow = not self._slow
            (self._protocol.pause_writing if self._slow else self._protocol.resume_writing)()
        if not self._buffer:
            if self._closing:
                self._end(None)
            elif self._eof:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)

    def can_write_eof(self) -> bool:
        """Half-close is supported."""
        return True

    def write_eof(self) -> None:
        """Half-close after the bytes already written."""
        if not self._ended:
            self._eof = True
            self._flush()

    def close(self) -> None:
        """Close once everything is sent."""
        if not self._closing:
            self._closing = True
            if self._buffer:
                self.pause_reading()
            else:
                self._end(None)

    def abort(self) -> None:
        """Close immediately."""
        self._fail(None)

    def _fail(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):
            context = {"message": "protocol of a brief connection failed", "exception": error}
            self._poll.loop.call_exception_handler(context)
        self._closing, self._buffer = True, b""
        if self._waits:
            self._waits = False
            self._poll.loop.remove_writer(self._descriptor)
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._poll.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            # Closing the socket also removes it from epoll.
            self._poll.reads.pop(self._descriptor, None)
            self._sock.close()
            # The two refer to each other.
            self._protocol = None
