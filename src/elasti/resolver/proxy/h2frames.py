"""HTTP/2 frames: found by their nine-byte headers, their payloads untouched (RFC 9113, section 4).

`Walker` follows one direction of a connection and tells where frames begin, so that a frame can be
left out or put in between. The frames we write ourselves are made here, too; their header blocks use
the static table and literals only, so that the peers' compression state is never ours to keep.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from elasti.resolver.proxy.answers import RETRY_AFTER_SECONDS, content_type, refusal_body

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5
PING, GOAWAY, CONTINUATION = 6, 7, 9
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_SIZE = 9
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, COMPRESSION_ERROR = 0, 1, 2, 9
LAST_POSSIBLE_STREAM = 2**31 - 1
_STATUS_NAME = 8
_STATUS_200 = b"\x88"
_GRPC_UNAVAILABLE = b"14"


class Frame(NamedTuple):
    """A frame's header; `at` is where it lies in the bytes walked."""

    at: int
    length: int
    kind: int
    flags: int
    stream: int


def frame(kind: int, *, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame."""
    header = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return header + payload


def header_at(data: bytes, at: int) -> Frame:
    """Read a frame's header."""
    length = int.from_bytes(data[at : at + 3], "big")
    stream = int.from_bytes(data[at + 5 : at + 9], "big") & LAST_POSSIBLE_STREAM
    return Frame(at, length, data[at + 3], data[at + 4], stream)


class Walker:
    """Follows the frames of one direction.

    `between` tells that the bytes walked so far end where another frame may be put in.
    """

    __slots__ = ("_in_block", "_left", "_partial", "boundary")

    def __init__(self) -> None:
        self._left = 0
        self._partial = b""
        self._in_block = False
        # Where in the bytes last walked another frame may be put in; -1 for nowhere.
        self.boundary = 0

    @property
    def between(self) -> bool:
        """Whether another frame may follow what was walked."""
        return self._left == 0 and not self._in_block

    def walk(self, data: bytes) -> tuple[bytes, list[Frame]]:
        """Return the bytes that may be passed on now, and the frames that begin in them.

        An unfinished header is kept back for the next time.
        """
        if self._partial:
            data, self._partial = self._partial + data, b""
        frames: list[Frame] = []
        size = len(data)
        self.boundary = 0 if self.between else -1
        at = self._left
        while at + HEADER_SIZE <= size:
            if frames or self._left:
                self._passed(at)
            found = header_at(data, at)
            frames.append(found)
            self._enter(found)
            at += HEADER_SIZE + found.length
        return self._rest(data, at, frames)

    def _passed(self, at: int) -> None:
        if not self._in_block:
            self.boundary = at

    def _enter(self, found: Frame) -> None:
        if found.kind in (HEADERS, PUSH_PROMISE, CONTINUATION):
            self._in_block = not found.flags & END_HEADERS

    def _rest(self, data: bytes, at: int, frames: list[Frame]) -> tuple[bytes, list[Frame]]:
        size = len(data)
        if at <= size:
            self._left = 0
            self._passed(at)
            if at < size:
                data, self._partial = data[:at], data[at:]
        else:
            self._left = at - size
        return data, frames


def without(data: bytes, frames: list[Frame]) -> bytes:
    """Cut whole frames out of walked bytes."""
    pieces, position = [], 0
    for left_out in frames:
        pieces.append(data[position : left_out.at])
        position = left_out.at + HEADER_SIZE + left_out.length
    return b"".join((*pieces, data[position:]))


def block_fragment(flags: int, payload: bytes) -> bytes:
    """Return a HEADERS frame's part of the header block, without padding and priority.

    Raises ValueError where the padding is longer than the frame.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - payload[0] if payload else -1
    if flags & PRIORITY:
        start += 5
    if start > end:
        raise ValueError("a HEADERS frame shorter than its padding")
    return payload[start:end]


# what we say ourselves


def goaway(last_stream: int, error: int = NO_ERROR) -> bytes:
    """Return the frame that ends a connection after a stream."""
    payload = last_stream.to_bytes(4, "big") + error.to_bytes(4, "big")
    return frame(GOAWAY, payload=payload)


def rst_stream(stream: int, error: int) -> bytes:
    """Return the frame that ends one stream at once."""
    return frame(RST_STREAM, stream=stream, payload=error.to_bytes(4, "big"))


def refusal_frames(stream: int, status: int, words: str, *, grpc: bool) -> bytes:
    """Return a whole response that says why; to gRPC in trailers, as its clients expect."""
    if grpc:
        fields = [
            (b"content-type", b"application/grpc"),
            (b"grpc-status", _GRPC_UNAVAILABLE),
            (b"grpc-message", quote(words, safe=" ,;:'()").encode()),
        ]
        return _headers(stream, 200, fields, end=True)
    body = refusal_body(status, words)
    retry = (b"retry-after", b"%d" % RETRY_AFTER_SECONDS)
    return response_frames(stream, status, body, (b"application/json"), retry)


def local_frames(stream: int, status: int, body: bytes) -> bytes:
    """Return a whole response with a body as given."""
    return response_frames(stream, status, body, content_type(body))


def response_frames(
    stream: int, status: int, body: bytes, kind: bytes, *more: tuple[bytes, bytes]
) -> bytes:
    """Return a response's HEADERS and DATA."""
    if not body:
        return _headers(stream, status, list(more), end=True)
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *more]
    head = _headers(stream, status, fields, end=False)
    return head + frame(DATA, flags=END_STREAM, stream=stream, payload=body)


def _headers(stream: int, status: int, fields: list[tuple[bytes, bytes]], *, end: bool) -> bytes:
    first = _STATUS_200 if status == 200 else bytes((_STATUS_NAME,)) + _string(b"%d" % status)
    block = first + b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags=flags, stream=stream, payload=block)


def _string(value: bytes) -> bytes:
    """Encode a literal without Huffman coding (RFC 7541, sections 5.1 and 5.2)."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size, digits = size - 127, [127]
    while size >= 128:
        digits.append(size % 128 + 128)
        size //= 128
    return bytes((*digits, size)) + value
