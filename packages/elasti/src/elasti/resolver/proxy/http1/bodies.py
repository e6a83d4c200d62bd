"""Finds the end of a body without changing it.

A body passes unchanged; these readers only return how many of the bytes at hand belong to it. Chunked bodies are
parsed strictly: anything that another parser could read differently (a bare line feed, a chunk size with a sign,
an endless extension) is refused, because the bytes that follow could pass for another request.
"""

from __future__ import annotations

import enum
import re
from typing import Protocol

from elasti.resolver.proxy.http1.heads import Framing

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
_EXTENSION = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
# A size and, before the end of line, short extensions, which carry nothing.
_CHUNK_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:\r\n|(?=[^\r\n]{1,256}\r\n)(?:%b)+\r\n)" % _EXTENSION
)
# Old servers pad sizes with spaces. Requests must not, since parsers differ about them; but a pod's response
# belongs to a request that was executed, and the size has only one reading.
_PADDED_CHUNK_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:\r\n|(?=[^\r\n]{1,256}\r\n)(?:%b)*[ \t]*\r\n)" % _EXTENSION
)
# Framing fields are forbidden here (RFC 9110, 6.5.1), but some parsers trust them.
_TRAILERS = re.compile(
    rb"(?:(?!(?i:content[-_]length|transfer[-_]encoding):)"
    rb"%b:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n" % _TOKEN
)
_MAX_CHUNK_LINE = 512
_MAX_TRAILERS = 16 * 1024


class BodyFramingError(ValueError):
    """A body whose end is uncertain."""


class BodyReader(Protocol):
    """Reads a body on its way."""

    @property
    def done(self) -> bool:
        """Whether the whole body has been seen."""

    def take(self, data: bytes, start: int = 0) -> int:
        """Return where the body's bytes end in `data`; `start` if none belong to it.

        If the result is below `len(data)` and the body is not `done`, pass the rest again with more bytes. Raises
        BodyFramingError.
        """


class LengthBodyReader:
    """A body of a known number of bytes."""

    __slots__ = ("left",)

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def done(self) -> bool:
        """Whether the whole body has been seen."""
        return self.left == 0

    def take(self, data: bytes, start: int = 0) -> int:
        """Take at most the bytes left."""
        size = min(self.left, len(data) - start)
        self.left -= size
        return start + size


class CloseBodyReader:
    """A body that ends with its connection."""

    __slots__ = ()
    done = False

    def take(self, data: bytes, start: int = 0) -> int:
        """Take everything."""
        del start
        return len(data)


class _Part(enum.Enum):
    SIZE = "size"
    DATA = "data"
    DATA_END = "data end"
    TRAILERS = "trailers"
    DONE = "done"


class ChunkedBodyReader:
    """A chunked body."""

    __slots__ = ("_left", "_line", "_part")

    def __init__(self, *, may_pad: bool = False) -> None:
        self._line = _PADDED_CHUNK_LINE if may_pad else _CHUNK_LINE
        self._part = _Part.SIZE
        self._left = 0

    @property
    def done(self) -> bool:
        """Whether the last chunk and the trailers have been seen."""
        return self._part is _Part.DONE

    def take(self, data: bytes, start: int = 0) -> int:
        """Take whole lines and chunk data; an incomplete line is left for the next call."""
        position = start
        while not self.done:
            following = self._advance(data, position)
            if following < 0:
                break
            position = following
        return position

    def _advance(self, data: bytes, position: int) -> int:
        """Return where the next part starts; -1 if more bytes are needed."""
        match self._part:
            case _Part.SIZE:
                return self._size(data, position)
            case _Part.DATA:
                return self._data(data, position)
            case _Part.DATA_END:
                return self._data_end(data, position)
            case _:
                return self._trailers(data, position)

    def _size(self, data: bytes, position: int) -> int:
        line = self._line.match(data, position)
        if line is None:
            _refuse_line(data, position, _MAX_CHUNK_LINE, "chunk size")
            return -1
        self._left = int(line[1], 16)
        self._part = _Part.DATA if self._left else _Part.TRAILERS
        return line.end()

    def _data(self, data: bytes, position: int) -> int:
        size = min(self._left, len(data) - position)
        self._left -= size
        if self._left == 0:
            self._part = _Part.DATA_END
        return position + size if size else -1

    def _data_end(self, data: bytes, position: int) -> int:
        ending = data[position : position + 2]
        if ending == b"\r\n":
            self._part = _Part.SIZE
            return position + 2
        if not b"\r\n".startswith(ending):
            raise BodyFramingError("a chunk does not end after its size")
        return -1

    def _trailers(self, data: bytes, position: int) -> int:
        match = _TRAILERS.match(data, position)
        if match is None:
            if data.find(b"\r\n\r\n", position) >= 0:
                raise BodyFramingError("malformed trailer fields")
            _refuse_line(data, position, _MAX_TRAILERS, "trailers")
            return -1
        self._part = _Part.DONE
        return match.end()


def _refuse_line(data: bytes, position: int, limit: int, what: str) -> None:
    """Raise if more bytes cannot complete the line."""
    rest = data[position : position + limit + 2]
    if len(rest) > limit:
        raise BodyFramingError(f"the {what} line is too long")
    feed = rest.find(b"\n")
    if feed >= 0 and (what != "trailers" or rest[max(feed - 1, 0) : feed] != b"\r"):
        raise BodyFramingError(f"malformed {what} line")


def body_of(framing: Framing, length: int, *, is_response: bool = False) -> BodyReader | None:
    """Return the reader for a body; None if there is no body."""
    match framing:
        case Framing.NONE:
            return None
        case Framing.LENGTH:
            return LengthBodyReader(length)
        case Framing.CHUNKED:
            return ChunkedBodyReader(may_pad=is_response)
        case Framing.CLOSE:
            return CloseBodyReader()
