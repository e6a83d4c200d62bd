"""Connections that notice when their peer is gone without a word.

A control-plane node that loses power answers nothing and closes nothing; a watch on it would wait for
minutes. So the kernel asks the peer after half a minute of silence, and gives up when a question, or
anything else that was sent, has had no acknowledgement for a quarter of a minute more: 45 seconds in all,
as long as client-go takes.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

_QUIET = 30
_INTERVAL = 5
_QUESTIONS = 3
_MOST = _QUIET + _INTERVAL * _QUESTIONS
# Linux has them all; where one is missing, the others do what they can.
_OPTIONS = (
    ("TCP_KEEPIDLE", _QUIET),
    ("TCP_KEEPINTVL", _INTERVAL),
    ("TCP_KEEPCNT", _QUESTIONS),
    ("TCP_USER_TIMEOUT", _MOST * 1000),
)


def notice_silence(sock: socket.socket) -> None:
    """Let a TCP connection end by itself, with an error, when its peer is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if (number := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, number, value)


def noticing_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for one result of `getaddrinfo`: aiohttp's `socket_factory`."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    notice_silence(sock)
    return sock
