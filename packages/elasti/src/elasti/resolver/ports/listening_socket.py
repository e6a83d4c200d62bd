"""Listening sockets: bound for one address family or both, closed without resetting clients.

Closing a socket resets the connections in its accept queue, which their clients believe to be
established. So before a socket is closed `stop_new_handshakes` binds it to a network interface that does
not exist: no arriving segment matches it, so no handshake begins, while those under way and
those that are complete keep the interface they came by. They are accepted, and when the queue is empty the
socket can be closed. An unprivileged process may do that since Linux 5.7.

A client that connects meanwhile is refused, as by a closed port; where other workers share the port, the
kernel may still choose the stopped socket, which cannot answer, and the client retransmits its SYN after a
second, as TCP does, and reaches another worker's socket.

What remains: a handshake that takes longer than HANDSHAKE is reset with its socket, and so is one
that the kernel keeps in a SYN cookie only, as it does under a SYN flood. If the system does not
support it, that is logged once, and a connection made between the last check and the close is
reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable
from typing import TypeAlias

from elasti.logger import get_logger
from elasti.resolver.proxy.brief import BriefPoll, BriefTransport
from elasti.resolver.proxy.refused import RefusedConnection
from elasti.resolver.proxy.transport import KEEPALIVE

# The time, in seconds, that a handshake under way may take: many round trips within a cluster.
HANDSHAKE = 0.1
# In struct tcp_info; on a listening socket it is the length of the accept queue.
_UNACKED = slice(24, 28)
# Linux' number, which Python has no name for, and an interface number that no machine comes to.
_SO_BINDTOIFINDEX = 62
_NOWHERE = 0x7FFFFFFF
_BACKLOG = 4096
# A connection takes some twenty microseconds to accept.
_ACCEPTS_IN_A_TURN = 64
_RETRY = 1.0

# Called with the address of the client.
ProtocolFactory: TypeAlias = Callable[[str], asyncio.BaseProtocol]
PollChoice: TypeAlias = Callable[[], BriefPoll | None]

_log = get_logger(__name__)


def bound_socket(host: str | None, port: int, *, reuse_port: bool) -> socket.socket:
    """Return a socket bound to a port, for both address families if there is no host."""
    family = socket.AF_INET6 if host is None or ":" in host else socket.AF_INET
    if host is None and not socket.has_dualstack_ipv6():
        family, host = socket.AF_INET, ""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host is not None))
        KEEPALIVE.enable(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host if host is not None else "::", port))
        sock.settimeout(0)
    except OSError:
        sock.close()
        raise
    return sock


class Acceptor:
    """Accepts the connections of a listening socket, many in one turn of the loop.

    While there is a `poll` for brief ones, each carries one request (`BriefTransport`).
    """

    def __init__(
        self, factory: ProtocolFactory, sock: socket.socket, poll: PollChoice = lambda: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._factory, self._sock, self._poll = factory, sock, poll
        self._family = int(sock.family)
        self._opening: set[asyncio.Task[object]] = set()
        sock.listen(_BACKLOG)
        self._start()

    def close(self) -> None:
        """Stop accepting; open connections continue."""
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _start(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_IN_A_TURN):
            try:
                # As `accept` without its conversions of numbers, which take longer than the call.
                descriptor, peer = self._sock._accept()  # type: ignore[attr-defined]  # not in the stubs
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The kernel goes on to say that there are connections: no descriptor is left for them.
                _log.warning("connections cannot be accepted; retrying", error=str(error))
                self._loop.remove_reader(self._sock)
                self._loop.call_later(_RETRY, self._start)
                return
            # Wrapped at once in an object, which closes it in any case.
            sock = socket.SocketType(self._family, socket.SOCK_STREAM, 0, descriptor)
            protocol = self._factory(peer[0])
            # Not isinstance, which takes longer for a class with abstract methods.
            if type(protocol) is RefusedConnection and protocol.at_once is not None:
                _refuse(sock, protocol.at_once)
            elif (poll := self._poll()) is not None:
                BriefTransport(poll, sock, peer[0], protocol)
            else:
                opening = self._loop.create_task(self._open(protocol, sock))
                self._opening.add(opening)
                opening.add_done_callback(self._opening.discard)

    async def _open(self, protocol: asyncio.BaseProtocol, accepted: socket.SocketType) -> None:
        sock = socket.socket(self._family, socket.SOCK_STREAM, 0, accepted.detach())
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError as error:
            sock.close()
            _log.warning("a connection could not be opened", error=str(error))
            # It was counted when it was accepted, and is counted out when it is lost.
            protocol.connection_made(_Unopened())
            protocol.connection_lost(error)


class _Unopened(asyncio.Transport):
    """Stands for a connection that the loop could not take."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: object) -> None:
        """There is nothing to write to."""

    def close(self) -> None:
        """It is closed."""

    abort = close


def _refuse(sock: socket.SocketType, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.send(answer, socket.MSG_DONTWAIT)
    sock.close()


def accept_queue_length(sock: socket.socket) -> int:
    """How many connections the kernel holds for a listening socket."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED.stop)
    except OSError:
        return 0
    return int.from_bytes(info[_UNACKED], "little")


def stop_new_handshakes(sock: socket.socket) -> None:
    """Refuse new handshakes; safe to repeat. If the system does not support it, that is logged once."""
    try:
        if sock.getsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX) != _NOWHERE:
            sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NOWHERE)
    except OSError as error:
        _warn_once(str(error))


@functools.cache
def _warn_once(error: str) -> None:
    _log.warning(
        "new handshakes cannot be stopped; connections made while a port closes may be reset",
        error=error,
        remedy="Linux 5.7 or newer",
    )
