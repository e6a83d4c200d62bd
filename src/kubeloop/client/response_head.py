"""The head of an HTTP/1.1 response, and which framing its body has.

Strict on purpose: an API server or a proxy in front of it that speaks otherwise is better refused
than guessed at. Interim responses (1xx) are passed over.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from kubeloop.client.chunks import ChunkedBody, FramingError

_MAX_HEAD = 65_536

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([\t\x20-\x7E\x80-\xFF]*))?\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t ]*([\t\x20-\x7E\x80-\xFF]*?)[\t ]*\r\n")


class Body(Protocol):
    """One way to tell where a body ends."""

    @property
    def finished(self) -> bool:
        """Whether all of it was fed."""

    @property
    def may_end(self) -> bool:
        """Whether the body is complete if the connection ends now."""

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return the body's bytes in `data`, as views into it. Raises `FramingError`."""


class SizedBody:
    """A body with a Content-Length."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def finished(self) -> bool:
        """Whether all of it was fed."""
        return self._left == 0

    @property
    def may_end(self) -> bool:
        """Whether all of it was fed."""
        return self._left == 0

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return what of `data` belongs to the body."""
        piece = data[: self._left]
        self._left -= len(piece)
        return [piece] if piece else []


class OpenBody:
    """A body that ends with the connection."""

    finished = False
    may_end = True

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return all of `data`."""
        return [data] if data else []


class ResponseHead(NamedTuple):
    """Status and header fields; names in lower case, as they came, repeated ones too."""

    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Return every value of a field; `name` in lower case."""
        return [value for key, value in self.fields if key == name]

    def body(self) -> Body:
        """Return the framing of the response's body (of a GET). Raises `FramingError`."""
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        if self.status in {204, 304}:
            return SizedBody(0)
        if codings and lengths:
            raise FramingError("both Content-Length and Transfer-Encoding")
        if codings:
            return _coded(", ".join(codings))
        return SizedBody(_size(", ".join(lengths))) if lengths else OpenBody()


def _coded(coding: str) -> Body:
    if coding.lower() != "chunked":
        raise FramingError(f"Transfer-Encoding {coding!r} was not asked for")
    return ChunkedBody()


def _size(length: str) -> int:
    sizes = {part.strip() for part in length.split(",")}
    if len(sizes) != 1 or not re.fullmatch(r"[0-9]{1,18}", size := sizes.pop()):
        raise FramingError(f"Content-Length {length!r} is not one number")
    return int(size)


class HeadReader:
    """Collects bytes until the head of the final response is complete."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: memoryview) -> tuple[ResponseHead, bytes] | None:
        """Take bytes; return the head and what follows it, or None while more is needed."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = parse_head(self._data[: end + 2])
            self._data = self._data[end + 4 :]
            if head.status >= 200 or head.status == 101:
                return head, self._data
        if len(self._data) > _MAX_HEAD:
            raise FramingError(f"response head of more than {_MAX_HEAD} bytes")
        if not b"HTTP/1.".startswith(self._data[:7]):
            raise FramingError(f"not an HTTP/1.1 response: it begins with {self._data[:40]!r}")
        return None


def parse_head(data: bytes) -> ResponseHead:
    """Parse a head: status line and fields, each with its CRLF. Raises `FramingError`."""
    line = _STATUS_LINE.match(data)
    if line is None:
        raise FramingError(f"not an HTTP/1.1 response: it begins with {data[:40]!r}")
    fields: list[tuple[str, str]] = []
    position = line.end()
    while position < len(data):
        field = _FIELD.match(data, position)
        if field is None:
            raise FramingError(f"malformed header field at {data[position : position + 40]!r}")
        fields.append((field[1].decode("ascii").lower(), field[2].decode("latin-1")))
        position = field.end()
    return ResponseHead(int(line[1]), (line[2] or b"").decode("latin-1"), tuple(fields))
