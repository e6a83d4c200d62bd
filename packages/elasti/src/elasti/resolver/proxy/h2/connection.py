"""A client's h2 connection (prior knowledge): held as a whole, then joined to one pod.

Until a pod is found, `held` reads the frames. Then frames pass in both directions as they come (`joined`), and only
a few frames are inserted or dropped.

A connection with a request that was answered here cannot go to a pod: our response has used part of the window
that the pod would count as its own. If another request follows, GOAWAY makes the client reconnect.
"""

from __future__ import annotations

import asyncio

from elasti.resolver.proxy.h2.authority import AuthorityFilter
from elasti.resolver.proxy.h2.frames import (
    INTERNAL_ERROR,
    LAST_POSSIBLE_STREAM,
    PREFACE,
    PROTOCOL_ERROR,
    H2Error,
    H2FloodGuard,
    goaway,
    local_frames,
    refusal_frames,
    rst_stream,
    settings_when_joined,
    settings_while_held,
)
from elasti.resolver.proxy.h2.held import H2Request, HeldFrames
from elasti.resolver.proxy.h2.joined import FrameRelay, H2PodSide, H2Streams
from elasti.resolver.proxy.port import Port
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.upstream.interface import Refusal
from elasti.resolver.proxy.upstream.pod_connection import PodConnection
from elasti.resolver.proxy.upstream.search import UpstreamSearch
from kubeloop.aio.relay import end_writing, is_reset, reset


class H2Connection(UpstreamSearch, BufferedClientProtocol):
    """A client's h2 connection."""

    __slots__ = (
        "_began",
        "_closing",
        "_filter",
        "_flood",
        "_held",
        "_is_grpc",
        "_local",
        "_paused",
        "_pod",
        "_preface",
        "_relay",
        "_replies",
        "_streams",
        "_tick",
        "_transport",
        "_write_paused",
    )  # fmt: skip

    def __init__(self, handler: Port) -> None:
        super().__init__(handler)
        self._transport: asyncio.Transport | None = None
        self._preface = b""
        self._flood = H2FloodGuard()
        self._held: HeldFrames | None = HeldFrames(
            limit=handler.limits.held_bytes, flood=self._flood
        )
        accepts = handler.accepts
        self._filter = AuthorityFilter(accepts, self._flood) if accepts is not None else None
        # Our frames, which wait for the end of the pod's present frame.
        self._replies = b""
        self._relay: FrameRelay | None = None
        self._pod: H2PodSide | None = None
        self._streams = H2Streams(handler)
        # The last stream that was answered here.
        self._local = 0
        self._is_grpc = False
        self._closing = False
        self._paused = self._write_paused = False
        self._tick = self._began = handler.sweeper.tick

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Continue a connection that turned out to be h2 and is already counted."""
        self._transport = transport
        self.handler.sweeper.add(self)
        self.handler.statistics.received -= len(data)
        self.data_received(data)

    # asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        """While there is no pod, read no more than may be kept."""
        del sizehint
        held, buffer = self._held, self.handler.buffer
        if held is None:
            return buffer.whole
        return buffer.some(self.handler.limits.held_bytes - held.size)

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes read."""
        self.data_received(self.handler.buffer.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Forward frames, or read them until a pod is found."""
        self.handler.statistics.received += len(data)
        if self._closing:
            return
        tick = self.handler.sweeper.tick
        self._flood.begin(tick)
        try:
            if self._filter is not None:
                data, replies = self._filter.feed(data)
                self._reply(replies)
            if self._pod is not None:
                self._tick = tick
                self._to_pod(data)
            else:
                self._read(data)
        except H2Error as error:
            self._send_goaway(error=error.code)

    def eof_received(self) -> None:
        """A half-closed h2 client is gone: close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: release everything held for it."""
        del exc
        transport, self._transport = self._transport, None
        self._ends()
        self.handler.sweeper.discard(self)
        if transport is not None:
            self.handler.leaves(transport)

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._write_paused = True
        if self._pod is not None:
            self._pod.flow(flowing=False)
        else:
            self.flow(flowing=False)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._write_paused = False
        if self._pod is not None:
            self._pod.flow(flowing=True)
        else:
            self.flow(flowing=self._has_room())

    # while there is no pod

    def _read(self, data: bytes) -> None:
        if len(self._preface) < len(PREFACE):
            data = self._read_preface(data)
        held = self._held
        assert held is not None
        frames, is_new = held.frames, bool(data) and not held.rest
        for event in held.read(data):
            if isinstance(event, H2Request):
                self._request(event, held)
            else:
                self._cancelled(event.stream)
            if self._closing:
                return
        if is_new or held.frames > frames:
            # Bytes of an unfinished frame are not a sign of life.
            self._tick = self.handler.sweeper.tick
        if held.replies:
            self._write(b"".join(held.replies))
            held.replies.clear()
        self.flow(flowing=self._has_room() and not self._write_paused)
        if self._streams and not (self._waiting or self._opening is not None):
            self.search()

    def _read_preface(self, data: bytes) -> bytes:
        missing = len(PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if not PREFACE.startswith(self._preface):
            raise H2Error("malformed HTTP/2 preface")
        if len(self._preface) == len(PREFACE):
            # gRPC clients send no request before they have the server's SETTINGS.
            self._write(settings_while_held())
        return data[missing:]

    def _request(self, request: H2Request, held: HeldFrames) -> None:
        if request.stream <= max(self._streams.last, self._local):
            return  # trailers
        if not self._streams.last and self._answered_here(request):
            # This connection will never go to a pod.
            held.forget()
        elif self._local:
            self._write(goaway(self._local))
            self._close()
        else:
            self._is_grpc = request.is_grpc
            traced = self.handler.statistics.trace is not None
            parent = request.field(b"traceparent") if traced else None
            self._streams.opens(request.stream, is_grpc=request.is_grpc, parent=parent or b"")

    def _answered_here(self, request: H2Request) -> bool:
        local = self.handler.upstream.answer_locally(request)
        if local is None:
            return False
        self._local = request.stream
        self._write(local_frames(request.stream, local))
        self.handler.statistics.answers[local.status // 100].add(0.0)
        return True

    def _cancelled(self, stream: int) -> None:
        """The client cancelled a held request; without requests, leave the queue."""
        self._streams.closes(stream)
        if not self._streams:
            self.stop_search()

    def _has_room(self) -> bool:
        kept = self.kept()
        return self.has_memory_for(kept) and kept < self.handler.limits.held_bytes

    def kept(self) -> int:
        """Return how many bytes are kept for a pod."""
        return 0 if self._held is None else self._held.size

    # the search for a pod

    @property
    def is_served(self) -> bool:
        """Whether a pod has the connection."""
        return self._pod is not None

    def connected(self, connection: PodConnection) -> None:
        """Send the pod the kept frames, and join the connections."""
        self.found()
        held, self._held = self._held, None
        if self._transport is None or held is None or self._closing:
            connection.drop()
            return
        if self.held_since is not None:
            self._streams.released()
        self._write(settings_when_joined())
        self._relay = FrameRelay(
            self._streams,
            held,
            # The client acknowledges both of our SETTINGS.
            acks_from_client=2,
            is_grpc=self._is_grpc,
            flood=self._flood,
        )
        self._pod = H2PodSide(self, connection)
        self._pod.write(held.kept)
        connection.detach(self._pod)
        if held.rest:
            self._pass_rest(held.rest)
        if self._write_paused and self._pod is not None:
            self._pod.flow(flowing=False)
        self.flow(flowing=True)

    def _pass_rest(self, rest: bytes) -> None:
        try:
            self._to_pod(rest)
        except H2Error as error:
            self._send_goaway(error=error.code)

    def refuse(self, refusal: Refusal) -> None:
        """Answer every stream with the reason and Retry-After."""
        answers, message = [], self.handler.upstream.explain(refusal)
        if self.held_since is not None and self._relay is None:
            self._streams.released()
        for number, stream in self._streams:
            if stream.answered:
                answers.append(rst_stream(number, INTERNAL_ERROR))
                continue
            self._streams.answers(stream, refusal.status, refusal.outcome)
            answers.append(refusal_frames(number, refusal.status, message, grpc=stream.is_grpc))
        # In one write: a client that has its response may close before the rest.
        self._write(b"".join(answers) + goaway(self._streams.last))
        self._close()

    # while there is one

    def _to_pod(self, data: bytes) -> None:
        assert self._relay is not None
        wire = self._relay.to_pod(data)
        if self._pod is not None:
            self._pod.write(wire)

    def from_pod(self, data: bytes) -> None:
        """Forward the pod's frames."""
        self._tick = self.handler.sweeper.tick
        assert self._relay is not None
        aside = self.handler.upstream.stepping_aside
        self._write(self._relay.from_pod(data, stepping_aside=aside))
        if self._replies:
            self._reply(b"")

    def pod_lost(self, *, clean: bool) -> None:
        """The pod closed: close the client's connection, at the end of a frame if possible."""
        self._pod = None
        if self._streams:
            self.handler.statistics.broken += 1
        between = self._relay is None or self._relay.between
        if between and (clean or self._streams):
            self.refuse(Refusal.BROKEN)
        elif self._transport is not None:
            self._ends()
            reset(self._transport)

    # the end

    def _ends(self) -> None:
        self.stop_search()
        self._streams.clear()
        self._held = None
        pod, self._pod = self._pod, None
        if pod is not None:
            pod.drop()

    def _send_goaway(self, *, error: int = 0) -> None:
        self._write(goaway(max(self._streams.last, self._local), error))
        self._close()

    def _close(self) -> None:
        """Half-close, and read on for a while: a reset would discard our last frames."""
        self._ends()
        self._tick = self.handler.sweeper.tick
        transport = self._transport
        if transport is None or transport.is_closing() or self._closing:
            return
        self._closing = True
        self.flow(flowing=True)
        end_writing(transport)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._closing:
            self.handler.statistics.sent += len(data)
            self._transport.write(data)

    def _reply(self, frames: bytes) -> None:
        """Send our frames, but not in the middle of a frame of the pod's."""
        self._replies += frames
        if self._replies and (self._relay is None or self._relay.between):
            replies, self._replies = self._replies, b""
            self._write(replies)

    def flow(self, *, flowing: bool) -> None:
        """Resume or pause reading from the client."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._paused is not flowing:
            return
        self._paused = not flowing
        if flowing:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def sweep(self, tick: int) -> None:
        """Act if a deadline has passed, and send GOAWAY when pods take over."""
        limits, age, transport = self.handler.limits, tick - self._tick, self._transport
        if transport is None or self.gave_up_search(tick):
            return
        if self._closing:
            if age > limits.linger:
                transport.abort()
        elif self._paused and self._waiting and is_reset(transport):
            transport.abort()
        elif self.handler.upstream.stepping_aside and not self._is_searching():
            self._step_aside(age)
        elif self._is_stalled():
            if age > limits.head or self._is_late(tick):
                self._send_goaway(error=PROTOCOL_ERROR)
        elif not self._streams and (age > limits.idle or self._is_late(tick)):
            self._send_goaway()

    def _is_stalled(self) -> bool:
        """Whether the preface or a frame is incomplete."""
        if len(self._preface) < len(PREFACE):
            return True
        return self._held is not None and self._held.rest != b"" and not self._paused

    def _is_late(self, tick: int) -> bool:
        """Whether the first request is overdue."""
        is_new = not (self._streams.last or self._local)
        return is_new and tick - self._began > self.handler.limits.first_request

    def _is_searching(self) -> bool:
        return self._waiting or self._opening is not None

    def _step_aside(self, age: int) -> None:
        """Send GOAWAY, then close once the client has had time to read it."""
        relay = self._relay
        if relay is None:
            self._send_goaway()
        elif not relay.goaway_sent:
            if relay.between:
                relay.goaway_sent = True
                self._write(goaway(LAST_POSSIBLE_STREAM))
        elif not self._streams and age > 1:
            self._send_goaway()
