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
    HEADER_SIZE,
    MAX_FRAME,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
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
_LARGEST_TABLE = 1 << 20


class H2Error(ValueError):
    """Bytes that are not HTTP/2."""


@dataclass(frozen=True, slots=True)
class H2Request:
    """A request's header block, as rules see it."""

    stream: int
    fields: dict[bytes, bytes]

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
    """Writes a client's header blocks anew, so that none builds on another."""

    __slots__ = ("_blocks", "_decoder")

    def __init__(self, decoder: hpack.Decoder | None = None) -> None:
        self._decoder = decoder or hpack.Decoder()
        self._decoder.max_allowed_table_size = _LARGEST_TABLE
        self._blocks = HeaderBlockAssembler()

    def add(self, found: H2Frame, payload: bytes) -> bytes:
        """Take a frame of a block; returns the whole block anew after its last. Raises H2Error."""
        try:
            block = self._blocks.add(found, payload)
        except ValueError as error:
            raise H2Error(str(error)) from error
        return b"" if block is None else self.reencode(block, decode(self._decoder, block))

    @staticmethod
    def reencode(block: HeaderBlock, fields: Iterable[HeaderTuple]) -> bytes:
        """Write a block that was decoded."""
        return encode_block(block.stream, fields, ends_stream=block.ends_stream)


def decode(decoder: hpack.Decoder, block: HeaderBlock) -> list[HeaderTuple]:
    """Decode a block. Raises H2Error."""
    try:
        return list(decoder.decode(block.fragment, raw=True))
    except hpack.HPACKError as error:
        raise H2Error(f"a header block that does not decode: {error}") from error


class _HeldFrame:
    """A frame, or the frames of a header block."""

    __slots__ = ("is_block", "stream", "wire")

    def __init__(self, stream: int, wire: bytes, *, is_block: bool) -> None:
        self.stream = stream
        self.wire = wire
        self.is_block = is_block


class HeldFrames:
    """What came before a pod was found. `replies` go to the client; `size` is how much is kept.

    frames: how many came whole.
    acks_from_pod: how many SETTINGS the pod will acknowledge that the client believes acknowledged.
    acks_seen: how often the client has acknowledged ours.
    """

    __slots__ = (
        "_blocks", "_by_stream", "_decoder", "_kept", "_number", "_recodes", "_rest", "_unfinished",
        "acks_from_pod", "acks_seen", "frames", "replies", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self._rest = b""
        # The frames of a header block that is not complete.
        self._unfinished = b""
        self._blocks = HeaderBlockAssembler()
        self._decoder = hpack.Decoder()
        self._recodes = False
        # In the order in which it came, and by stream.
        self._kept: dict[int, _HeldFrame] = {}
        self._by_stream: dict[int, list[int]] = {}
        self._number = 0
        self.size = len(PREFACE)
        self.frames = 0
        self.replies: list[bytes] = []
        self.acks_from_pod = 0
        self.acks_seen = 0

    @property
    def kept(self) -> bytes:
        """What the pod is sent first."""
        return b"".join((PREFACE, *(kept.wire for kept in self._kept.values())))

    @property
    def rest(self) -> bytes:
        """What follows it, and is not complete: of a header block or of a frame."""
        return self._unfinished + self._rest

    @property
    def recoder(self) -> HeaderBlockRecoder | None:
        """Who writes what follows anew; None where the pod can read it as it comes."""
        return HeaderBlockRecoder(self._decoder) if self._recodes else None

    def read(self, data: bytes) -> Iterator[H2Request | H2Cancel]:
        """Take bytes in; yields header blocks, which are kept, and what was taken back.

        Raises H2Error.
        """
        self._rest += data
        self.size += len(data)
        at = 0
        while len(self._rest) - at >= HEADER_SIZE:
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
        self.size = len(PREFACE) + len(self._unfinished) + len(self._rest)

    def _frame(self, found: H2Frame, wire: bytes) -> H2Request | H2Cancel | None:
        if self._unfinished or found.kind in BLOCKS:
            return self._block_part(found, wire)
        if found.kind == SETTINGS:
            self._settings(found, wire)
        elif found.kind == PING:
            if not found.flags & ACK:
                self.replies.append(frame(PING, flags=ACK, payload=wire[HEADER_SIZE:]))
            self.size -= len(wire)
        elif found.kind == RST_STREAM and found.stream and found.stream in self._by_stream:
            self.size -= len(wire)
            self._drop(found.stream)
            return H2Cancel(found.stream)
        else:
            self._keep(found.stream, wire)
        return None

    def _settings(self, found: H2Frame, wire: bytes) -> None:
        """Acknowledge the client's; an acknowledgement can only be of ours, the pod has not spoken."""
        if found.flags & ACK:
            self.acks_seen += 1
            self.size -= len(wire)
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
        if self._recodes:
            self.size -= len(wire)
            wire = HeaderBlockRecoder.reencode(block, decoded)
            self.size += len(wire)
        self._keep(block.stream, wire, is_block=True)
        fields: dict[bytes, bytes] = {}
        for name, value in decoded:
            fields.setdefault(bytes(name), bytes(value))
        return H2Request(block.stream, fields)

    def _keep(self, stream: int, wire: bytes, *, is_block: bool = False) -> None:
        self._number += 1
        self._kept[self._number] = _HeldFrame(stream, wire, is_block=is_block)
        self._by_stream.setdefault(stream, []).append(self._number)

    def _drop(self, stream: int) -> None:
        """Take a request back, with all that was sent for it."""
        if not self._recodes:
            self._recodes = True
            self._recode_all()
        sent = 0
        for number in self._by_stream.pop(stream):
            dropped = self._kept.pop(number).wire
            self.size -= len(dropped)
            if dropped[3] == DATA:
                sent += len(dropped) - HEADER_SIZE
        if sent:
            # The client counts what it has sent; nobody else will ever tell it that this was read.
            self.replies.append(window_update(sent))

    def _recode_all(self) -> None:
        decoder = hpack.Decoder()
        for kept in self._kept.values():
            if kept.is_block:
                self.size -= len(kept.wire)
                block = block_in(kept.wire)
                kept.wire = HeaderBlockRecoder.reencode(block, decode(decoder, block))
                self.size += len(kept.wire)
