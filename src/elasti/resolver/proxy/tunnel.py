"""Bytes both ways, after an upgrade or on a port that is not HTTP.

Back-pressure goes through, and so does half-close: a side that sends no more may still read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.resolver.proxy.pod import PodConnection


class Tunnel:
    """Two transports that carry each other's bytes."""

    __slots__ = ("_client", "pod")

    def __init__(self, client: asyncio.Transport, pod: PodConnection) -> None:
        self._client = client
        self.pod = pod
        assert pod.transport is not None
        pod.transport.set_protocol(_PodEnd(client, pod))

    def from_client(self, data: bytes) -> None:
        """Pass the client's bytes on."""
        if self.pod.transport is not None and not self.pod.transport.is_closing():
            self.pod.transport.write(data)

    def client_eof(self) -> bool:
        """The client sends no more, but may still read: keep its connection."""
        if self.pod.transport is None or self.pod.transport.is_closing():
            return False
        if self.pod.transport.can_write_eof():
            self.pod.transport.write_eof()
        return True

    def client_lost(self) -> None:
        """The client is gone."""
        if self.pod.transport is not None:
            self.pod.transport.close()


class _PodEnd(asyncio.Protocol):
    """The pod's side of a tunnel."""

    __slots__ = ("_client", "_pod")

    def __init__(self, client: asyncio.Transport, pod: PodConnection) -> None:
        self._client = client
        self._pod = pod

    def data_received(self, data: bytes) -> None:
        if not self._client.is_closing():
            self._client.write(data)

    def eof_received(self) -> bool:
        if self._client.is_closing():
            return False
        if self._client.can_write_eof():
            self._client.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._pod.transport = None
        if exc is not None:
            self._client.abort()
        else:
            self._client.close()

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        if not self._client.is_closing():
            self._client.resume_reading()
