"""The first frames of an h2 connection, read and kept until a pod is found.

A gRPC client waits for the server's SETTINGS before it asks anything, gives up a connection whose own
SETTINGS are never acknowledged, and may ping while it waits. So all that is answered here; everything
else is kept for the pod, in order. Each acknowledgement that was given or asked for early is one that
must be swallowed later, when the pod's own arrives.

A request that its client cancels while it is held never reaches the pod, as if it had not been made.
But header blocks build on one another, and the pod would miss a part. So with the first that is cancelled,
all that are kept are encoded again as blocks that build on nothing, and so is what follows, for
as long as the connection lasts (`HeaderBlockRecoder`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import hpack

from elasti.resolver.proxy.h2.frames import (
    ACK,
    BLOCKS,
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpack import HeaderTuple


# What clients may use of a table after a pod has allowed it; more is not followed.
_LARGEST_TABLE = 64 * 1024
# What keeping a frame costs beside its bytes.
_OVERHEAD = 256
# How much larger than what is kept header blocks may be without compression: clients send the same
# tokens and cookies with every request, for a byte each.
_EXPANSION = 4
# How far the header blocks of one read, of 64 KiB at most, may expand on their way to a pod.
_MAX_WRITTEN = 1 << 20


@dataclass(frozen=True, slots=True)
class H2Request:
    """A request's header block, as rules see it."""

    stream: int
    fields: dict[bytes, bytes]

    @classmethod
    def of(cls, stream: int, decoded: Iterable[HeaderTuple]) -> H2Request:
        """Return the request of a decoded block; of a repeated field the first counts."""
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
        """Whether errors belong into trailers."""
        return self.fields.get(b"content-type", b"").startswith(b"application/grpc")

    def field(self, name: bytes) -> bytes | None:
        """Return a field's first value."""
        return self.fields.get(name)


@dataclass(frozen=True, slots=True)
class H2Cancel:
    """The client wants no answer on a stream any more."""

    stream: int


class HeaderBlockRecoder:
    """Encodes a client's header blocks again, so that none builds on another."""

    __slots__ = ("_blocks", "_decoder", "_written")

    def __init__(self, decoder: hpack.Decoder | None = None) -> None:
        self._written = 0
        self._decoder = decoder or hpack.Decoder()
        self._decoder.max_allowed_table_size = _LARGEST_TABLE
        self._blocks = HeaderBlockAssembler()

    def begin_read(self) -> None:
        """Begin with the blocks of another read."""
        self._written = 0

    def add(self, found: H2Frame, payload: bytes) -> bytes:
        """Take a frame of a block; returns the whole block, encoded again, after its last. Raises H2Error."""
        decoded = self.decode(found, payload)
        return b"" if decoded is None else self.write(*decoded)

    def write(self, block: HeaderBlock, fields: Iterable[HeaderTuple]) -> bytes:
        """Encode a block. Raises H2Error where those of one read expand too far."""
        wire = self.reencode(block, fields)
        self._written += len(wire)
        if self._written > _MAX_WRITTEN:
            raise H2Error("header blocks that expand too far", ENHANCE_YOUR_CALM)
        return wire

    def decode(
        self, found: H2Frame, payload: bytes
    ) -> tuple[HeaderBlock, list[HeaderTuple]] | None:
        """Take a frame of a block; returns the block and its fields after its last. Raises H2Error."""
        try:
            block = self._blocks.add(found, payload)
        except ValueError as error:
            raise H2Error(str(error)) from error
        return None if block is None else (block, decode(self._decoder, block))

    @staticmethod
    def reencode(block: HeaderBlock, fields: Iterable[HeaderTuple]) -> bytes:
        """Write a block that was decoded."""
        return encode_block(block.stream, fields, ends_stream=block.ends_stream)


def decode(decoder: hpack.Decoder, block: HeaderBlock) -> list[HeaderTuple]:
    """Decode a block. Raises H2Error."""
    try:
        return list(decoder.decode(block.fragment, raw=True))
    except hpack.OversizedHeaderListError as error:
        raise H2Error(
            "a header block that expands to more than 64 KiB", ENHANCE_YOUR_CALM
        ) from error
    except hpack.HPACKError as error:
        raise H2Error(f"a header block that does not decode: {error}") from error


class _StreamFrames:
    """Frames of one stream that follow one another: a header block, and what came after it."""

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
        """What keeping it costs."""
        return _OVERHEAD + len(self.block) + len(self.tail)

    @property
    def wire(self) -> bytes:
        """The frames, as the pod gets them."""
        window = window_update(self.window, stream=self.stream) if self.window else b""
        return self.block + self.tail + window


class HeldFrames:
    """What came before a pod was found. `replies` go to the client.

    Parsing stops where what is kept costs more than `limit`: what follows stays as it came, as the
    rest. Header blocks are counted as they would be without compression, too, since they may have to
    be encoded again.

    frames: how many came whole.
    acks_from_pod: how many SETTINGS the pod will acknowledge that the client believes acknowledged.
    acks_seen: how often the client has acknowledged ours.
    """

    __slots__ = (
        "_blocks", "_by_stream", "_decoder", "_expanded", "_flood", "_kept", "_kept_size", "_limit",
        "_recodes", "_rest", "_unfinished", "acks_from_pod", "acks_seen", "frames", "replies",
    )  # fmt: skip

    def __init__(self, *, limit: int = MAX_BLOCK, flood: H2FloodGuard | None = None) -> None:
        self._limit = limit
        self._flood = flood or H2FloodGuard()
        self._rest = b""
        # The frames of a header block that is not complete.
        self._unfinished = b""
        self._blocks = HeaderBlockAssembler()
        self._decoder = hpack.Decoder()
        self._recodes = False
        # In the order in which it came, and by stream.
        self._kept: dict[_StreamFrames, None] = {}
        self._by_stream: dict[int, list[_StreamFrames]] = {}
        self._kept_size = self._expanded = 0
        self.frames = 0
        self.replies: list[bytes] = []
        self.acks_from_pod = 0
        self.acks_seen = 0

    @property
    def size(self) -> int:
        """How much is kept."""
        return len(PREFACE) + self._kept_size + len(self._unfinished) + len(self._rest)

    @property
    def kept(self) -> bytes:
        """What the pod is sent first."""
        return b"".join((PREFACE, *(kept.wire for kept in self._kept)))

    @property
    def rest(self) -> bytes:
        """What follows it, and is not complete: of a header block or of a frame."""
        return self._unfinished + self._rest

    @property
    def recoder(self) -> HeaderBlockRecoder | None:
        """The recoder for what follows; None where the pod can read it as it comes."""
        return HeaderBlockRecoder(self._decoder) if self._recodes else None

    def read(self, data: bytes) -> Iterator[H2Request | H2Cancel]:
        """Take bytes in; yields header blocks, which are kept, and what was taken back.

        Raises H2Error.
        """
        self._rest += data
        at = 0
        while self._kept_size < self._limit and len(self._rest) - at >= HEADER_SIZE:
            found = header_at(self._rest, at)
            if found.length > MAX_FRAME:
                raise H2Error("a frame larger than 16 KiB before it was allowed")
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
        """Keep nothing: none of it will go to a pod."""
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
        # PRIORITY and frames of unknown kinds mean nothing to a pod that has not begun to answer.
        return None

    def _data(self, found: H2Frame, wire: bytes) -> None:
        if not found.stream:
            raise H2Error("a body without a stream")
        if found.stream in self._by_stream:
            self._keep(found.stream, wire).data += found.length
        elif found.length:
            # Of a request that was answered here or taken back: let the client go on.
            self.replies.append(window_update(found.length))

    def _window(self, stream: int, wire: bytes) -> None:
        """Add up what the client allows to be sent; for a request that is gone that means nothing."""
        if stream and stream not in self._by_stream:
            return
        increment = int.from_bytes(wire[HEADER_SIZE:], "big") & LAST_POSSIBLE_STREAM
        kept = self._by_stream[stream][0] if stream in self._by_stream else self._add(stream)
        kept.window += increment
        if not increment or len(wire) != HEADER_SIZE + 4 or kept.window > LAST_POSSIBLE_STREAM:
            raise H2Error("a window that cannot be")

    def _settings(self, found: H2Frame, wire: bytes) -> None:
        """Acknowledge the client's; an acknowledgement can only be of ours, the pod has not spoken."""
        if found.flags & ACK:
            self.acks_seen += 1
            return
        self.replies.append(frame(SETTINGS, flags=ACK))
        self.acks_from_pod += 1
        self._keep(found.stream, wire)

    def _block_part(self, found: H2Frame, wire: bytes) -> H2Request | None:
        if found.kind == PUSH_PROMISE:
            raise H2Error("a client that promises")
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
            raise H2Error("header blocks that expand to more than is kept", ENHANCE_YOUR_CALM)
        if self._recodes:
            wire = HeaderBlockRecoder.reencode(block, decoded)
        self._add(block.stream, wire, expanded)
        return H2Request.of(block.stream, decoded)

    def _keep(self, stream: int, wire: bytes) -> _StreamFrames:
        """Keep a frame, with those of its stream before it where nothing came in between."""
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
        """Take a request back, with all that was sent for it."""
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
            # The client counts what it has sent, and the pod will never report this as read.
            self.replies.append(window_update(sent))

    def _recode_all(self) -> None:
        decoder = hpack.Decoder()
        for kept in self._kept:
            if kept.block:
                self._kept_size -= len(kept.block)
                block = block_in(kept.block)
                kept.block = HeaderBlockRecoder.reencode(block, decode(decoder, block))
                self._kept_size += len(kept.block)
