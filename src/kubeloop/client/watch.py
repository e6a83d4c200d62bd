"""An open watch: body bytes to lines to events, a batch for each read."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.client.chunks import FramingError
from kubeloop.client.connection_errors import transport_error
from kubeloop.client.errors import ProtocolError
from kubeloop.client.lines import LineSplitter
from kubeloop.objects.envelopes import DecodeError

if TYPE_CHECKING:
    from kubeloop.client.connection import Connection
    from kubeloop.objects.codec import Codec, Line
    from kubeloop.objects.events import WatchEvent

T = TypeVar("T")


class WireWatch(Generic[T]):
    """A watch that the server accepted; see `informer.source.WatchStream` for the contract.

    Events before undecodable bytes are delivered first, then every `read` raises. A cancelled
    `read` loses nothing.
    """

    def __init__(self, connection: Connection, *, codec: Codec[T], url: str) -> None:
        self._connection = connection
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
        await self._connection.close()

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
