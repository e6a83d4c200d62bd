"""Listening sockets: opened for one address family or both, and closed without turning anybody away.

A socket that is closed resets whatever the kernel holds for it: connections whose clients believe
them to be established. So a door is shut before it is taken away. `shut` binds the socket to a network
interface that does not exist: nothing that arrives is for it any more, so no handshake begins, while
those under way and those that ended keep the interface they came by. They are accepted, and when
none is left the socket can be closed. Any user may do that, since Linux 5.7.

Whoever knocks meanwhile is refused, as by a closed port; where other workers share the port, the
kernel may still choose the shut socket for him, cannot answer, and he repeats it after a second, as TCP
does, and meets another worker's socket.

What remains: a handshake that takes longer than HANDSHAKE is reset with its socket, and so is one that
the kernel keeps in a SYN cookie only, as it does when it is flooded. Where a system cannot shut a door,
that is logged once, and who comes between the last look and the close is reset.
"""

from __future__ import annotations

import functools
import logging
import socket

from elasti.resolver.proxy.sockets import watch_peer

# The time, in seconds, that a handshake under way may take: many round trips within a cluster.
HANDSHAKE = 0.1
# In struct tcp_info; on a listening socket it is the length of the accept queue.
_UNACKED = slice(24, 28)
# Linux' number, which Python has no name for, and an interface number that no machine comes to.
_SO_BINDTOIFINDEX = 62
_NOWHERE = 0x7FFFFFFF

_log = logging.getLogger(__name__)


def bound_socket(host: str | None, port: int, *, reuse_port: bool) -> socket.socket:
    """Return a socket bound to a port: on both families where there is no host."""
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
        watch_peer(sock)
        sock.bind((host if host is not None else "::", port))
        sock.settimeout(0)
    except OSError:
        sock.close()
        raise
    return sock


def not_accepted(sock: socket.socket) -> int:
    """How many connections the kernel holds for a listening socket."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED.stop)
    except OSError:
        return 0
    return int.from_bytes(info[_UNACKED], "little")


def shut(sock: socket.socket) -> None:
    """Let no new handshake begin; safe to repeat. Where the system refuses, that is logged once."""
    try:
        if sock.getsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX) != _NOWHERE:
            sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NOWHERE)
    except OSError as error:
        _say_once(str(error))


@functools.cache
def _say_once(why: str) -> None:
    _log.warning(
        "ports cannot be shut before they are closed (%s; it takes Linux 5.7): who connects in that"
        " moment may be reset",
        why,
    )
