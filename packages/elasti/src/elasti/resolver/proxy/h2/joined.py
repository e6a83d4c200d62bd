"""Two joined h2 connections: frames pass in both directions as they come.

Little is inspected: where streams begin and end, the status of each response, and frame boundaries. Even less is
changed: acknowledgements that were given or requested early are dropped, the response to a held request gets two
fields, and a GOAWAY is inserted when pods take over. Flow control and header compression stay between the peers.
Every client connection has its own connection to a pod.

If a pod's header blocks cannot be followed, its frames pass uninspected from there: responses still arrive, but
are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from elasti.resolver.proxy.h2.frames import (
    ACK,
    BLOCKS,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    LAST_POSSIBLE_STREAM,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    H2Error,
    H2FloodGuard,
    H2Frame,
    H2FrameEdit,
    H2FrameWalker,
    edited,
    goaway,
)
from elasti.resolver.proxy.h2.header_blocks import HeaderBlock, HeaderBlockAssembler, with_more
from elasti.resolver.proxy.h2.header_fields import StatusReader, literal
from elasti.resolver.proxy.h2.held import HeaderBlockRecoder, HeldFrames
from elasti.resolver.proxy.port import Port
from elasti.resolver.proxy.statistics import SERVED
from elasti.resolver.proxy.upstream.pod_connection import PodConnection

_FIRST_FINAL = 200
# Not counted as control frames: they carry a request, or let the pod send more of its response.
_TRAFFIC = frozenset((HEADERS, DATA, WINDOW_UPDATE))


class FrameRelay:
    """Relays frames between a client and its pod."""

    __slots__ = (
        "_acks_from_client",
        "_acks_from_pod",
        "_blocks",
        "_flood",
        "_from_client",
        "_from_pod",
        "_is_grpc",
        "_recoder",
        "_statuses",
        "_streams",
        "_unreadable",
        "goaway_sent",
    )  # fmt: skip

    def __init__(
        self,
        streams: H2Streams,
        held: HeldFrames,
        *,
        acks_from_client: int,
        is_grpc: bool,
        flood: H2FloodGuard | None = None,
    ) -> None:
        self._streams = streams
        self._flood = flood or H2FloodGuard()
        self._is_grpc = is_grpc
        self._recoder = held.recoder
        self._acks_from_pod = held.acks_from_pod
        self._acks_from_client = max(acks_from_client - held.acks_seen, 0)
        self._from_client = H2FrameWalker(whole_blocks=self._recoder is not None)
        self._from_pod = H2FrameWalker(whole_blocks=True)
        self._blocks, self._statuses = HeaderBlockAssembler(), StatusReader()
        self._unreadable = False
        self.goaway_sent = False

    @property
    def between(self) -> bool:
        """Whether one of our frames may be sent to the client now."""
        return self._from_pod.between

    # to the pod

    def to_pod(self, data: bytes) -> bytes:
        """Return the bytes for the pod. Raises H2Error."""
        data, frames = self._from_client.walk(data)
        edits: list[H2FrameEdit] = []
        if self._recoder is not None:
            self._recoder.begin_read()
        for found in frames:
            if found.kind not in _TRAFFIC or found.is_idle_data:
                self._flood.count()
            if found.kind == HEADERS and found.stream > self._streams.last:
                self._streams.opens(found.stream, is_grpc=self._is_grpc)
            elif found.kind == RST_STREAM:
                self._streams.closes(found.stream)
            elif self._acks_from_client and _is_ack(found):
                self._acks_from_client -= 1
                edits.append(H2FrameEdit.without(found))
            if self._recoder is not None and found.kind in BLOCKS:
                edits.append(_reencoded(self._recoder, found, data))
        return edited(data, edits) if edits else data

    # from the pod

    def from_pod(self, data: bytes, *, stepping_aside: bool) -> bytes:
        """Return the bytes for the client."""
        data, frames = self._from_pod.walk(data)
        boundary, edits = self._from_pod.boundary, []
        for found in frames:
            edit = self._frame(found, data)
            if edit is not None:
                edits.append(edit)
        if edits:
            data, boundary = edited(data, edits), -1
        if boundary >= 0 and stepping_aside and not self.goaway_sent:
            self.goaway_sent = True
            data = data[:boundary] + goaway(LAST_POSSIBLE_STREAM) + data[boundary:]
        return data

    def _frame(self, found: H2Frame, data: bytes) -> H2FrameEdit | None:
        kind = found.kind
        if kind in BLOCKS:
            return self._part(found, data)
        if kind == DATA:
            if found.flags & END_STREAM:
                self._streams.closes(found.stream)
        elif kind == RST_STREAM:
            self._streams.closes(found.stream)
        elif kind == GOAWAY:
            self.goaway_sent = True
        elif self._acks_from_pod and _is_ack(found):
            self._acks_from_pod -= 1
            return H2FrameEdit.without(found)
        return None

    def _part(self, found: H2Frame, data: bytes) -> H2FrameEdit | None:
        """Inspect a frame of a header block; the last one of a response head may get more fields."""
        if self._unreadable or found.end > len(data):
            self._part_unread(found)
            return None
        try:
            block = self._blocks.add(found, data[found.at + HEADER_SIZE : found.end])
            status = self._statuses.read(block.fragment) if block is not None else None
        except ValueError:
            self._part_unread(found)
            return None
        edit = None
        if block is not None and block.kind != PUSH_PROMISE:
            if status is not None and status >= _FIRST_FINAL:
                edit = self._answer(block, status, found, data)
            if block.ends_stream:
                self._streams.closes(block.stream)
        return edit

    def _part_unread(self, found: H2Frame) -> None:
        self._unreadable = True
        if found.kind == HEADERS:
            stream = self._streams.get(found.stream)
            if stream is not None:
                stream.answered = True
            if found.flags & END_STREAM:
                self._streams.closes(found.stream)

    def _answer(
        self, block: HeaderBlock, status: int, found: H2Frame, data: bytes
    ) -> H2FrameEdit | None:
        stream = self._streams.get(block.stream)
        if stream is None or stream.answered:
            return None
        self._streams.answers(stream, status)
        if stream.held_for is None:
            return None
        fields = literal(b"x-elasti-cold-start", b"true") + literal(
            b"server-timing", b"elasti-hold;dur=%.1f" % (stream.held_for * 1000)
        )
        wire = with_more(found, data[found.at : found.end], fields)
        return H2FrameEdit(found.at, found.end, wire)


def _is_ack(found: H2Frame) -> bool:
    # One with a payload is an error of the sender, for its peer to refuse. Dropped, what follows would become frames.
    return found.kind == SETTINGS and bool(found.flags & ACK) and not found.length


def _reencoded(recoder: HeaderBlockRecoder, found: H2Frame, data: bytes) -> H2FrameEdit:
    if found.end > len(data):
        raise H2Error("a header block frame is larger than 64 KiB")
    wire = recoder.add(found, data[found.at + HEADER_SIZE : found.end])
    return H2FrameEdit(found.at, found.end, wire)


class H2Stream:
    """An open request. `held_for` is how long it was held, or None."""

    __slots__ = ("answered", "began", "held_for", "is_grpc", "parent")

    def __init__(self, began: float, parent: bytes = b"", *, is_grpc: bool) -> None:
        self.parent = parent
        self.is_grpc = is_grpc
        self.answered = False
        self.began = began
        self.held_for: float | None = None


class H2Streams:
    """The open streams by number. `last` is the highest number ever opened."""

    __slots__ = ("_handler", "_open", "last")

    def __init__(self, handler: Port) -> None:
        self._handler = handler
        self._open: dict[int, H2Stream] = {}
        self.last = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[int, H2Stream]]:
        return iter(self._open.items())

    def get(self, number: int) -> H2Stream | None:
        """Return an open stream."""
        return self._open.get(number)

    def opens(self, number: int, *, is_grpc: bool, parent: bytes = b"") -> None:
        """Open a stream for a request; `parent` is its traceparent, if it is traced."""
        self.last = number
        handler = self._handler
        now = handler.now()
        handler.upstream.arrived(now)
        handler.statistics.requests += 1
        handler.statistics.active += 1
        self._open[number] = H2Stream(now, parent, is_grpc=is_grpc)

    def released(self) -> None:
        """Stop the hold time of all streams."""
        now = self._handler.now()
        for stream in self._open.values():
            stream.held_for = now - stream.began

    def answers(self, stream: H2Stream, status: int, outcome: str = SERVED) -> None:
        """Count the final head of a response."""
        stream.answered = True
        statistics = self._handler.statistics
        statistics.answers[status // 100].add(self._handler.now() - stream.began)
        if stream.held_for is not None:
            statistics.hold_ended(
                status, stream.held_for, outcome, since=stream.began, parent=stream.parent
            )

    def closes(self, number: int) -> None:
        """Close a stream. Safe to repeat."""
        if self._open.pop(number, None) is not None:
            self._handler.statistics.active -= 1

    def clear(self) -> None:
        """Close all streams."""
        self._handler.statistics.active -= len(self._open)
        self._open.clear()


class H2Client(Protocol):
    """The client's side of a joined connection."""

    def from_pod(self, data: bytes) -> None:
        """Pass the pod's frames on."""

    def pod_lost(self, *, clean: bool) -> None:
        """The pod closed the connection, or broke it."""

    def flow(self, *, flowing: bool) -> None:
        """Resume or pause reading from the client."""


class H2PodSide(asyncio.Protocol):
    """The connection to the pod, once it is joined to the client's."""

    __slots__ = ("_client", "_connection", "_paused", "_transport")

    def __init__(self, client: H2Client, connection: PodConnection) -> None:
        self._client: H2Client | None = client
        self._connection = connection
        self._paused = False
        assert connection.transport is not None
        self._transport = connection.transport

    def write(self, data: bytes) -> None:
        """Send bytes to the pod."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def flow(self, *, flowing: bool) -> None:
        """Resume or pause reading from the pod."""
        if self._transport.is_closing() or self._paused is not flowing:
            return
        self._paused = not flowing
        if flowing:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def drop(self) -> None:
        """Close after pending bytes are sent, without notifying the client's side."""
        self._client = None
        self._transport.close()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Forward the bytes."""
        if self._client is not None:
            self._client.from_pod(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The pod closed."""
        client, self._client = self._client, None
        self._connection.lost()
        if client is not None:
            client.pod_lost(clean=exc is None)

    def pause_writing(self) -> None:
        """The pod reads slowly."""
        if self._client is not None:
            self._client.flow(flowing=False)

    def resume_writing(self) -> None:
        """The pod reads again."""
        if self._client is not None:
            self._client.flow(flowing=True)
