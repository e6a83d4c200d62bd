"""A client's h2 connection (prior knowledge): held whole, then joined to one pod.

Before a pod is found, `held` reads for it. From then on frames pass in both directions as they come
(`joined`); from the pod's first byte on nothing is ours but the frames we put in.

A connection with a request that was answered here cannot go to a pod any more, since our answer took
of the window that the pod believes to be its own: where another request follows, GOAWAY tells the
client to reconnect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.upstream.interface import Refusal
from elasti.resolver.proxy.upstream.search import UpstreamSearch
from kubeloop.aio.relay import end_writing, is_reset, reset

if TYPE_CHECKING:
    import asyncio

    from elasti.resolver.proxy.port_handler import PortHandler
    from elasti.resolver.proxy.upstream.pod_connection import PodConnection


class H2Connection(UpstreamSearch, BufferedClientProtocol):
    """One client's h2 connection."""

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

    def __init__(self, handler: PortHandler) -> None:
        super().__init__(handler)
        self._transport: asyncio.Transport | None = None
        self._preface = b""
        self._flood = H2FloodGuard()
        self._held: HeldFrames | None = HeldFrames(
            limit=handler.limits.held_bytes, flood=self._flood
        )
        accepts = handler.accepts
        self._filter = AuthorityFilter(accepts, self._flood) if accepts is not None else None
        # Frames of ours that wait for the end of a frame of the pod's.
        self._replies = b""
        self._relay: FrameRelay | None = None
        self._pod: H2PodSide | None = None
        self._streams = H2Streams(handler)
        # The last request that was answered here.
        self._local = 0
        self._is_grpc = False
        self._closing = False
        self._paused = self._write_paused = False
        self._tick = self._began = handler.sweeper.tick

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Go on with a connection that turned out to be h2; its port has counted it."""
        self._transport = transport
        self.handler.sweeper.add(self)
        self.handler.statistics.received -= len(data)
        self.data_received(data)

    # asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take no more than may be kept while there is no pod."""
        del sizehint
        held, buffer = self._held, self.handler.buffer
        if held is None:
            return buffer.whole
        return buffer.some(self.handler.limits.held_bytes - held.size)

    def buffer_updated(self, nbytes: int) -> None:
        """Use what was read."""
        self.data_received(self.handler.buffer.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Pass frames on, or read them for a pod that is not found yet."""
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
        """An h2 client that sends no more is gone."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: free everything that was held for it."""
        del exc
        transport, self._transport = self._transport, None
        self._ends()
        self.handler.sweeper.discard(self)
        if transport is not None:
            self.handler.leaves(transport)

    def pause_writing(self) -> None:
        """The client is slow to read."""
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
            # Bytes of a frame that never becomes whole are no sign of life.
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
            raise H2Error("not the preface of HTTP/2")
        if len(self._preface) == len(PREFACE):
            # Clients of gRPC ask nothing before they have seen the server's settings.
            self._write(settings_while_held())
        return data[missing:]

    def _request(self, request: H2Request, held: HeldFrames) -> None:
        if request.stream <= max(self._streams.last, self._local):
            return  # trailers
        if not self._streams.last and self._answered_here(request):
            # Nothing of this connection will ever go to a pod.
            held.forget()
        elif self._local:
            self._write(goaway(self._local))
            self._close()
        else:
            self._is_grpc = request.is_grpc
            self._streams.opens(request.stream, is_grpc=request.is_grpc)

    def _answered_here(self, request: H2Request) -> bool:
        local = self.handler.upstream.answer_locally(request)
        if local is None:
            return False
        self._local = request.stream
        self._write(local_frames(request.stream, local.status, local.body))
        self.handler.statistics.answers[local.status // 100].add(0.0)
        return True

    def _cancelled(self, stream: int) -> None:
        """A held request is not wanted any more; without any, the place in the queue is free."""
        self._streams.closes(stream)
        if not self._streams:
            self.stop_search()

    def _has_room(self) -> bool:
        kept = self.kept()
        return self.has_memory_for(kept) and kept < self.handler.limits.held_bytes

    def kept(self) -> int:
        """Return how much waits for a pod."""
        return 0 if self._held is None else self._held.size

    # the search for a pod

    def connected(self, connection: PodConnection) -> None:
        """Give the pod what was kept, and let frames pass."""
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
            # The client acknowledges both settings that it got from us.
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
        """Answer every stream with the reason, and that it may be retried."""
        said = []
        if self.held_since is not None and self._relay is None:
            self._streams.released()
        for number, stream in self._streams:
            if stream.answered:
                said.append(rst_stream(number, INTERNAL_ERROR))
                continue
            self._streams.answers(stream, refusal.status)
            said.append(
                refusal_frames(number, refusal.status, refusal.message, grpc=stream.is_grpc)
            )
        # In one piece: a client that has its answer may hang up on what follows.
        self._write(b"".join(said) + goaway(self._streams.last))
        self._close()

    # while there is one

    def _to_pod(self, data: bytes) -> None:
        assert self._relay is not None
        wire = self._relay.to_pod(data)
        if self._pod is not None:
            self._pod.write(wire)

    def from_pod(self, data: bytes) -> None:
        """Pass the pod's frames on."""
        self._tick = self.handler.sweeper.tick
        assert self._relay is not None
        aside = self.handler.upstream.stepping_aside
        self._write(self._relay.from_pod(data, stepping_aside=aside))
        if self._replies:
            self._reply(b"")

    def pod_lost(self, *, clean: bool) -> None:
        """The pod went away: so does the client's connection, at the end of a frame where it can."""
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
        """End the connection, and read on for a while, or a reset eats what was said."""
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
        """Send frames of ours as soon as they cut none of the pod's in two."""
        self._replies += frames
        if self._replies and (self._relay is None or self._relay.between):
            replies, self._replies = self._replies, b""
            self._write(replies)

    def flow(self, *, flowing: bool) -> None:
        """Read more of the client's bytes, or none for now."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._paused is not flowing:
            return
        self._paused = not flowing
        if flowing:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def sweep(self, tick: int) -> None:
        """Act where a deadline has passed, and say goodbye when pods take over."""
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
        """Whether the client owes us the rest of the preface or of a frame."""
        if len(self._preface) < len(PREFACE):
            return True
        return self._held is not None and self._held.rest != b"" and not self._paused

    def _is_late(self, tick: int) -> bool:
        """Whether the first request should have come by now."""
        is_new = not (self._streams.last or self._local)
        return is_new and tick - self._began > self.handler.limits.first_request

    def _is_searching(self) -> bool:
        return self._waiting or self._opening is not None

    def _step_aside(self, age: int) -> None:
        """Ask the client to go elsewhere, then wait until it has had the time to read that."""
        relay = self._relay
        if relay is None:
            self._send_goaway()
        elif not relay.goaway_sent:
            if relay.between:
                relay.goaway_sent = True
                self._write(goaway(LAST_POSSIBLE_STREAM))
        elif not self._streams and age > 1:
            self._send_goaway()
