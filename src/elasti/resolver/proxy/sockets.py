"""What the data path asks of the kernel beside bytes: who is still there."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_TCP_ESTABLISHED, _TCP_CLOSED = 1, 7
# A peer that vanished without a word is noticed after a minute, also while nothing is sent.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def watch_peer(sock: socket.socket) -> None:
    """Let the kernel find vanished peers; on a listening socket, for every connection it accepts."""
    with contextlib.suppress(OSError):
        for level, option, value in _KEEPALIVE:
            sock.setsockopt(level, option, value)


def watch_transport(transport: asyncio.Transport) -> None:
    """Let the kernel find out where the peer of a connection vanished."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        watch_peer(sock)


def watch_closely(transport: asyncio.Transport) -> None:
    """Ask a peer that sends no more whether it still listens; the kernel of one that is gone denies it.

    It does so when it has forgotten the connection, a minute after the end (`tcp_fin_timeout`).
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether the peer has broken the connection; a connection that is not read does not notice."""
    return _state(transport) == _TCP_CLOSED


def is_open(transport: asyncio.Transport) -> bool:
    """Whether the peer has neither closed nor broken the connection, as far as the kernel knows."""
    return _state(transport) == _TCP_ESTABLISHED


def _state(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        state: int = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return 0
    return state
