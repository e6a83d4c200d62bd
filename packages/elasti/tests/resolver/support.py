"""A worker on real sockets before a cluster in memory; its clients, and a pod."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import TYPE_CHECKING, Any, cast

from elasti.resolver.app import Worker
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.settings import ResolverSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.resolver.cluster import FakeCluster

    from kubeloop.client import Client

_RANDOM = random.SystemRandom()
_BELOW_EPHEMERAL = (12_000, 32_000)


def free_port() -> int:
    """Return a port that is free, and that no outgoing connection of another test takes meanwhile."""
    while True:
        port = _RANDOM.randrange(*_BELOW_EPHEMERAL)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


SETTLE = 0.1


@contextlib.asynccontextmanager
async def worker(cluster: FakeCluster, url: str, **settings: Any) -> AsyncIterator[Worker]:
    chosen = ResolverSettings(
        operator_url=url,
        host="127.0.0.1",
        shared_port=free_port(),
        engage_settle=SETTLE,
        **settings,
    )
    made = Worker(cast("Client", cluster), chosen, limits=Limits())
    async with made.running():
        yield made


def held(resolver: Worker, service: str = "web") -> int:
    found = resolver.registry.get(ServiceKey("shop", service))
    return found.held if found is not None else 0


async def get(port: int, path: str = "/", host: str = "web") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


class HttpPod:
    """A pod that answers while `answering` is entered, and whose probe passes while `ready` is set."""

    def __init__(self) -> None:
        self.port = free_port()
        self.requests = self.probes = 0
        self.ready = True

    @contextlib.asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                probe = head.startswith(b"GET /ready ")
                self.requests += not probe
                self.probes += probe
                status = b"503 No" if probe and not self.ready else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()
