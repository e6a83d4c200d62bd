"""Header blocks in their frames: reassembled, extended, and encoded without a table.

A block is one HEADERS frame, which may be padded, and any number of CONTINUATION frames. `HeaderBlockAssembler`
reassembles the blocks of one direction, `with_more` appends fields to a block, and `encode_block` writes a block
that needs no table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hpack import HeaderTuple, NeverIndexedHeaderTuple

from elasti.resolver.proxy.h2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADER_SIZE,
    HEADERS,
    MAX_BLOCK,
    MAX_FRAME,
    PADDED,
    PRIORITY,
    PUSH_PROMISE,
    H2Frame,
    frame,
    header_at,
)
from elasti.resolver.proxy.h2.header_fields import literal


class HeaderBlock(NamedTuple):
    """A complete header block. `stream` is the stream it came on, also for PUSH_PROMISE."""

    kind: int
    stream: int
    ends_stream: bool
    fragment: bytes


class HeaderBlockAssembler:
    """Reassembles the header blocks of one direction."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: HeaderBlock | None = None

    def add(self, found: H2Frame, payload: bytes) -> HeaderBlock | None:
        """Take a frame of a block. Returns the block after its last frame.

        Raises ValueError for an unexpected frame or a block that is too large.
        """
        begun = self._begun
        if begun is None:
            if found.kind == CONTINUATION or not found.stream:
                raise ValueError("CONTINUATION without HEADERS, or a header block without a stream")
            ends = bool(found.flags & END_STREAM) and found.kind == HEADERS
            part = block_fragment(found.kind, found.flags, payload)
            begun = HeaderBlock(found.kind, found.stream, ends, part)
        elif found.kind != CONTINUATION or found.stream != begun.stream:
            raise ValueError("a header block is interrupted")
        else:
            begun = begun._replace(fragment=begun.fragment + payload)
        if len(begun.fragment) > MAX_BLOCK:
            raise ValueError("a header block is larger than 64 KiB")
        done = bool(found.flags & END_HEADERS)
        self._begun = None if done else begun
        return begun if done else None


def block_in(wire: bytes) -> HeaderBlock:
    """Return the block in some frames. Raises ValueError."""
    blocks, at = HeaderBlockAssembler(), 0
    while True:
        found = header_at(wire, at)
        block = blocks.add(found, wire[at + HEADER_SIZE : found.end])
        if block is not None:
            return block
        at = found.end


def block_fragment(kind: int, flags: int, payload: bytes) -> bytes:
    """Return a frame's part of the header block, without padding and priority.

    Raises ValueError if the frame is shorter than its padding.
    """
    start, end = _fragment_span(kind, flags, payload)
    return payload[start:end]


def _fragment_span(kind: int, flags: int, payload: bytes) -> tuple[int, int]:
    start, end = 0, len(payload)
    if kind != CONTINUATION and flags & PADDED:
        start, end = 1, end - payload[0] if payload else -1
    if kind == HEADERS and flags & PRIORITY:
        start += 5
    elif kind == PUSH_PROMISE:
        start += 4
    if start > end:
        raise ValueError("a header block frame is shorter than its padding")
    return start, end


def with_more(found: H2Frame, wire: bytes, fields: bytes) -> bytes:
    """Append encoded fields to the block whose last frame is `wire`.

    They go into that frame, before its padding, or into another frame if it would be too large.
    """
    payload = wire[HEADER_SIZE:]
    if found.length + len(fields) <= MAX_FRAME:
        _, end = _fragment_span(found.kind, found.flags, payload)
        longer = payload[:end] + fields + payload[end:]
        return frame(found.kind, flags=found.flags, stream=found.stream, payload=longer)
    flags = found.flags & ~END_HEADERS
    first = frame(found.kind, flags=flags, stream=found.stream, payload=payload)
    rest = frame(CONTINUATION, flags=END_HEADERS, stream=found.stream, payload=fields)
    return first + rest


def encode_block(stream: int, fields: Iterable[HeaderTuple], *, ends_stream: bool) -> bytes:
    """Return the frames of a header block that needs no table."""
    block = b"".join(
        literal(bytes(name), bytes(value), never_indexed=isinstance(field, NeverIndexedHeaderTuple))
        for field in fields
        for name, value in (field,)
    )
    pieces = [block[at : at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME)] or [b""]
    last = len(pieces) - 1
    flags = END_STREAM if ends_stream else 0
    return b"".join(
        frame(
            CONTINUATION if number else HEADERS,
            flags=(0 if number else flags) | (END_HEADERS if number == last else 0),
            stream=stream,
            payload=piece,
        )
        for number, piece in enumerate(pieces)
    )
