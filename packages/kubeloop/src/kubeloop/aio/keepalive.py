"""TCP keepalive: the kernel ends a connection whose peer has vanished."""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple


class Keepalive(NamedTuple):
    """When the kernel probes a silent peer, and when it gives up. In seconds."""

    idle: int
    interval: int
    probes: int
    #: Also give up when sent bytes stay unacknowledged for as long (TCP_USER_TIMEOUT).
    bounds_sending: bool = False

    def enable(self, sock: socket.socket | None) -> None:
        """Set the options of a socket; on a listening one, of each connection that it accepts.

        Options that the system lacks are skipped. Some transports have no socket: then nothing is set.
        """
        if sock is None:
            return
        limit = self.idle + self.interval * self.probes
        options = {
            "TCP_KEEPIDLE": self.idle,
            "TCP_KEEPINTVL": self.interval,
            "TCP_KEEPCNT": self.probes,
            "TCP_USER_TIMEOUT": limit * 1000 if self.bounds_sending else None,
        }
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if value is not None and (number := getattr(socket, name, None)) is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, number, value)
