"""A client's h2 connection (prior knowledge): held whole, then joined to one pod.

Before a pod is found, `h2held` reads for it. From then on frames pass in both directions as they come;
the walkers only count streams, leave out the acknowledgements that were given early, and find the
place between two frames for a GOAWAY when pods take over. Flow control and header compression are the
peers' own: from the pod's first byte on nothing is ours but the frames we put in.

A stream is on its way from its HEADERS to the end that the pod sends, or to a reset from either side.
A connection with a request that was answered here cannot go to a pod any more, since the pod would
miss a part of its compression state: where another request follows, the client is told to come again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.resolver.proxy.h2frames import (
    ACK,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INTERNAL_ERROR,
    LAST_POSSIBLE_STREAM,
    PREFACE,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    Frame,
    Walker,
    frame,
    goaway,
    local_frames,
    refusal_frames,
    rst_stream,
    without,
)
from elasti.resolver.proxy.h2held import Beginning, H2Cancel, H2Error, H2Request
from elasti.resolver.proxy.reading import Reading
from elasti.resolver.proxy.seeker import Seeker
from elasti.resolver.proxy.sockets import is_reset
from elasti.resolver.proxy.target import Refusal
from kubeloop.aio.relay import end_writing, reset

if TYPE_CHECKING:
    from elasti.resolver.proxy.front import Front
    from elasti.resolver.proxy.pod import PodConnection


class _Stream:
    """A request on its way."""

    __slots__ = ("answered", "is_grpc")

    def __init__(self, *, is_grpc: bool) -> None:
        self.is_grpc = is_grpc
        self.answered = False


class H2Connection(Seeker, Reading):
    """One client's h2 connection."""

    __slots__ = (
        "_acks_from_client", "_acks_from_pod", "_asked", "_beginning", "_closing", "_from_client", "_from_pod",
        "_is_grpc", "_last_stream", "_local", "_paused", "_pod", "_preface", "_said_goodbye",
        "_streams", "_stuck", "_tick", "_transport",
    )  # fmt: skip

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._transport: asyncio.Transport | None = None
        self._preface = b""
        self._beginning: Beginning | None = Beginning()
        self._pod: _PodEnd | None = None
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        # The last request that was answered here, and whether one was kept for a pod.
        self._local = 0
        self._asked = False
        self._is_grpc = False
        self._acks_from_client = 0
        self._acks_from_pod = 0
        self._from_client, self._from_pod = Walker(), Walker()
        self._said_goodbye = self._closing = False
        self._paused = self._stuck = False
        self._tick = front.sweeper.tick

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Go on with a connection that turned out to be h2; its port has counted it."""
        self._transport = transport
        self.front.sweeper.add(self)
        self.front.statistics.received -= len(data)
        self.data_received(data)

    # asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take no more than may be kept while there is no pod."""
        del sizehint
        beginning, buffer = self._beginning, self.front.buffer
        if beginning is None:
            return buffer.whole
        return buffer.some(self.front.limits.held_bytes - beginning.size)

    def buffer_updated(self, nbytes: int) -> None:
        """Use what was read."""
        self.data_received(self.front.buffer.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Pass frames on, or read them for a pod that is not found yet."""
        self.front.statistics.received += len(data)
        self._tick = self.front.sweeper.tick
        if self._closing:
            return
        if self._pod is not None:
            self._to_pod(self._pod, data)
            return
        try:
            self._read(data)
        except H2Error:
            self._goodbye(error=PROTOCOL_ERROR)

    def eof_received(self) -> None:
        """An h2 client that sends no more is gone."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: free everything that was held for it."""
        del exc
        transport, self._transport = self._transport, None
        self._ends()
        self.front.sweeper.discard(self)
        if transport is not None:
            self.front.leaves(transport)

    def pause_writing(self) -> None:
        """The client is slow to read."""
        self._stuck = True
        if self._pod is not None:
            self._pod.flow(flowing=False)
        else:
            self._flow(flowing=False)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stuck = False
        if self._pod is not None:
            self._pod.flow(flowing=True)
        else:
            self._flow(flowing=self._has_room())

    # while there is no pod

    def _read(self, data: bytes) -> None:
        if len(self._preface) < len(PREFACE):
            data = self._read_preface(data)
        beginning = self._beginning
        assert beginning is not None
        for event in beginning.read(data):
            match event:
                case H2Request():
                    self._request(event, beginning)
                case H2Cancel():
                    self._cancelled(event.stream)
            if self._closing:
                return
        if beginning.replies:
            self._write(b"".join(beginning.replies))
            beginning.replies.clear()
        self._flow(flowing=self._has_room() and not self._stuck)
        if self._streams and not (self._waiting or self._opening is not None):
            self.seek()

    def _read_preface(self, data: bytes) -> bytes:
        missing = len(PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if not PREFACE.startswith(self._preface):
            raise H2Error("not the preface of HTTP/2")
        if len(self._preface) == len(PREFACE):
            # Clients of gRPC ask nothing before they have seen the server's settings.
            self._write(frame(SETTINGS))
            self._acks_from_client += 1
        return data[missing:]

    def _request(self, request: H2Request, beginning: Beginning) -> None:
        if request.stream <= self._last_stream:
            beginning.kept.append(request.raw)  # trailers
            return
        self._last_stream = request.stream
        if not self._asked and self._answered_here(request):
            # Nothing of this connection will ever go to a pod.
            del beginning.kept[1:]
        elif self._local:
            self._write(goaway(self._local))
            self._close()
        else:
            self._asked = True
            self._is_grpc = request.is_grpc
            beginning.kept.append(request.raw)
            self._opens(request.stream)

    def _answered_here(self, request: H2Request) -> bool:
        local = self.front.target.answer_locally(request)
        if local is None:
            return False
        self._local = request.stream
        self._write(local_frames(request.stream, local.status, local.body))
        self.front.statistics.by_class[local.status // 100] += 1
        return True

    def _cancelled(self, stream: int) -> None:
        """A held request is not wanted any more; without any, the place in the queue is free."""
        self._closes(stream)
        if not self._streams:
            self.stop_seeking()

    def _has_room(self) -> bool:
        beginning = self._beginning
        return beginning is None or beginning.size < self.front.limits.held_bytes

    # the search for a pod

    def connected(self, connection: PodConnection) -> None:
        """Give the pod what was kept, and let frames pass."""
        self.found()
        beginning, self._beginning = self._beginning, None
        if self._transport is None or beginning is None or self._closing:
            connection.drop()
            return
        self._acks_from_pod = beginning.acks_from_pod
        self._acks_from_client = max(self._acks_from_client - beginning.acks_seen, 0)
        self._pod = _PodEnd(self, connection)
        self._pod.write(b"".join(beginning.kept))
        if beginning.rest:
            self._to_pod(self._pod, beginning.rest)
        connection.detach(self._pod)
        if self._stuck:
            self._pod.flow(flowing=False)
        self._flow(flowing=True)

    def refuse(self, refusal: Refusal) -> None:
        """Tell every stream why, and that it may come again."""
        said = []
        for stream, state in self._streams.items():
            self.front.statistics.by_class[refusal.status // 100] += 1
            said.append(
                refusal_frames(stream, refusal.status, refusal.words, grpc=state.is_grpc)
                if not state.answered
                else rst_stream(stream, INTERNAL_ERROR)
            )
        # In one piece: a client that has its answer may hang up on what follows.
        self._write(b"".join(said) + goaway(self._last_stream))
        self._close()

    # frames on their way

    def _to_pod(self, pod: _PodEnd, data: bytes) -> None:
        data, frames = self._from_client.walk(data)
        left_out: list[Frame] = []
        for found in frames:
            if found.kind == HEADERS and found.stream > self._last_stream:
                self._last_stream = found.stream
                self._opens(found.stream)
            elif found.kind == RST_STREAM:
                self._closes(found.stream)
            elif self._acks_from_client and found.kind == SETTINGS and found.flags & ACK:
                self._acks_from_client -= 1
                left_out.append(found)
        pod.write(without(data, left_out) if left_out else data)

    def from_pod(self, data: bytes) -> None:
        """Pass the pod's frames on."""
        self._tick = self.front.sweeper.tick
        data, frames = self._from_pod.walk(data)
        boundary, left_out = self._from_pod.boundary, []
        for found in frames:
            if found.kind == HEADERS or found.flags & END_STREAM:
                if found.kind == SETTINGS and self._acks_from_pod:
                    self._acks_from_pod -= 1
                    left_out.append(found)
                elif found.kind <= HEADERS:
                    self._answers(found)
            elif found.kind == RST_STREAM:
                self._closes(found.stream)
            elif found.kind == GOAWAY:
                self._said_goodbye = True
        if left_out:
            data, boundary = without(data, left_out), -1
        if boundary >= 0 and not self._said_goodbye and self.front.target.stepping_aside:
            self._said_goodbye = True
            data = data[:boundary] + goaway(LAST_POSSIBLE_STREAM) + data[boundary:]
        self._write(data)

    def _answers(self, found: Frame) -> None:
        if found.flags & END_STREAM:
            self._closes(found.stream)
        elif found.stream in self._streams:
            self._streams[found.stream].answered = True

    def _opens(self, stream: int) -> None:
        self.front.target.arrived()
        self.front.statistics.requests += 1
        self.front.statistics.active += 1
        self._streams[stream] = _Stream(is_grpc=self._is_grpc)

    def _closes(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self.front.statistics.active -= 1

    def pod_lost(self, *, clean: bool) -> None:
        """The pod went away: so does the client's connection, at the end of a frame where it can."""
        self._pod = None
        if self._streams:
            self.front.statistics.broken += 1
        if self._from_pod.between and (clean or self._streams):
            self.refuse(Refusal.BROKEN)
        elif self._transport is not None:
            self._ends()
            reset(self._transport)

    # the end

    def _ends(self) -> None:
        self.stop_seeking()
        self.front.statistics.active -= len(self._streams)
        self._streams.clear()
        self._beginning = None
        pod, self._pod = self._pod, None
        if pod is not None:
            pod.drop()

    def _goodbye(self, *, error: int = 0) -> None:
        self._write(goaway(self._last_stream, error))
        self._close()

    def _close(self) -> None:
        """End the connection, and read on for a while, or a reset eats what was said."""
        self._ends()
        self._tick = self.front.sweeper.tick
        transport = self._transport
        if transport is None or transport.is_closing() or self._closing:
            return
        self._closing = True
        self._flow(flowing=True)
        end_writing(transport)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._closing:
            self.front.statistics.sent += len(data)
            self._transport.write(data)

    def flow(self, *, flowing: bool) -> None:
        """Read more of the client's bytes, or none for now: the pod is slow."""
        self._flow(flowing=flowing)

    def _flow(self, *, flowing: bool) -> None:
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
        limits, age, transport = self.front.limits, tick - self._tick, self._transport
        if transport is None or self.stands_too_long(tick):
            return
        if self._closing:
            if age > limits.linger:
                transport.abort()
        elif self._paused and self._waiting and is_reset(transport):
            transport.abort()
        elif self.front.target.stepping_aside and self._pod is not None:
            self._step_aside(age)
        elif not self._streams and age > limits.idle:
            self._goodbye()
        elif len(self._preface) < len(PREFACE) and age > limits.head:
            transport.abort()

    def _step_aside(self, age: int) -> None:
        if not self._said_goodbye and self._from_pod.between:
            self._said_goodbye = True
            self._write(goaway(LAST_POSSIBLE_STREAM))
        elif self._said_goodbye and not self._streams and age > 1:
            self._goodbye()


class _PodEnd(asyncio.Protocol):
    """The pod's side of an h2 connection."""

    __slots__ = ("_client", "_connection", "_paused", "_transport")

    def __init__(self, client: H2Connection, connection: PodConnection) -> None:
        self._client: H2Connection | None = client
        self._connection = connection
        self._paused = False
        assert connection.transport is not None
        self._transport = connection.transport

    def write(self, data: bytes) -> None:
        """Send bytes to the pod."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def flow(self, *, flowing: bool) -> None:
        """Read more of the pod's bytes, or none for now: the client is slow."""
        if self._transport.is_closing() or self._paused is not flowing:
            return
        self._paused = not flowing
        if flowing:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def drop(self) -> None:
        """End the connection after what is on its way; the client's side hears nothing more."""
        self._client = None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._client is not None:
            self._client.from_pod(data)

    def connection_lost(self, exc: Exception | None) -> None:
        client, self._client = self._client, None
        self._connection.lost()
        if client is not None:
            client.pod_lost(clean=exc is None)

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.flow(flowing=False)

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.flow(flowing=True)
