"""Listening sockets: opened for one address family or both, and closed without turning anybody away.

A socket that is closed resets whatever the kernel holds for it: connections whose clients believe
them to be established. So a door is shut before it is taken away. `shut` attaches a filter to the
socket that drops what begins a handshake and lets everything else pass; handshakes under way end as
they would have, connections that wait are accepted, and when none is left the socket can be closed.
Whoever knocks meanwhile repeats it after a second, as TCP does, and meets another worker's socket, or
nobody's.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct

from elasti.resolver.proxy.sockets import watch_peer

# The time, in seconds, that a handshake under way may take: many round trips within a cluster.
HANDSHAKE = 0.1
# In struct tcp_info; on a listening socket it is the length of the accept queue.
_UNACKED = slice(24, 28)
# Linux' number, which Python has no name for; whoever may open a socket may use it.
_SO_ATTACH_FILTER = 26
# Load the flags of the TCP header; SYN without ACK is dropped, everything else is taken whole.
_PROGRAM = (
    (0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF),
)  # fmt: skip


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
    """Let no new handshake begin; where the system does not know how, they go on."""
    program = b"".join(struct.pack("HBBI", *line) for line in _PROGRAM)
    kept = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HL", len(_PROGRAM), ctypes.addressof(kept))
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
