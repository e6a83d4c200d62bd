"""A data path on real sockets, scripted pods, and clients that send raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Self

from tests.resolver.proxy.memory_upstream import MemoryUpstream

from elasti.resolver.ports.listening_socket import Acceptor, bound_socket
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.port_handler import DataPath, PortHandler
from elasti.resolver.proxy.upstream.interface import PortProtocol, UpstreamAddress
from tests.waiting import eventually

if TYPE_CHECKING:
    pass

# An address of this process's own: on a busy machine a client that looks for a server that is gone
# may find that its port is ours by now.
HOST = f"127.{64 + (os.getpid() >> 16) % 64}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
PATIENCE = 40.0
Handler = "Callable[[Pod, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]"


class Pod:
    """A server that counts what reaches it; its handler speaks for each connection."""

    def __init__(self, handler) -> None:
        self._handler = handler
        self.server: asyncio.Server | None = None
        self.address = UpstreamAddress("", 0)
        self.connections = 0
        self.requests: list[bytes] = []
        self.errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> Self:
        self.server = await asyncio.start_server(self._serve, HOST, port, backlog=4096)
        self.address = UpstreamAddress(*self.server.sockets[0].getsockname()[:2])
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._handler(self, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception as error:
            self.errors.append(error)
            raise
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()

    async def aclose(self) -> None:
        if self.server is not None:
            self.server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Client:
    """A client of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str = "/", fields: str = "") -> None:
        self.send(f"GET {path} HTTP/1.1\r\nHost: web\r\n{fields}\r\n".encode())

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def response(self) -> tuple[int, bytes, bytes]:
        """Read a response with a Content-Length: its status, head and body."""
        head = await self.head()
        status, length = int(head.split(b" ", 2)[1]), 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        async with asyncio.timeout(PATIENCE):
            return status, head, await self.reader.readexactly(length)

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def aclose(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self) -> None:
        self.writer.transport.abort()


class Rig:
    """A data path with one port, and what the test adds."""

    def __init__(
        self, *, limits: Limits | None = None, protocol: PortProtocol = PortProtocol.HTTP
    ) -> None:
        self.upstream = MemoryUpstream()
        self._limits, self._protocol = limits, protocol
        self.path: DataPath
        self.handler: PortHandler
        self.port = 0
        self._pods: list[Pod] = []
        self._clients: list[Client] = []
        self._servers: list[Acceptor] = []

    @property
    def statistics(self):
        return self.handler.statistics

    async def __aenter__(self) -> Self:
        self.path = DataPath(limits=self._limits)
        self.path.start()
        self.handler = self.path.handler(self.upstream, self._protocol)
        self.port = await self.listen(self.handler)
        return self

    async def listen(self, handler: PortHandler) -> int:
        """Listen; on asyncio's loop every connection is a brief one, on uvloop, as mostly, none is."""
        sock = bound_socket(HOST, 0, reuse_port=False)
        is_brief = isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)
        poll = self.path.brief_poll if is_brief else None
        self._servers.append(Acceptor(handler, sock, lambda: poll))
        return sock.getsockname()[1]

    async def __aexit__(self, *exc: object) -> None:
        for client in self._clients:
            client.abort()
        for server in self._servers:
            server.close()
        self.handler.close()
        for pod in self._pods:
            await pod.aclose()
        await self.path.aclose()
        await eventually(lambda: self.statistics.connections == 0)
        assert self.statistics.active == self.statistics.held == self.statistics.tunnels == 0
        assert self.handler.clients.used == self.handler.memory.used == 0
        await eventually(lambda: self.handler.pods.used == 0)
        for pod in self._pods:
            assert not pod.errors

    async def pod(self, handler, *, ready: bool = True, port: int = 0) -> Pod:
        pod = await Pod(handler).start(port)
        self._pods.append(pod)
        if ready:
            self.upstream.pods.append(pod.address)
        return pod

    async def connect(self, port: int | None = None, **options) -> Client:
        client = Client(*await asyncio.open_connection(HOST, port or self.port, **options))
        self._clients.append(client)
        return client

    async def paused(self) -> None:
        """Wait until the one client's connection is not read any more."""
        (transport,) = self.handler._transports
        await eventually(lambda: not transport.is_reading())

    async def held(self, count: int = 1) -> None:
        await eventually(lambda: len(self.upstream.waiting) == count)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """Read a request with or without a Content-Length or a chunked body; None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            body += await reader.readuntil(b"\r\n")
        return head, body
    for line in lower.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head, await reader.readexactly(int(line.partition(b":")[2]))
    return head, b""


async def hello(pod: Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with its own first line and body."""
    while (request := await read_request(reader)) is not None:
        head, body = request
        pod.requests.append(head)
        answer = head.split(b"\r\n")[0] + b"|" + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()


def answering(*pieces: bytes, close: bool = False):
    """Return a handler that answers each request with given bytes."""

    async def handler(pod, reader, writer):
        while (request := await read_request(reader)) is not None:
            pod.requests.append(request[0])
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if close:
                return

    return handler
