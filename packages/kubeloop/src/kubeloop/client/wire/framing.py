"""HTTP/1.1 responses taken off a byte stream: the head, and the framing of the body.

Sans-io: bytes in, body bytes out, wherever the reads happen to end. Between two chunks of a
chunked body stand `CRLF size [;extension] CRLF`; one regular expression reads that at C speed.
Where a read ends inside of it, the few bytes are checked to be the beginning of something valid,
kept, and put before the next read. What cannot become valid is a `ResponseFramingError` at once.

Strict on purpose: an API server or a proxy that speaks otherwise is better refused than guessed
at. Lines end in CRLF only, and nothing but an extension follows a chunk size: bare LFs and spaces
there, which some parsers forgive, are refused. Interim responses (1xx) are skipped.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

# A size of 16 digits and an extension or trailers of this many bytes are already absurd.
_MAX_LINE = 16_384

_DIGITS = rb"[0-9A-Fa-f]{1,16}"
# No control characters but tab inside of extensions and trailers.
_TEXT = rb"[\t\x20-\x7E\x80-\xFF]"
_EXTENSION = rb"(?:;" + _TEXT + rb"*)?"

_FIRST = re.compile(rb"(" + _DIGITS + rb")" + _EXTENSION + rb"\r\n")
_NEXT = re.compile(rb"\r\n(" + _DIGITS + rb")" + _EXTENSION + rb"\r\n")
_SIZE_PREFIX = rb"|" + _DIGITS + _EXTENSION + rb"\r?"
_FIRST_PREFIX = re.compile(_SIZE_PREFIX)
_NEXT_PREFIX = re.compile(rb"\r?|\r\n(?:" + _SIZE_PREFIX + rb")")

_FIELD_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELDS = rb"(?:" + _FIELD_NAME + rb":" + _TEXT + rb"*\r\n)*"
_TRAILERS = re.compile(_FIELDS + rb"\r\n")
_TRAILERS_PREFIX = re.compile(_FIELDS + rb"(?:\r|" + _FIELD_NAME + rb"(?::" + _TEXT + rb"*\r?)?)?")


_MAX_HEAD = 65_536
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([\t\x20-\x7E\x80-\xFF]*))?\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t ]*([\t\x20-\x7E\x80-\xFF]*?)[\t ]*\r\n")


class ResponseFramingError(ValueError):
    """Bytes that are not HTTP/1.1; what follows them cannot be trusted."""


class ChunkedFraming:
    """A chunked body; `finished` once its last chunk and the trailers are in."""

    def __init__(self) -> None:
        self.finished = False
        self._left = 0
        self._kept = b""
        self._between = _FIRST
        self._prefix = _FIRST_PREFIX

    @property
    def may_end(self) -> bool:
        """Whether the body is complete if the connection ends now."""
        return self.finished

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return the body's bytes in `data`, as views into it. Raises `ResponseFramingError`.

        What comes after the end of the body is ignored: a connection carries one answer.
        """
        if self._kept:
            data = memoryview(self._kept + data)
            self._kept = b""
        pieces: list[memoryview] = []
        position, end = 0, len(data)
        while position < end and not self.finished:
            if self._left:
                taken = min(self._left, end - position)
                pieces.append(data[position : position + taken])
                self._left -= taken
                position += taken
            else:
                position = self._next_chunk(data, position)
        return pieces

    def _next_chunk(self, data: memoryview, position: int) -> int:
        if self._between is _TRAILERS:
            return self._end(data, position)
        head = self._between.match(data, position)
        if head is None:
            return self._keep(data, position)
        self._left = int(head[1], 16)
        last = not self._left
        self._between = _TRAILERS if last else _NEXT
        self._prefix = _TRAILERS_PREFIX if last else _NEXT_PREFIX
        return head.end()

    def _end(self, data: memoryview, position: int) -> int:
        trailers = _TRAILERS.match(data, position)
        if trailers is None:
            return self._keep(data, position)
        self.finished = True
        return trailers.end()

    def _keep(self, data: memoryview, position: int) -> int:
        """Keep the rest for the next read, if it may become valid."""
        rest = bytes(data[position:])
        if len(rest) > _MAX_LINE or not self._prefix.fullmatch(rest):
            raise ResponseFramingError(f"malformed chunked encoding at {rest[:40]!r}")
        self._kept = rest
        return len(data)


class BodyFraming(Protocol):
    """One way to tell where a body ends."""

    @property
    def finished(self) -> bool:
        """Whether all of it was fed."""

    @property
    def may_end(self) -> bool:
        """Whether the body is complete if the connection ends now."""

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return the body's bytes in `data`, as views into it. Raises `ResponseFramingError`."""


class SizedFraming:
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


class UntilCloseFraming:
    """A body that ends with the connection."""

    finished = False
    may_end = True

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return all of `data`."""
        return [data] if data else []


class HttpResponseHead(NamedTuple):
    """Status and header fields; names in lower case, as they came, repeated ones too."""

    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Return every value of a field; `name` in lower case."""
        return [value for key, value in self.fields if key == name]

    def body(self) -> BodyFraming:
        """Return the framing of the response's body (of a GET). Raises `ResponseFramingError`."""
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        if self.status in {204, 304}:
            return SizedFraming(0)
        if codings and lengths:
            raise ResponseFramingError("both Content-Length and Transfer-Encoding")
        if codings:
            return _coded(", ".join(codings))
        return SizedFraming(_size(", ".join(lengths))) if lengths else UntilCloseFraming()


def _coded(coding: str) -> BodyFraming:
    if coding.lower() != "chunked":
        raise ResponseFramingError(f"Transfer-Encoding {coding!r} was not asked for")
    return ChunkedFraming()


def _size(length: str) -> int:
    sizes = {part.strip() for part in length.split(",")}
    if len(sizes) != 1 or not re.fullmatch(r"[0-9]{1,18}", size := sizes.pop()):
        raise ResponseFramingError(f"Content-Length {length!r} is not one number")
    return int(size)


class ResponseHeadReader:
    """Collects bytes until the head of the final response is complete."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: memoryview) -> tuple[HttpResponseHead, bytes] | None:
        """Take bytes; return the head and what follows it, or None while more is needed."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = parse_response_head(self._data[: end + 2])
            self._data = self._data[end + 4 :]
            if head.status >= 200 or head.status == 101:
                return head, self._data
        if len(self._data) > _MAX_HEAD:
            raise ResponseFramingError(f"response head of more than {_MAX_HEAD} bytes")
        if not b"HTTP/1.".startswith(self._data[:7]):
            raise ResponseFramingError(
                f"not an HTTP/1.1 response: it begins with {self._data[:40]!r}"
            )
        return None


def parse_response_head(data: bytes) -> HttpResponseHead:
    """Parse a head: status line and fields, each with its CRLF. Raises `ResponseFramingError`."""
    line = _STATUS_LINE.match(data)
    if line is None:
        raise ResponseFramingError(f"not an HTTP/1.1 response: it begins with {data[:40]!r}")
    fields: list[tuple[str, str]] = []
    position = line.end()
    while position < len(data):
        field = _FIELD.match(data, position)
        if field is None:
            raise ResponseFramingError(
                f"malformed header field at {data[position : position + 40]!r}"
            )
        fields.append((field[1].decode("ascii").lower(), field[2].decode("latin-1")))
        position = field.end()
    return HttpResponseHead(int(line[1]), (line[2] or b"").decode("latin-1"), tuple(fields))
