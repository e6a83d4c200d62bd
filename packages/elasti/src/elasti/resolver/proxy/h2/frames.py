"""HTTP/2 frames: found by their nine-byte headers, with payloads untouched (RFC 9113, section 4).

`H2FrameWalker` follows one direction of a connection and finds where frames begin, so that frames can be dropped
or inserted. Our own frames are also made here. Their header blocks use only the static table and literals, so
that they do not change the peers' compression state.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from urllib.parse import quote

from elasti.resolver.proxy.h2.header_fields import literal, status_field
from elasti.resolver.proxy.own_responses import RETRY_AFTER_SECONDS, content_type, refusal_body
from elasti.resolver.proxy.upstream.interface import LocalAnswer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_SIZE = 9
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, ENHANCE_YOUR_CALM = 0, 1, 2, 11
LAST_POSSIBLE_STREAM = 2**31 - 1
# Frames that carry header blocks, and the largest that is kept back until it is complete.
BLOCKS = frozenset((HEADERS, PUSH_PROMISE, CONTINUATION))
MAX_BLOCK = 64 * 1024
# The largest frame that a peer accepts by default.
MAX_FRAME = 16 * 1024
# While a connection is held: the streams that a client may open at a time.
MAX_STREAMS = 100
_MAX_CONCURRENT_STREAMS, _MAX_HEADER_LIST_SIZE = 3, 6
_UNLIMITED = 0xFFFFFFFF
# For one connection in one second; no client needs more.
MAX_CONTROL_FRAMES = 1000
_GRPC_UNAVAILABLE = b"14"


class H2Error(ValueError):
    """Invalid or excessive HTTP/2. `code` is for the GOAWAY."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


class H2FloodGuard:
    """Counts a connection's control frames and other frames that cost their sender nothing, by the second.

    See CVE-2019-9512, CVE-2019-9518, CVE-2023-44487 and CVE-2024-27316.
    """

    __slots__ = ("_count", "_tick")

    def __init__(self) -> None:
        self._count = self._tick = 0

    def begin(self, tick: int) -> None:
        """Set the current second."""
        if tick != self._tick:
            self._tick, self._count = tick, 0

    def count(self) -> None:
        """Count a frame. Raises H2Error if this second had too many."""
        self._count += 1
        if self._count > MAX_CONTROL_FRAMES:
            raise H2Error("too many control frames", ENHANCE_YOUR_CALM)


class H2Frame(NamedTuple):
    """A frame's header; `at` is its position in the bytes walked."""

    at: int
    length: int
    kind: int
    flags: int
    stream: int

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + HEADER_SIZE + self.length

    @property
    def is_idle_data(self) -> bool:
        """Whether this is a DATA frame that neither carries a byte nor ends its stream (CVE-2019-9518)."""
        return self.kind == DATA and not self.length and not self.flags & END_STREAM


def frame(kind: int, *, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame."""
    header = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return header + payload


def header_at(data: bytes, at: int) -> H2Frame:
    """Read a frame's header."""
    length = int.from_bytes(data[at : at + 3], "big")
    stream = int.from_bytes(data[at + 5 : at + 9], "big") & LAST_POSSIBLE_STREAM
    return H2Frame(at, length, data[at + 3], data[at + 4], stream)


class H2FrameWalker:
    """Follows the frames of one direction.

    `between`: the bytes walked so far end where a frame may be inserted. With `whole_blocks`, frames of header
    blocks are kept back until they are complete, unless they are too large.
    """

    __slots__ = ("_in_block", "_left", "_partial", "_whole_blocks", "boundary")

    def __init__(self, *, whole_blocks: bool = False) -> None:
        self._whole_blocks = whole_blocks
        self._left = 0
        self._partial = b""
        self._in_block = False
        # Where a frame may be inserted in the last bytes walked; -1 for nowhere.
        self.boundary = 0

    @property
    def between(self) -> bool:
        """Whether a frame may be inserted after the bytes walked."""
        return self._left == 0 and not self._in_block

    def walk(self, data: bytes) -> tuple[bytes, list[H2Frame]]:
        """Return the bytes to forward now, and the frames that begin in them.

        An incomplete header is kept back.
        """
        if self._partial:
            data, self._partial = self._partial + data, b""
        frames: list[H2Frame] = []
        size = len(data)
        self.boundary = 0 if self.between else -1
        at = self._left
        while at + HEADER_SIZE <= size:
            if frames or self._left:
                self._passed(at)
            found = header_at(data, at)
            if self._waits_for(found, size):
                break
            frames.append(found)
            self._enter(found)
            at += HEADER_SIZE + found.length
        return self._rest(data, at, frames)

    def _waits_for(self, found: H2Frame, size: int) -> bool:
        return (
            self._whole_blocks
            and found.end > size
            and found.kind in BLOCKS
            and found.length <= MAX_BLOCK
        )

    def _passed(self, at: int) -> None:
        if not self._in_block:
            self.boundary = at

    def _enter(self, found: H2Frame) -> None:
        if found.kind in BLOCKS:
            self._in_block = not found.flags & END_HEADERS

    def _rest(self, data: bytes, at: int, frames: list[H2Frame]) -> tuple[bytes, list[H2Frame]]:
        size = len(data)
        if at <= size:
            self._left = 0
            self._passed(at)
            if at < size:
                data, self._partial = data[:at], data[at:]
        else:
            self._left = at - size
        return data, frames


class H2FrameEdit(NamedTuple):
    """Replaces whole frames of walked bytes."""

    start: int
    end: int
    wire: bytes = b""

    @classmethod
    def without(cls, found: H2Frame) -> H2FrameEdit:
        """Drop a frame."""
        return cls(found.at, found.end)


def edited(data: bytes, edits: list[H2FrameEdit]) -> bytes:
    """Apply edits, which are sorted by position."""
    pieces, position = [], 0
    for edit in edits:
        pieces += [data[position : edit.start], edit.wire]
        position = edit.end
    return b"".join((*pieces, data[position:]))


# our own frames


def goaway(last_stream: int, error: int = NO_ERROR) -> bytes:
    """Return a GOAWAY."""
    payload = last_stream.to_bytes(4, "big") + error.to_bytes(4, "big")
    return frame(GOAWAY, payload=payload)


def settings_while_held() -> bytes:
    """Return the SETTINGS that limit a client until there is a pod."""
    return _settings(MAX_STREAMS, MAX_BLOCK)


def settings_when_joined() -> bytes:
    """Return the SETTINGS that lift these limits: the pod sends its own."""
    return _settings(_UNLIMITED, _UNLIMITED)


def _settings(streams: int, header_list: int) -> bytes:
    values = ((_MAX_CONCURRENT_STREAMS, streams), (_MAX_HEADER_LIST_SIZE, header_list))
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *value) for value in values))


def window_update(increment: int, *, stream: int = 0) -> bytes:
    """Return a WINDOW_UPDATE, for a stream or for the connection."""
    return frame(WINDOW_UPDATE, stream=stream, payload=increment.to_bytes(4, "big"))


def rst_stream(stream: int, error: int) -> bytes:
    """Return an RST_STREAM."""
    return frame(RST_STREAM, stream=stream, payload=error.to_bytes(4, "big"))


def refusal_frames(stream: int, status: int, message: str, *, grpc: bool) -> bytes:
    """Return a refusal; for gRPC in trailers, as its clients expect."""
    if grpc:
        fields = [
            (b"content-type", b"application/grpc"),
            (b"grpc-status", _GRPC_UNAVAILABLE),
            (b"grpc-message", quote(message, safe=" ,;:'()").encode()),
        ]
        return _headers(stream, 200, fields, end=True)
    body = refusal_body(status, message)
    retry = (b"retry-after", b"%d" % RETRY_AFTER_SECONDS)
    return response_frames(stream, status, body, (b"application/json"), retry)


def local_frames(stream: int, local: LocalAnswer) -> bytes:
    """Return a response that needs no pod."""
    lines = (line.partition(b": ") for line in local.fields.split(b"\r\n") if line)
    fields = {name.lower(): value for name, _, value in lines}
    kind = fields.pop(b"content-type", content_type(local.body))
    return response_frames(stream, local.status, local.body, kind, *fields.items())


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
    block = status_field(status) + b"".join(literal(name, value) for name, value in fields)
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags=flags, stream=stream, payload=block)
