"""The TCP connections that this process has, and how soon each notices that its peer is gone."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path


def connections_to(port: int) -> Iterator[socket.socket]:
    """Yield this process's TCP connections to a port, each a copy."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copied = os.dup(int(entry.name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(copied).st_mode):
            os.close(copied)
            continue
        with socket.socket(fileno=copied) as sock:
            try:
                peer = sock.getpeername()
            except OSError:
                continue
            if isinstance(peer, tuple) and peer[1] == port:
                yield sock


def seconds_to_notice(sock: socket.socket) -> tuple[int, ...]:
    """Return keepalive's idle time, interval and probes, and the time for sending; empty without keepalive."""
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return ()
    found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    return *found, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) // 1000
