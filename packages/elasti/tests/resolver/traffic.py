"""Requests at a steady rate, every one accounted for: a small client, and pods that count."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from tests.waiting import eventually

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

KEPT = 8


@contextlib.asynccontextmanager
async def served(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    port: int = 0,
    *,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Have every connection to a port talked to, until its peer is gone; yields the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class CountingPod:
    """Answers each request with its own path, and remembers how often it was asked for it."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self.port = 0

    @contextlib.asynccontextmanager
    async def answering(self, port: int = 0) -> AsyncIterator[None]:
        async with served(self._talk, port) as self.port:
            yield

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            if method == "POST":
                await reader.readexactly(4)
            self.executed[path] += 1
            body = path.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


class Connection:
    """A client's connection, of which at most one request is under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.closes = False

    @classmethod
    async def to(cls, address: tuple[str, int]) -> Connection:
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, method: str, path: str) -> None:
        """Ask, and be sure of the answer. Raises OSError, EOFError or AssertionError."""
        body, length = (b"body", "Content-Length: 4\r\n") if method == "POST" else (b"", "")
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{length}\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200 "), head
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert await self.reader.readexactly(size) == path.encode()
        self.closes = b"connection: close" in head

    def close(self) -> None:
        self.writer.close()


class Traffic:
    """GET and POST, over new and over kept connections, in turn, to wherever `route` says."""

    def __init__(self, route: Callable[[], tuple[str, int]], *, name: str = "t") -> None:
        self._route, self._name = route, name
        self._kept: list[tuple[tuple[str, int], Connection]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.asked = 0
        self.lost: list[tuple[tuple[str, int], str]] = []
        """Where a request was sent, and what became of it."""

    @contextlib.asynccontextmanager
    async def flowing(self, rate: float = 200.0) -> AsyncIterator[None]:
        """Ask at a rate; at the end wait for every answer."""
        stop = asyncio.Event()
        asking = asyncio.create_task(self._run(rate, stop))
        try:
            yield
        finally:
            stop.set()
            await asking
            for _, connection in self._kept:
                connection.close()

    async def until(self, more: int) -> None:
        """Wait until so many more were asked."""
        goal = self.asked + more
        await eventually(
            lambda: self.asked >= goal, f"{more} more requests", timeout=50, every=0.01
        )

    async def _run(self, rate: float, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stop.is_set():
            task = asyncio.create_task(self._one(self.asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self.asked += 1
            due = max(due + 1 / rate, loop.time() - 0.1)
            await asyncio.sleep(max(due - loop.time(), 0))
        async with asyncio.timeout(40):
            await asyncio.gather(*self._tasks)

    async def _one(self, number: int) -> None:
        method = "POST" if number % 2 else "GET"
        path, keep = f"/{self._name}/{number}", number % 4 >= 2
        kept = self._kept.pop(0) if keep and self._kept else None
        address, connection = kept or (self._route(), None)
        try:
            async with asyncio.timeout(40):
                connection = connection or await Connection.to(address)
                await connection.ask(method, path)
        except (OSError, EOFError, AssertionError, TimeoutError) as error:
            self.lost.append((address, f"{method} {path} kept={bool(kept)}: {error!r}"))
            keep = False
        if connection is None:
            return
        if keep and not connection.closes and len(self._kept) < KEPT:
            self._kept.append((address, connection))
        else:
            connection.close()
