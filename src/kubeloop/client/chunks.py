"""HTTP/1.1 chunked framing, taken off a stream that may be cut anywhere.

Sans-io: bytes in, pieces of the body out. Between two chunks stand `CRLF size [;extension] CRLF`;
one regular expression reads that at C speed. Where a read ends inside of it, the few bytes are
checked to be the beginning of something valid, kept, and put before the next read: nothing depends
on where the reads happen to end. What cannot become valid is a `FramingError` at once.

Lines end in CRLF only, and nothing but an extension follows a size: bare LFs and spaces there, which
some parsers forgive, are refused.
"""

from __future__ import annotations

import re

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


class FramingError(ValueError):
    """Bytes that are not HTTP/1.1; what follows them cannot be trusted."""


class ChunkedBody:
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
        """Return the body's bytes in `data`, as views into it. Raises `FramingError`.

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
            raise FramingError(f"malformed chunked encoding at {rest[:40]!r}")
        self._kept = rest
        return len(data)
