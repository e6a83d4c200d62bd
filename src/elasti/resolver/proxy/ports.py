"""What a Service port speaks, as its `appProtocol` or its name says."""

from __future__ import annotations

import enum

_HTTP = frozenset(
    ("http", "http2", "h2c", "grpc", "grpc-web", "ws", "kubernetes.io/h2c", "kubernetes.io/ws")
)
_TLS = frozenset(("https", "tls", "wss", "kubernetes.io/wss"))


class PortProtocol(enum.Enum):
    """How connections on a port are read, and what of them wakes the workload."""

    # HTTP/1 or h2c, told apart by the first bytes; a request wakes.
    HTTP = "http"
    # Passed through unread; the first byte wakes.
    TLS = "tls"
    # Passed through unread; the connection itself wakes, since servers may speak first.
    TCP = "tcp"
    # Nobody said: HTTP where the first line is a request's, else as TCP.
    DETECT = "detect"

    @classmethod
    def of_port(cls, *, app_protocol: str | None, name: str | None) -> PortProtocol:
        """Read `appProtocol`, else the part of the name before its first dash."""
        said = (app_protocol or "").lower() or (name or "").lower()
        first = said.partition("-")[0]
        if said in _HTTP or first in _HTTP:
            return cls.HTTP
        if said in _TLS or first in _TLS:
            return cls.TLS
        return cls.TCP if first == "tcp" else cls.DETECT
