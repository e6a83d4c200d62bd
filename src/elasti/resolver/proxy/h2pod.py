"""The pod's side of an h2 connection: one of its own for every client's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from elasti.resolver.proxy.pod import PodConnection


class PodsClient(Protocol):
    """The client's side."""

    def from_pod(self, data: bytes) -> None:
        """The pod said something."""

    def pod_lost(self, *, clean: bool) -> None:
        """The pod's connection ended."""

    def flow(self, *, flowing: bool) -> None:
        """The pod takes more bytes, or wants none for now."""


class PodEnd(asyncio.Protocol):
    """The connection to the pod, from the moment the client's is joined to it."""

    __slots__ = ("_client", "_connection", "_paused", "_transport")

    def __init__(self, client: PodsClient, connection: PodConnection) -> None:
        self._client: PodsClient | None = client
        self._connection = connection
        self._paused = False
        assert connection.transport is not None
        self._transport = connection.transport

    def write(self, data: bytes) -> None:
        """Send bytes to the pod."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def flow(self, *, flowing: bool) -> None:
        """Read more of the pod's bytes, or none for now: the client is slow."""
        if self._transport.is_closing() or self._paused is not flowing:
            return
        self._paused = not flowing
        if flowing:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def drop(self) -> None:
        """End the connection after what is on its way; the client's side hears nothing more."""
        self._client = None
        self._transport.close()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self._client is not None:
            self._client.from_pod(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The pod is gone."""
        client, self._client = self._client, None
        self._connection.lost()
        if client is not None:
            client.pod_lost(clean=exc is None)

    def pause_writing(self) -> None:
        """The pod is slow to read."""
        if self._client is not None:
            self._client.flow(flowing=False)

    def resume_writing(self) -> None:
        """The pod reads again."""
        if self._client is not None:
            self._client.flow(flowing=True)
