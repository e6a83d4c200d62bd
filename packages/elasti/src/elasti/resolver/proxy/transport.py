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
import socket
from typing import TYPE_CHECKING

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
