"""Reads and keeps the first frames of an h2 connection until a pod is found.

A gRPC client sends no request before it has the server's SETTINGS, drops a connection whose own SETTINGS are not
acknowledged, and may ping while it waits. So these are answered here; everything else is kept for the pod, in
order. Each acknowledgement that was given or requested early must be dropped later, when the pod's arrives.

A request that its client cancels while it is held never reaches the pod. But header blocks depend on earlier
ones, and the pod would miss a part. So at the first cancellation all kept blocks are encoded again without
references, and so are all later ones of the connection (`HeaderBlockRecoder`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import hpack
from hpack import HeaderTuple

from elasti.resolver.proxy.h2.frames import (
    ACK,
    BLOCKS,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADER_SIZE,
    LAST_POSSIBLE_STREAM,
    MAX_BLOCK,
    MAX_FRAME,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    H2Error,
    H2FloodGuard,
    H2Frame,
    frame,
    header_at,
    window_update,
)
from elasti.resolver.proxy.h2.header_blocks import (
    HeaderBlock,
    HeaderBlockAssembler,
    block_in,
    encode_block,
)

# The largest table that clients may use once a pod has allowed it.
_LARGEST_TABLE = 64 * 1024
# The cost of keeping a frame beside its bytes.
_OVERHEAD = 256
# How far header blocks may exceed the kept bytes without compression: clients repeat tokens and cookies in every
# request, for a byte each.
_EXPANSION = 4
# How far the header blocks of one read, of at most 64 KiB, may expand.
_MAX_WRITTEN = 1 << 20


@dataclass(frozen=True, slots=True)
class H2Request:
    """A request's header block, as rules see it."""

    stream: int
    fields: dict[bytes, bytes]

    @classmethod
    def of(cls, stream: int, decoded: Iterable[HeaderTuple]) -> H2Request:
        """Return the request of a decoded block. The first of a repeated field counts."""
        fields: dict[bytes, bytes] = {}
        for name, value in decoded:
            fields.setdefault(bytes(name), bytes(value))
        return cls(stream, fields)

    @property
    def method(self) -> bytes:
        """The method."""
        return self.fields.get(b":method", b"")

    @property
    def target(self) -> bytes:
        """Path and query."""
        return self.fields.get(b":path", b"")

    @property
    def host(self) -> bytes | None:
        """The authority."""
        return self.fields.get(b":authority") or self.fields.get(b"host")

    @property
    def is_grpc(self) -> bool:
        """Whether it is gRPC, which reports errors in trailers."""
        return self.fields.get(b"content-type", b"").startswith(b"application/grpc")

    def field(self, name: bytes) -> bytes | None:
        """Return a field's first value."""
        return self.fields.get(name)


@dataclass(frozen=True, slots=True)
class H2Cancel:
    """The client cancelled a stream."""

    stream: int


class HeaderBlockRecoder:
    """Encodes a client's header blocks again, without references to earlier blocks."""

    __slots__ = ("_blocks", "_decoder", "_written")

    def __init__(self, decoder: hpack.Decoder | None = None) -> None:
        self._written = 0
        self._decoder = decoder or hpack.Decoder()
        self._decoder.max_allowed_table_size = _LARGEST_TABLE
        self._blocks = HeaderBlockAssembler()

    def begin_read(self) -> None:
        """Start the count for another read."""
        self._written = 0

    def add(self, found: H2Frame, payload: bytes) -> bytes:
        """Take a frame of a block. After the last one, returns the re-encoded block. Raises H2Error."""
        decoded = self.decode(found, payload)
        return b"" if decoded is None else self.write(*decoded)

    def write(self, block: HeaderBlock, fields: Iterable[HeaderTuple]) -> bytes:
        """Encode a block. Raises H2Error if the blocks of one read expand too far."""
        wire = self.reencode(block, fields)
        self._written += len(wire)
        if self._written > _MAX_WRITTEN:
            raise H2Error("header blocks expand too far", ENHANCE_YOUR_CALM)
        return wire

    def decode(
        self, found: H2Frame, payload: bytes
    ) -> tuple[HeaderBlock, list[HeaderTuple]] | None:
        """Take a frame of a block. After the last one, returns the block and its fields. Raises H2Error."""
        try:
            block = self._blocks.add(found, payload)
        except ValueError as error:
            raise H2Error(str(error)) from error
        return None if block is None else (block, decode(self._decoder, block))

    @staticmethod
    def reencode(block: HeaderBlock, fields: Iterable[HeaderTuple]) -> bytes:
        """Encode a decoded block."""
        return encode_block(block.stream, fields, ends_stream=block.ends_stream)


def decode(decoder: hpack.Decoder, block: HeaderBlock) -> list[HeaderTuple]:
    """Decode a block. Raises H2Error."""
    try:
        return list(decoder.decode(block.fragment, raw=True))
    except hpack.OversizedHeaderListError as error:
        raise H2Error("a header block expands to more than 64 KiB", ENHANCE_YOUR_CALM) from error
    except hpack.HPACKError as error:
        raise H2Error(f"cannot decode a header block: {error}") from error


class _StreamFrames:
    """Consecutive frames of one stream: a header block, and the frames behind it."""

    __slots__ = ("block", "data", "expanded", "stream", "tail", "window")

    def __init__(self, stream: int, block: bytes = b"", expanded: int = 0) -> None:
        self.stream = stream
        self.block = block
        # The size of the block without compression.
        self.expanded = expanded
        self.tail = bytearray()
        # The payload of DATA frames in the tail, and the sum of WINDOW_UPDATE frames.
        self.data = 0
        self.window = 0

    @property
    def size(self) -> int:
        """The cost of keeping it."""
        return _OVERHEAD + len(self.block) + len(self.tail)

    @property
    def wire(self) -> bytes:
        """The frames for the pod."""
        window = window_update(self.window, stream=self.stream) if self.window else b""
        return self.block + self.tail + window


class HeldFrames:
    """The frames that came before a pod was found. `replies` go to the client.

    Parsing stops when the kept frames cost more than `limit`; the bytes behind them stay in `rest`,
    unparsed. Header blocks also count at their uncompressed size, since they may have to be encoded
    again.
    """

    __slots__ = (
        "_blocks", "_by_stream", "_decoder", "_expanded", "_flood", "_kept", "_kept_size", "_limit",
        "_recodes", "_rest", "_unfinished", "acks_from_pod", "acks_seen", "frames", "replies",
    )  # fmt: skip

    def __init__(self, *, limit: int = MAX_BLOCK, flood: H2FloodGuard | None = None) -> None:
        self._limit = limit
        self._flood = flood or H2FloodGuard()
        self._rest = b""
        # The frames of an incomplete header block.
        self._unfinished = b""
        self._blocks = HeaderBlockAssembler()
        self._decoder = hpack.Decoder()
        self._recodes = False
        # In order of arrival, and by stream.
        self._kept: dict[_StreamFrames, None] = {}
        self._by_stream: dict[int, list[_StreamFrames]] = {}
        self._kept_size = self._expanded = 0
        # Complete frames.
        self.frames = 0
        self.replies: list[bytes] = []
        # SETTINGS that we acknowledged to the client, and the pod will acknowledge again.
        self.acks_from_pod = 0
        # How often the client has acknowledged ours.
        self.acks_seen = 0

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return len(PREFACE) + self._kept_size + len(self._unfinished) + len(self._rest)

    @property
    def kept(self) -> bytes:
        """The first bytes for the pod."""
        return b"".join((PREFACE, *(kept.wire for kept in self._kept)))

    @property
    def rest(self) -> bytes:
        """The bytes behind `kept`: an incomplete header block or frame."""
        return self._unfinished + self._rest

    @property
    def recoder(self) -> HeaderBlockRecoder | None:
        """The recoder for later blocks; None if the pod can read them unchanged."""
        return HeaderBlockRecoder(self._decoder) if self._recodes else None

    def read(self, data: bytes) -> Iterator[H2Request | H2Cancel]:
        """Read bytes; yields requests, which are kept, and cancellations. Raises H2Error."""
        self._rest += data
        at = 0
        while self._kept_size < self._limit and len(self._rest) - at >= HEADER_SIZE:
            found = header_at(self._rest, at)
            if found.length > MAX_FRAME:
                raise H2Error("a frame is larger than 16 KiB")
            if len(self._rest) < found.end:
                break
            self.frames += 1
            event = self._frame(found, self._rest[at : found.end])
            at = found.end
            if event is not None:
                self._rest, at = self._rest[at:], 0
                yield event
        self._rest = self._rest[at:]

    def forget(self) -> None:
        """Drop all kept frames: none will go to a pod."""
        self._kept.clear()
        self._by_stream.clear()
        self._kept_size = self._expanded = 0

    def _frame(self, found: H2Frame, wire: bytes) -> H2Request | H2Cancel | None:
        kind, stream = found.kind, found.stream
        if self._unfinished or kind in BLOCKS:
            return self._block_part(found, wire)
        if kind == DATA:
            self._data(found, wire)
            return None
        self._flood.count()
        if kind == SETTINGS:
            self._settings(found, wire)
        elif kind == PING:
            if not found.flags & ACK:
                self.replies.append(frame(PING, flags=ACK, payload=wire[HEADER_SIZE:]))
        elif kind == GOAWAY:
            self._keep(stream, wire)
        elif kind == WINDOW_UPDATE:
            self._window(stream, wire)
        elif kind == RST_STREAM and stream in self._by_stream and stream:
            self._drop(stream)
            return H2Cancel(stream)
        # PRIORITY and frames of unknown types can be dropped before the pod has answered.
        return None

    def _data(self, found: H2Frame, wire: bytes) -> None:
        if not found.stream:
            raise H2Error("DATA without a stream")
        if found.is_idle_data:
            self._flood.count()
        if found.stream in self._by_stream:
            self._keep(found.stream, wire).data += found.length
        elif found.length:
            # Of a request that was answered here or cancelled: let the client continue.
            self.replies.append(window_update(found.length))

    def _window(self, stream: int, wire: bytes) -> None:
        """Sum the client's window updates; ignore those of closed streams."""
        if stream and stream not in self._by_stream:
            return
        increment = int.from_bytes(wire[HEADER_SIZE:], "big") & LAST_POSSIBLE_STREAM
        kept = self._by_stream[stream][0] if stream in self._by_stream else self._add(stream)
        kept.window += increment
        if not increment or len(wire) != HEADER_SIZE + 4 or kept.window > LAST_POSSIBLE_STREAM:
            raise H2Error("invalid WINDOW_UPDATE")

    def _settings(self, found: H2Frame, wire: bytes) -> None:
        """Acknowledge the client's SETTINGS. An acknowledgement can only be for ours."""
        if found.flags & ACK:
            self.acks_seen += 1
            return
        self.replies.append(frame(SETTINGS, flags=ACK))
        self.acks_from_pod += 1
        self._keep(found.stream, wire)

    def _block_part(self, found: H2Frame, wire: bytes) -> H2Request | None:
        if found.kind == PUSH_PROMISE:
            raise H2Error("a client sent PUSH_PROMISE")
        if found.kind == CONTINUATION:
            self._flood.count()
        try:
            block = self._blocks.add(found, wire[HEADER_SIZE:])
        except ValueError as error:
            raise H2Error(str(error)) from error
        self._unfinished += wire
        if block is None:
            return None
        wire, self._unfinished = self._unfinished, b""
        decoded = decode(self._decoder, block)
        expanded = sum(len(name) + len(value) + 32 for name, value in decoded)
        self._expanded += expanded
        if self._expanded > self._limit * _EXPANSION:
            raise H2Error("header blocks expand too far", ENHANCE_YOUR_CALM)
        if self._recodes:
            wire = HeaderBlockRecoder.reencode(block, decoded)
        self._add(block.stream, wire, expanded)
        return H2Request.of(block.stream, decoded)

    def _keep(self, stream: int, wire: bytes) -> _StreamFrames:
        """Keep a frame, together with directly preceding frames of its stream."""
        last = next(reversed(self._kept), None)
        kept = last if last is not None and last.stream == stream else self._add(stream)
        kept.tail += wire
        self._kept_size += len(wire)
        return kept

    def _add(self, stream: int, block: bytes = b"", expanded: int = 0) -> _StreamFrames:
        kept = _StreamFrames(stream, block, expanded)
        self._kept[kept] = None
        self._by_stream.setdefault(stream, []).append(kept)
        self._kept_size += kept.size
        return kept

    def _drop(self, stream: int) -> None:
        """Drop a cancelled request with all its frames."""
        if not self._recodes:
            self._recodes = True
            self._recode_all()
        sent = 0
        for dropped in self._by_stream.pop(stream):
            del self._kept[dropped]
            self._kept_size -= dropped.size
            self._expanded -= dropped.expanded
            sent += dropped.data
        if sent:
            # The client counts these bytes, and the pod will never acknowledge them.
            self.replies.append(window_update(sent))

    def _recode_all(self) -> None:
        decoder = hpack.Decoder()
        for kept in self._kept:
            if kept.block:
                self._kept_size -= len(kept.block)
                block = block_in(kept.block)
                kept.block = HeaderBlockRecoder.reencode(block, decode(decoder, block))
                self._kept_size += len(kept.block)
