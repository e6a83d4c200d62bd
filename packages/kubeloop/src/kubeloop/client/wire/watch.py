"""An open watch: body bytes to lines to events, a batch for each read.

Lines may be cut anywhere by reads and may be megabytes long. They are views into the bytes that
they came in, not copies: for events of some kilobytes, copying them once more costs a fifth of the
whole decoding.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.client.errors import ProtocolError
from kubeloop.client.wire.errors import transport_error
from kubeloop.http.framing import FramingError
from kubeloop.objects.list_watch import DecodeError, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubeloop.http.connection import Connection
    from kubeloop.objects.codec import Codec, Line


# etcd takes objects of 1.5 MiB; aggregated API servers may take more, none takes this.
MAX_LINE = 64 * 1024 * 1024


T = TypeVar("T")


class LineSplitter:
    """Collects bytes into lines. What follows the last newline waits, and is lost at the end."""

    def __init__(self, *, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._tail: list[Line] = []
        self._tail_size = 0

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines completed by `data`, without newlines; empty lines are left out.

        Raises `FramingError` for a line above the limit.
        """
        lines: list[Line] = []
        view, find = memoryview(data), data.find
        start = self._finish_tail(view, find(b"\n"), lines)
        end = find(b"\n", start)
        while end >= 0:
            if end > start:
                lines.append(view[start:end])
            start = end + 1
            end = find(b"\n", start)
        self._keep(data[start:])
        return lines

    def _finish_tail(self, view: memoryview, end: int, lines: list[Line]) -> int:
        """Complete the line that waits; return where the next one begins."""
        if end < 0 or not self._tail:
            return 0
        lines.append(b"".join((*self._tail, view[:end])))
        self._tail.clear()
        self._tail_size = 0
        return end + 1

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            if self._tail_size > self._limit:
                raise FramingError(f"a line of more than {self._limit} bytes")


class WireWatch(Generic[T]):
    """A watch that the server accepted; see `informer.reflector.source.WatchStream` for the contract.

    Events before undecodable bytes are delivered first, then every `read` raises. A cancelled
    `read` loses nothing. `free`: what else to do with the connection than to close it.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        codec: Codec[T],
        url: str,
        free: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._connection = connection
        self._free = free or connection.close
        self._codec = codec
        self._url = url
        self._lines = LineSplitter()
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<WireWatch {self._url} {self._connection!r}>"

    async def read(self) -> list[WatchEvent[T]]:
        """Return the events that are there, at least one; an empty list is the end."""
        while self._failure is None:
            data = await self._connection.read()
            if not data:
                return self._end()
            if events := self._events(data):
                return events
        raise self._failure

    async def close(self) -> None:
        """Free the connection at once. Safe to repeat."""
        await self._free()

    def _end(self) -> list[WatchEvent[T]]:
        match self._connection.error:
            case FramingError() as error:
                raise ProtocolError(f"{self._url}: {error}") from error
            case ssl.SSLError() as error:
                raise transport_error(error, self._url, answer_begun=True) from error
            case _:
                # However else the peer left, with or without half a line: an end is an end.
                return []

    def _events(self, data: bytes) -> list[WatchEvent[T]]:
        try:
            lines = self._lines.feed(data)
        except FramingError as error:
            self._fail(error)
            return []
        try:
            return self._codec.decode_events(lines)
        except DecodeError:
            return self._events_before_failure(lines)

    def _events_before_failure(self, lines: list[Line]) -> list[WatchEvent[T]]:
        events = []
        for line in lines:
            if bytes(line).isspace():
                continue
            try:
                events.append(self._codec.decode_event(line))
            except DecodeError as error:
                self._fail(error)
                break
        return events

    def _fail(self, error: ValueError) -> None:
        self._failure = ProtocolError(f"{self._url}: undecodable watch event: {error}")
        self._failure.__cause__ = error
        self._connection.abort()
