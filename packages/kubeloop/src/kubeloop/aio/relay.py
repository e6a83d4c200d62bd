"""Two connections that carry each other's bytes.

Back-pressure goes through: a side that is slow to read makes the other side's reading stop. So does
half-close: a side that has finished sending may still read. A side that breaks breaks the other,
after the bytes that it sent before: a server that answers early and closes, while a client still
uploads, breaks its connection that way.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from typing import cast

_NO_GOODBYE = struct.pack("ii", 1, 0)
_TCP_ESTABLISHED, _TCP_CLOSED = 1, 7
# By then a peer that has closed has answered what it was sent with a reset.
_RESET_AFTER = 0.2
# How long a side that is to be broken may take to acknowledge what it was sent, and how often that is checked.
_LAST_BYTES_WITHIN = 1.0
_CHECK_SENT_EVERY = 0.005
_READ = 64 * 1024


def reset(transport: asyncio.Transport) -> None:
    """Break a connection so that its peer sees an error and never a clean end."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_GOODBYE)
    transport.abort()


def end_writing(transport: asyncio.Transport) -> None:
    """Close the sending side; a peer that has left needs no notice."""
    if not transport.is_closing() and transport.can_write_eof():
        # asyncio asks the kernel at once, which may know more than the transport.
        with contextlib.suppress(OSError):
            transport.write_eof()


def tcp_state(transport: asyncio.Transport) -> int:
    """Return the kernel's state of a connection; 0 if it is not known."""
    sock = transport.get_extra_info("socket")
    try:
        state: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if sock else 0
    except OSError:
        return 0
    return state


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether the peer has broken the connection; a connection that is not read does not notice."""
    return tcp_state(transport) == _TCP_CLOSED


def is_open(transport: asyncio.Transport) -> bool:
    """Whether the peer has neither closed nor broken the connection, as far as the kernel knows."""
    return tcp_state(transport) == _TCP_ESTABLISHED


def _left_to_read(transport: asyncio.Transport) -> bytes:
    """Return what a broken connection had received; a loop whose write fails does not read it."""
    sock = transport.get_extra_info("socket")
    received = bytearray()
    with (
        contextlib.suppress(OSError),
        # Not every transport's socket can be read from, or is in non-blocking mode.
        socket.socket(fileno=os.dup(sock.fileno())) as readable,
    ):
        while data := readable.recv(_READ, socket.MSG_DONTWAIT):
            received += data
    return bytes(received)


def _is_all_sent(transport: asyncio.Transport) -> bool:
    """Whether the peer has acknowledged everything, as far as the kernel knows."""
    if transport.get_write_buffer_size():
        return False
    count = bytearray(struct.calcsize("i"))
    with contextlib.suppress(OSError):
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, count)
    return not any(count)


class RelayEnd(asyncio.Protocol):
    """One end of a relay; bytes that come before `join` are kept for the other end.

    `on_lost` is called once, when this connection ends.
    """

    __slots__ = ("_asking", "_break_by", "_early", "_eof", "_on_lost", "_other", "_transport")

    def __init__(self, on_lost: Callable[[], None] | None = None) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._other: RelayEnd | None = None
        self._early: list[bytes] = []
        self._eof = False
        self._asking: asyncio.TimerHandle | None = None
        self._break_by: float | None = None

    def join(self, other: RelayEnd) -> None:
        """Carry each other's bytes from now on. A side that is gone already ends the other."""
        self._other, other._other = other, self
        for one, two in ((self, other), (other, self)):
            one._flush_to(two)
        if self._transport is None or other._transport is None:
            self.abort()
            other.abort()

    def abort(self) -> None:
        """Break the connection at once, for its peer to see."""
        if self._transport is not None:
            reset(self._transport)

    def abort_when_sent(self) -> None:
        """Break the connection once its peer has what it was sent; after a second in any case."""
        if self._transport is None:
            return
        loop = asyncio.get_running_loop()
        if self._break_by is None:
            self._break_by = loop.time() + _LAST_BYTES_WITHIN
            if not self._transport.is_closing():
                self._transport.pause_reading()
        if _is_all_sent(self._transport) or loop.time() >= self._break_by:
            self.abort()
        else:
            loop.call_later(_CHECK_SENT_EVERY, self.abort_when_sent)

    def write(self, data: bytes) -> None:
        """Send bytes to this end's peer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._eof and self._asking is None:
                # A peer that has closed looks like one that has only finished sending, until it is
                # sent something.
                loop = asyncio.get_running_loop()
                self._asking = loop.call_later(_RESET_AFTER, self._notice_reset)

    def _notice_reset(self) -> None:
        self._asking = None
        if self._transport is not None and is_reset(self._transport):
            if self._other is not None:
                self._other.abort()
            self.abort()

    def _flush_to(self, other: RelayEnd) -> None:
        for data in self._early:
            other.write(data)
        self._early.clear()
        self.resume_peer()
        if self._eof:
            self._pass_eof(other)

    def resume_peer(self) -> None:
        """Read this end's peer again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _pass_eof(self, other: RelayEnd) -> None:
        """Tell the other side; once both have ended, the two are closed here."""
        if not other._eof:
            other._finish_writing()
            return
        for end in (self, other):
            if end._transport is not None:
                end._transport.close()

    def _finish_writing(self) -> None:
        if self._transport is not None:
            end_writing(self._transport)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the interface, not the base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; without another end yet, keep them and stop reading."""
        if self._other is not None:
            self._other.write(data)
            return
        self._early.append(data)
        assert self._transport is not None
        self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The peer has finished sending; it may still read."""
        self._eof = True
        if self._other is not None:
            self._pass_eof(self._other)
        return True

    def pause_writing(self) -> None:
        """This end's peer is slow to read."""
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        """This end's peer reads again."""
        if self._other is not None:
            self._other.resume_peer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: so is the other, after what is still on its way."""
        lost, self._transport = self._transport, None
        if self._asking is not None:
            self._asking.cancel()
        other = self._other
        if other is not None and other._transport is not None:
            if exc is None:
                other._transport.close()
            else:
                if lost is not None and (data := _left_to_read(lost)):
                    other.write(data)
                other.abort_when_sent()
        if self._on_lost is not None:
            self._on_lost()
