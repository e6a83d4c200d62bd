"""Bounded reads: client protocols offer the loop a buffer to read into.

By default the event loop reads up to 256 KiB at a time, so ten thousand held requests could take gigabytes.
Every client protocol therefore supplies the buffer itself: all connections of a worker share one, and each
offers only as much of it as it may keep. One read ends before the next begins, so sharing is safe. Pause a
transport before you switch it from such a protocol to an ordinary one: uvloop picks its way of reading when
reading starts.
"""

from __future__ import annotations

import abc
import asyncio

from kubeloop.aio.keepalive import Keepalive

READ_SIZE = 64 * 1024
# A peer that vanished is noticed within a minute, even if nothing is sent to it.
KEEPALIVE = Keepalive(idle=30, interval=10, probes=3)


class ReadBuffer:
    """The buffer that all connections of a worker read into, one after the other."""

    __slots__ = ("whole",)

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(READ_SIZE))

    def some(self, size: int) -> memoryview:
        """Return room for at most `size` bytes, and for at least one: the loop needs a non-empty buffer."""
        return self.whole[: max(size, 1)]

    def taken(self, size: int) -> bytes:
        """Return the bytes read."""
        return self.whole[:size].tobytes()


class BufferedClientProtocol(asyncio.BufferedProtocol, abc.ABC):
    """A protocol that supplies the read buffer, and also accepts bytes that another protocol has read."""

    __slots__ = ()

    @abc.abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take bytes, possibly read by an earlier protocol of this connection."""

    @abc.abstractmethod
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""

    @abc.abstractmethod
    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes in the buffer."""


def pause_buffered_reading(transport: asyncio.Transport) -> None:
    """Pause before an ordinary protocol is set. The caller resumes reading after setting it."""
    if not transport.is_closing():
        transport.pause_reading()
