"""The beginning of an h2 connection, read until a pod has it.

A gRPC client waits for the server's SETTINGS before it asks anything, gives up a connection whose own
SETTINGS are never acknowledged, and may ping while it waits. So all that is answered here; everything
else is kept for the pod, in order. Each acknowledgement that was given or asked for early is one that
must be swallowed later, when the pod's own arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import hpack

from elasti.resolver.proxy.h2frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    HEADER_SIZE,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Frame,
    block_fragment,
    frame,
    header_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# A client's frames are no larger before we allow it, and we never do.
_MAX_FRAME = 16 * 1024


class H2Error(ValueError):
    """Bytes that are not HTTP/2."""


@dataclass(frozen=True, slots=True)
class H2Request:
    """A request's header block, as rules see it; `raw` is the frames that carried it."""

    stream: int
    fields: dict[bytes, bytes]
    raw: bytes

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


class Beginning:
    """What came before a pod was found. `kept` goes to the pod, `replies` to the client."""

    __slots__ = ("_block", "_decoder", "_rest", "acks_from_pod", "acks_seen", "kept", "replies")

    def __init__(self) -> None:
        self._rest = b""
        self._block: tuple[int, bytes, bytes] | None = None
        self._decoder = hpack.Decoder()
        self.kept: list[bytes] = [PREFACE]
        self.replies: list[bytes] = []
        # The pod will acknowledge SETTINGS that the client believes acknowledged.
        self.acks_from_pod = 0
        # How often the client acknowledged ours already.
        self.acks_seen = 0

    @property
    def rest(self) -> bytes:
        """The bytes of a frame that is not complete; they follow what is kept."""
        return self._rest

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return sum(map(len, self.kept)) + len(self._rest)

    def read(self, data: bytes) -> Iterator[H2Request | H2Cancel]:
        """Take bytes in; yields requests, to be kept or not by the caller. Raises H2Error."""
        self._rest += data
        while len(self._rest) >= HEADER_SIZE:
            found = header_at(self._rest, 0)
            if found.length > _MAX_FRAME:
                raise H2Error("a frame larger than 16 KiB before it was allowed")
            end = HEADER_SIZE + found.length
            if len(self._rest) < end:
                return
            raw, self._rest = self._rest[:end], self._rest[end:]
            event = self._frame(found, raw)
            if event is not None:
                yield event

    def _frame(self, found: Frame, raw: bytes) -> H2Request | H2Cancel | None:
        if self._block is not None or found.kind in (HEADERS, CONTINUATION):
            return self._block_part(found, raw)
        if found.kind == SETTINGS:
            self._settings(found, raw)
        elif found.kind == PING:
            if not found.flags & ACK:
                self.replies.append(frame(PING, flags=ACK, payload=raw[HEADER_SIZE:]))
        else:
            self.kept.append(raw)
        return H2Cancel(found.stream) if found.kind == RST_STREAM else None

    def _settings(self, found: Frame, raw: bytes) -> None:
        """Acknowledge the client's; an acknowledgement can only be of ours, the pod has not spoken."""
        if found.flags & ACK:
            self.acks_seen += 1
            return
        self.replies.append(frame(SETTINGS, flags=ACK))
        self.acks_from_pod += 1
        self.kept.append(raw)

    def _block_part(self, found: Frame, raw: bytes) -> H2Request | None:
        stream, block, frames = self._block or (found.stream, b"", b"")
        expected = HEADERS if self._block is None else CONTINUATION
        if found.kind != expected or found.stream != stream or not stream:
            raise H2Error("a header block that is interrupted or on no stream")
        payload = raw[HEADER_SIZE:]
        try:
            block += block_fragment(found.flags, payload) if expected == HEADERS else payload
        except ValueError as error:
            raise H2Error(str(error)) from error
        frames += raw
        if len(frames) > 4 * _MAX_FRAME:
            raise H2Error("a header block larger than 64 KiB")
        if not found.flags & END_HEADERS:
            self._block = stream, block, frames
            return None
        self._block = None
        return self._request(stream, block, frames)

    def _request(self, stream: int, block: bytes, frames: bytes) -> H2Request:
        try:
            decoded = self._decoder.decode(block, raw=True)
        except hpack.HPACKError as error:
            raise H2Error(f"a header block that does not decode: {error}") from error
        fields: dict[bytes, bytes] = {}
        for name, value in decoded:
            fields.setdefault(bytes(name), bytes(value))
        return H2Request(stream, fields, frames)
