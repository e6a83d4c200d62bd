"""How bytes come from clients: never more at a time than there is room for.

Left to itself the loop reads a quarter of a mebibyte at once, and ten thousand held requests would be
gigabytes. So every protocol of a client's connection gives the loop the room to read into: all of a
worker's connections read into one buffer, of which each offers as much as it may keep. A read is over
before the next begins, so the buffer is never wanted twice.

A transport that goes from such a protocol to one of the ordinary kind must be paused in between
(`stop_reading_into`): uvloop chooses its way to read when the reading starts.
"""

from __future__ import annotations

import abc
import asyncio

READ_SIZE = 64 * 1024


class ReadBuffer:
    """The room that a worker's connections read into, one after the other."""

    __slots__ = ("whole",)

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(READ_SIZE))

    def some(self, size: int) -> memoryview:
        """Return room for so many bytes at most; always for one, since no room is no answer."""
        return self.whole[: max(size, 1)]

    def taken(self, size: int) -> bytes:
        """Return what was read."""
        return self.whole[:size].tobytes()


class Reading(asyncio.BufferedProtocol, abc.ABC):
    """A protocol that offers the loop the room to read into, and takes bytes from others, too."""

    __slots__ = ()

    @abc.abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take bytes, also those that another protocol of this connection has read."""

    @abc.abstractmethod
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room for the next read."""

    @abc.abstractmethod
    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""


def stop_reading_into(transport: asyncio.Transport) -> None:
    """Before a protocol of the ordinary kind is set; whoever sets it lets the reading go on."""
    if not transport.is_closing():
        transport.pause_reading()
