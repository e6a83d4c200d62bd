"""HTTP/1.1 taken off a byte stream: heads of responses and requests, and the framing of bodies.

Sans-io: bytes in, body bytes out, wherever the reads happen to end. Between two chunks of a
chunked body stand `CRLF size [;extension] CRLF`; one regular expression reads that at C speed.
If a read ends inside of it, the few bytes are checked to be the beginning of something valid,
kept, and put before the next read. What cannot become valid is a `FramingError` at once.

Strict on purpose: a peer that speaks otherwise is better refused than guessed at. Lines end in CRLF
only, and nothing but an extension follows a chunk size: bare LFs and spaces there, which some parsers
forgive, are refused. Interim responses (1xx) are skipped. A request that two parsers could read
differently is refused: two lengths, a length beside chunks, a coding in HTTP/1.0, no Host or two.
Every expression takes time in proportion to the bytes: nothing can be divided between two repetitions.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol, TypeAlias

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
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[\x21-\x7E]*) HTTP/1\.([01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7E\x80-\xFF]*))?\r\n")
# Blanks around a value are stripped afterwards: three runs of blanks in a row would be tried in every
# division, and a head of 16 kB would take hours.
_FIELD = re.compile(rb"(" + _FIELD_NAME + rb"):(" + _TEXT + rb"*)\r\n")
_BLANKS = " \t"


class FramingError(ValueError):
    """Bytes that are not HTTP/1.1; what follows them cannot be trusted."""


class ChunkedFraming:
    """A chunked body; `finished` once its last chunk and the trailers are in."""

    def __init__(self) -> None:
        self.finished = self.overrun = False
        self._left = 0
        self._kept = b""
        self._between = _FIRST
        self._prefix = _FIRST_PREFIX

    @property
    def may_end(self) -> bool:
        """Whether the body is complete if the connection ends now."""
        return self.finished

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return the body's bytes in `data`, as views into it. Raises `FramingError`.

        What comes after the end of the body is left out, and `overrun` tells of it.
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
        self.overrun = position < end
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
            raise FramingError(f"malformed chunked encoding at {rest[:40]!r}")
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

    @property
    def overrun(self) -> bool:
        """Whether bytes came after the end."""

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return the body's bytes in `data`, as views into it. Raises `FramingError`."""


class SizedFraming:
    """A body with a Content-Length."""

    def __init__(self, size: int) -> None:
        self.size = self._left = size
        self.overrun = False

    @property
    def finished(self) -> bool:
        """Whether all of it was fed."""
        return self._left == 0

    may_end = finished

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return what of `data` belongs to the body."""
        piece = data[: self._left]
        self._left -= len(piece)
        self.overrun = len(data) > len(piece)
        return [piece] if piece else []


class UntilCloseFraming:
    """A body that ends with the connection."""

    finished = overrun = False
    may_end = True

    def feed(self, data: memoryview) -> list[memoryview]:
        """Return all of `data`."""
        return [data] if data else []


Fields: TypeAlias = tuple[tuple[str, str], ...]
"""Header fields: names in lower case, as they came, repeated ones too."""


class HttpResponseHead(NamedTuple):
    """Status and header fields."""

    status: int
    reason: str
    fields: Fields
    minor: int = 1

    def values(self, name: str) -> list[str]:
        """Return every value of a field; `name` in lower case."""
        return [value for key, value in self.fields if key == name]

    @property
    def persists(self) -> bool:
        """Whether the connection may carry another message."""
        return _persists(self.values("connection"), self.minor)

    def body(self) -> BodyFraming:
        """Return the framing of the response's body (of a GET). Raises `FramingError`."""
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        if self.status in {204, 304}:
            return SizedFraming(0)
        if codings and (lengths or self.minor == 0):
            raise FramingError("Transfer-Encoding beside Content-Length or in HTTP/1.0")
        if codings:
            return _coded(", ".join(codings))
        return SizedFraming(_size(", ".join(lengths))) if lengths else UntilCloseFraming()


class HttpRequestHead(NamedTuple):
    """A request's line and header fields; `target` is a path, perhaps with a query."""

    method: str
    target: str
    fields: Fields
    minor: int = 1

    def values(self, name: str) -> list[str]:
        """Return every value of a field; `name` in lower case."""
        return [value for key, value in self.fields if key == name]

    @property
    def persists(self) -> bool:
        """Whether the connection may carry another message."""
        return _persists(self.values("connection"), self.minor)

    def body(self) -> SizedFraming | ChunkedFraming:
        """Return the framing of the request's body. Raises `FramingError`."""
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        if len(lengths) + len(codings) > 1 or (codings and self.minor == 0):
            raise FramingError("Content-Length and Transfer-Encoding are repeated or in conflict")
        if codings:
            return _coded(codings[0])
        if lengths and "," in lengths[0]:
            raise FramingError(f"Content-Length {lengths[0]!r} is not one number")
        return SizedFraming(_size(lengths[0]) if lengths else 0)


def _persists(connection: list[str], minor: int) -> bool:
    tokens = {token.strip(_BLANKS).lower() for value in connection for token in value.split(",")}
    return "close" not in tokens and (minor == 1 or "keep-alive" in tokens)


def _coded(coding: str) -> ChunkedFraming:
    if coding.lower() != "chunked":
        raise FramingError(f"Transfer-Encoding {coding!r} was not asked for")
    return ChunkedFraming()


def _size(length: str) -> int:
    sizes = {part.strip(_BLANKS) for part in length.split(",")}
    if len(sizes) != 1 or not re.fullmatch(r"[0-9]{1,18}", size := sizes.pop()):
        raise FramingError(f"Content-Length {length!r} is not one number")
    return int(size)


class ResponseHeadReader:
    """Collects bytes until the head of the final response is complete."""

    def __init__(self) -> None:
        self._data = b""

    @property
    def begun(self) -> bool:
        """Whether any byte has come."""
        return self._data != b""

    def feed(self, data: memoryview) -> tuple[HttpResponseHead, bytes] | None:
        """Take bytes; return the head and what follows it, or None while more is needed."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = parse_response_head(self._data[: end + 2])
            self._data = self._data[end + 4 :]
            if head.status >= 200 or head.status == 101:
                return head, self._data
        if len(self._data) > _MAX_HEAD:
            raise FramingError(f"response head of more than {_MAX_HEAD} bytes")
        if not b"HTTP/1.".startswith(self._data[:7]):
            raise FramingError(f"not an HTTP/1.1 response: it begins with {self._data[:40]!r}")
        return None


def parse_response_head(data: bytes) -> HttpResponseHead:
    """Parse a head: status line and fields, each with its CRLF. Raises `FramingError`."""
    line = _STATUS_LINE.match(data)
    if line is None:
        raise FramingError(f"not an HTTP/1.1 response: it begins with {data[:40]!r}")
    reason, fields = (line[3] or b"").decode("latin-1"), _fields(data, line.end())
    return HttpResponseHead(int(line[2]), reason, fields, int(line[1]))


def parse_request_head(data: bytes) -> HttpRequestHead:
    """Parse a head: request line and fields, each with its CRLF. Raises `FramingError`."""
    line = _REQUEST_LINE.match(data)
    if line is None:
        raise FramingError("not an HTTP/1.1 request with a path")
    method, target, minor = line[1].decode("ascii"), line[2].decode("ascii"), int(line[3])
    head = HttpRequestHead(method, target, _fields(data, line.end()), minor)
    if len(hosts := head.values("host")) > 1 or (minor == 1 and not hosts):
        raise FramingError("the request needs one Host field")
    return head


def _fields(data: bytes, position: int) -> Fields:
    fields: list[tuple[str, str]] = []
    while position < len(data):
        field = _FIELD.match(data, position)
        if field is None:
            raise FramingError(f"malformed header field at {data[position : position + 40]!r}")
        value = field[2].decode("latin-1").strip(_BLANKS)
        fields.append((field[1].decode("ascii").lower(), value))
        position = field.end()
    return tuple(fields)
