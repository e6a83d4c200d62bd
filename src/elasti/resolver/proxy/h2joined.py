"""Two h2 connections that are one: frames pass in both directions as they come.

What is looked at is little: which streams begin and end, the status of each answer, and the places
between two frames. What is changed is less: acknowledgements that were given or asked for early are
left out, the answer to a request that was held says so, and a GOAWAY is put in when pods take over.
Flow control and header compression are the peers' own.

A pod whose header blocks cannot be followed is passed on unread from there: its answers arrive, they
are only not counted any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.resolver.proxy.h2blocks import Block, Blocks, with_more
from elasti.resolver.proxy.h2fields import StatusReader, literal
from elasti.resolver.proxy.h2frames import (
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
    Edit,
    Frame,
    Walker,
    edited,
    goaway,
)
from elasti.resolver.proxy.h2held import H2Error

if TYPE_CHECKING:
    from elasti.resolver.proxy.h2held import Beginning, Recoder
    from elasti.resolver.proxy.h2streams import Streams

_FIRST_FINAL = 200


class Joined:
    """What passes between a client and the pod it was joined to."""

    __slots__ = (
        "_acks_from_client", "_acks_from_pod", "_blind", "_blocks", "_from_client", "_from_pod",
        "_is_grpc", "_recoder", "_statuses", "_streams", "said_goodbye",
    )  # fmt: skip

    def __init__(
        self, streams: Streams, beginning: Beginning, *, acks_from_client: int, is_grpc: bool
    ) -> None:
        self._streams = streams
        self._is_grpc = is_grpc
        self._recoder = beginning.recoder
        self._acks_from_pod = beginning.acks_from_pod
        self._acks_from_client = max(acks_from_client - beginning.acks_seen, 0)
        self._from_client = Walker(whole_blocks=self._recoder is not None)
        self._from_pod = Walker(whole_blocks=True)
        self._blocks, self._statuses = Blocks(), StatusReader()
        self._blind = False
        self.said_goodbye = False

    @property
    def between(self) -> bool:
        """Whether a frame of ours may follow what the client was sent."""
        return self._from_pod.between

    # to the pod

    def to_pod(self, data: bytes) -> bytes:
        """Return what the pod is sent of the client's bytes. Raises H2Error."""
        data, frames = self._from_client.walk(data)
        edits: list[Edit] = []
        for found in frames:
            if found.kind == HEADERS and found.stream > self._streams.last:
                self._streams.opens(found.stream, is_grpc=self._is_grpc)
            elif found.kind == RST_STREAM:
                self._streams.closes(found.stream)
            elif self._acks_from_client and found.kind == SETTINGS and found.flags & ACK:
                self._acks_from_client -= 1
                edits.append(Edit.without(found))
            if self._recoder is not None and found.kind in BLOCKS:
                edits.append(_anew(self._recoder, found, data))
        return edited(data, edits) if edits else data

    # from the pod

    def from_pod(self, data: bytes, *, stepping_aside: bool) -> bytes:
        """Return what the client is sent of the pod's bytes."""
        data, frames = self._from_pod.walk(data)
        boundary, edits = self._from_pod.boundary, []
        for found in frames:
            edit = self._frame(found, data)
            if edit is not None:
                edits.append(edit)
        if edits:
            data, boundary = edited(data, edits), -1
        if boundary >= 0 and stepping_aside and not self.said_goodbye:
            self.said_goodbye = True
            data = data[:boundary] + goaway(LAST_POSSIBLE_STREAM) + data[boundary:]
        return data

    def _frame(self, found: Frame, data: bytes) -> Edit | None:
        kind = found.kind
        if kind in BLOCKS:
            return self._part(found, data)
        if kind == DATA:
            if found.flags & END_STREAM:
                self._streams.closes(found.stream)
        elif kind == RST_STREAM:
            self._streams.closes(found.stream)
        elif kind == GOAWAY:
            self.said_goodbye = True
        elif kind == SETTINGS and found.flags & ACK and self._acks_from_pod:
            self._acks_from_pod -= 1
            return Edit.without(found)
        return None

    def _part(self, found: Frame, data: bytes) -> Edit | None:
        """Look at a frame of a header block; the last of an answer's head may get more fields."""
        if self._blind or found.end > len(data):
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

    def _part_unread(self, found: Frame) -> None:
        self._blind = True
        if found.kind == HEADERS:
            stream = self._streams.get(found.stream)
            if stream is not None:
                stream.answered = True
            if found.flags & END_STREAM:
                self._streams.closes(found.stream)

    def _answer(self, block: Block, status: int, found: Frame, data: bytes) -> Edit | None:
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
        return Edit(found.at, found.end, wire)


def _anew(recoder: Recoder, found: Frame, data: bytes) -> Edit:
    if found.end > len(data):
        raise H2Error("a frame of a header block larger than 64 KiB")
    wire = recoder.add(found, data[found.at + HEADER_SIZE : found.end])
    return Edit(found.at, found.end, wire)
