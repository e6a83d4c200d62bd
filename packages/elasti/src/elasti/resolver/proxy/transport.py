"""Beneath the protocols: bounded reads, what the kernel knows of a peer, and byte tunnels.

Left to itself the loop reads a quarter of a mebibyte at once, and ten thousand held requests would be
gigabytes. So every protocol of a client's connection gives the loop the room to read into: all of a
worker's connections read into one buffer, of which each offers as much as it may keep. A read is over
before the next begins, so the buffer is never wanted twice. A transport that goes from such a protocol to
one of the ordinary kind must be paused in between: uvloop chooses how to read when the reading starts.

A tunnel is two ends of `kubeloop.aio.relay`, after an upgrade or on a port that is not HTTP: back-pressure
goes through, and so does half-close. The ends count what passes and give back what the connections had taken.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import select
import socket
from typing import TYPE_CHECKING, Any

from kubeloop.aio.relay import RelayEnd, tcp_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.resolver.proxy.statistics import TrafficStatistics
    from elasti.resolver.proxy.upstream.pod_connection import PodConnection


READ_SIZE = 64 * 1024


class ReadBuffer:
    """The room that a worker's connections read into, one after the other."""

    __slots__ = ("whole",)

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(READ_SIZE))

    def some(self, size: int) -> memoryview:
        """Return room for so many bytes at most; always for one, since no room is no answer."""
        return self.whole[: max(size, 1)]

    def taken(self, size: int) -> bytes:
        """Return what was read."""
        return self.whole[:size].tobytes()


class BufferedClientProtocol(asyncio.BufferedProtocol, abc.ABC):
    """A protocol that offers the loop the room to read into, and takes bytes from others, too."""

    __slots__ = ()

    @abc.abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take bytes, also those that another protocol of this connection has read."""

    @abc.abstractmethod
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room for the next read."""

    @abc.abstractmethod
    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""


def pause_buffered_reading(transport: asyncio.Transport) -> None:
    """Before a protocol of the ordinary kind is set; the caller that sets it resumes reading."""
    if not transport.is_closing():
        transport.pause_reading()


_TCP_ESTABLISHED = 1
# A peer that vanished is noticed after a minute, also while nothing is sent.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel find vanished peers; on a listening socket, for every connection it accepts."""
    with contextlib.suppress(OSError):
        for level, option, value in _KEEPALIVE:
            sock.setsockopt(level, option, value)


def enable_transport_keepalive(transport: asyncio.Transport) -> None:
    """Let the kernel find out where the peer of a connection vanished."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        enable_keepalive(sock)


def shorten_keepalive(transport: asyncio.Transport) -> None:
    """Ask a peer that sends no more whether it still listens; the kernel of one that is gone denies it.

    It does so when it has forgotten the connection, a minute after the end (`tcp_fin_timeout`).
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)


def is_open(transport: asyncio.Transport) -> bool:
    """Whether the peer has neither closed nor broken the connection, as far as the kernel knows."""
    return tcp_state(transport) == _TCP_ESTABLISHED


_NOW = socket.MSG_DONTWAIT
_HIGH, _LOW = 64 * 1024, 16 * 1024
_IN_A_TURN = 256


class BriefPoll:
    """Watches brief connections: one descriptor of the loop for all, one registration for each."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.reads: dict[int, Callable[[], None]] = {}

    def start(self) -> None:
        """Watch, on the running loop."""
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.epoll.fileno(), self._ready)

    def close(self) -> None:
        """Watch no more."""
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    def _ready(self) -> None:
        for descriptor, _ in self.epoll.poll(0, _IN_A_TURN):
            # One before it may have ended this one.
            if (read := self.reads.get(descriptor)) is not None:
                read()


class BriefTransport(asyncio.Transport):
    """A client's connection that ends with its first answer, as all do after the release.

    The loop's own transports are for long connections: each takes turns of the loop to begin and to end,
    and more calls of the kernel than its request.
    """

    __slots__ = (
        "_buffer", "_closing", "_descriptor", "_ended", "_eof", "_peer", "_poll", "_protocol", "_slow", "_sock", "_waits",
    )  # fmt: skip

    def __init__(
        self, poll: BriefPoll, sock: socket.SocketType, peer: str, protocol: Any
    ) -> None:  # any protocol of asyncio's
        self._poll, self._sock, self._peer, self._protocol = poll, sock, peer, protocol
        self._descriptor = sock.fileno()
        self._buffer = b""
        self._closing = self._ended = self._eof = self._slow = self._waits = False
        protocol.connection_made(self)
        self.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket, or the peer's address."""
        if name == "peername":
            return (self._peer,)
        return self._sock if name == "socket" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol go on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether it is read."""
        return self._descriptor in self._poll.reads

    def pause_reading(self) -> None:
        """Read no more for now."""
        if self._poll.reads.pop(self._descriptor, None) is not None:
            self._poll.epoll.unregister(self._descriptor)

    def resume_reading(self) -> None:
        """Read again."""
        if not self._closing and not self.is_reading():
            self._poll.reads[self._descriptor] = self._read
            self._poll.epoll.register(self._descriptor, select.EPOLLIN)

    def _read(self) -> None:
        if self._closing:
            # A request behind the last answer must not begin: its client sends it again elsewhere.
            return
        protocol, size = self._protocol, READ_SIZE
        try:
            if isinstance(protocol, BufferedClientProtocol):
                size = len(protocol.get_buffer(-1))
            data = self._sock.recv(size, _NOW)
            if data:
                protocol.data_received(data)
            elif protocol.eof_received():
                self.pause_reading()
            else:
                self.close()
        except BlockingIOError:
            pass
        except Exception as error:  # noqa: BLE001 -- reported; it ends this connection
            self._fail(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send as much as the kernel takes, and the rest when it takes more."""
        if not self._ended:
            self._buffer += data
            self._flush()

    def _flush(self) -> None:
        try:
            self._buffer = self._buffer[self._sock.send(self._buffer, _NOW) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)
            return
        if self._waits is not (waits := bool(self._buffer)):
            self._waits = waits
            if waits:
                self._poll.loop.add_writer(self._descriptor, self._flush)
            else:
                self._poll.loop.remove_writer(self._descriptor)
        if self._slow is not (len(self._buffer) > (_LOW if self._slow else _HIGH)):
            self._slow = not self._slow
            (self._protocol.pause_writing if self._slow else self._protocol.resume_writing)()
        if not self._buffer:
            if self._closing:
                self._end(None)
            elif self._eof:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def write_eof(self) -> None:
        """Send no more than what was written."""
        if not self._ended:
            self._eof = True
            self._flush()

    def close(self) -> None:
        """End when all is sent."""
        if not self._closing:
            self._closing = True
            if self._buffer:
                self.pause_reading()
            else:
                self._end(None)

    def abort(self) -> None:
        """End at once."""
        self._fail(None)

    def _fail(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):
            context = {"message": "a connection's protocol failed", "exception": error}
            self._poll.loop.call_exception_handler(context)
        self._closing, self._buffer = True, b""
        if self._waits:
            self._waits = False
            self._poll.loop.remove_writer(self._descriptor)
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._poll.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            # What is closed is not watched any more.
            self._poll.reads.pop(self._descriptor, None)
            self._sock.close()
            # The two refer to each other.
            self._protocol = None


class _TunnelClientEnd(RelayEnd):
    __slots__ = ("_on_speaks", "_statistics")

    def __init__(
        self,
        statistics: TrafficStatistics,
        on_lost: Callable[[], None],
        on_speaks: Callable[[], None] | None,
    ) -> None:
        super().__init__(on_lost)
        self._statistics = statistics
        self._on_speaks = on_speaks

    def data_received(self, data: bytes) -> None:
        if self._on_speaks is not None:
            self._on_speaks()
            self._on_speaks = None
        self._statistics.received += len(data)
        super().data_received(data)

    def write(self, data: bytes) -> None:
        self._statistics.sent += len(data)
        super().write(data)


def tunnel(
    client: asyncio.Transport,
    pod: PodConnection,
    *,
    statistics: TrafficStatistics,
    on_client_lost: Callable[[], None],
    on_client_speaks: Callable[[], None] | None = None,
    client_is_slow: bool = False,
    client_sends_no_more: bool = False,
) -> None:
    """Let two connections carry each other's bytes from now on.

    `client_is_slow` where the client's transport has asked for a pause and not yet taken it back,
    `client_sends_no_more` where its end of the stream was read before.
    """
    statistics.tunnels += 1

    def client_lost() -> None:
        statistics.tunnels -= 1
        on_client_lost()

    near, far = _TunnelClientEnd(statistics, client_lost, on_client_speaks), RelayEnd(pod.lost)
    assert pod.transport is not None
    near.connection_made(client)
    far.connection_made(pod.transport)
    pause_buffered_reading(client)
    client.set_protocol(near)
    near.join(far)
    pod.detach(far)
    if client_sends_no_more:
        near.eof_received()
    if client_is_slow:
        near.pause_writing()
