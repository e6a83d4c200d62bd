"""The clients of a soak: they ask, pipeline, upload, upgrade, stall, vanish and misbehave.

Every answer that comes must be the right one; that one is broken off is part of the game.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine
    from typing import Any

    from benchmarks.resolver_soak_account import Account

    Kind = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

_PATIENCE = 30.0
_UPGRADE = b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


class Clients:
    """Clients of one HTTP port and one TCP port."""

    def __init__(
        self, account: Account, rng: random.Random, *, http_port: int, tcp_port: int
    ) -> None:
        self._account, self._random = account, rng
        self._number = 0
        http: list[Kind] = [
            self.asks, self.pipelines, self.uploads, self.upgrades, self.vanishes, self.stalls,
            self.misbehaves,
        ]  # fmt: skip
        tcp: list[Kind] = [self.talks, self.looks, self.aborts]
        self._ports = dict.fromkeys(http, http_port) | dict.fromkeys(tcp, tcp_port)
        # Drawn by lot: what users do more often than what they should not.
        self._often: list[Kind] = [*http, *tcp, self.asks, self.asks, self.asks, self.asks]
        self._often += [self.asks, self.pipelines, self.uploads, self.upgrades, self.talks]

    async def one(self, end: float) -> None:
        """Be one client after the other until the end."""
        while time.monotonic() < end:
            kind = self._random.choice(self._often)
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._be(kind)
            except (OSError, asyncio.IncompleteReadError):
                self._account.seen["broken off"] += 1
            except TimeoutError:
                self._account.wrong.append(f"{kind.__name__} waited for more than {_PATIENCE} s")

    async def _be(self, kind: Kind) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[kind])
        try:
            await kind(reader, writer)
            self._account.seen[kind.__name__] += 1
        finally:
            writer.close()

    # HTTP

    async def asks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request after the other."""
        for _ in range(self._random.randrange(1, 20)):
            path = self._path()
            writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            if not await self._expect(reader, b"GET %b 0" % path):
                return

    async def pipelines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Many at once."""
        paths = [self._path() for _ in range(self._random.randrange(2, 30))]
        writer.write(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths))
        for path in paths:
            if not await self._expect(reader, b"GET %b 0" % path):
                return

    async def uploads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What must not be executed twice."""
        path, size = b"/post/%d" % self._account.next_post(), self._random.randrange(1, 500_000)
        writer.write(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path, size))
        writer.write(bytes(size))
        await writer.drain()
        await self._expect(reader, b"POST %b %d" % (path, size))

    async def upgrades(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A WebSocket: bytes both ways, and an end of either kind."""
        writer.write(_UPGRADE)
        head = await reader.readuntil(b"\r\n\r\n")
        self._account.seen[f"upgrade {head.split(b' ', 2)[1].decode()}"] += 1
        if not head.startswith(b"HTTP/1.1 101 "):
            return
        for _ in range(self._random.randrange(1, 10)):
            said = os.urandom(self._random.randrange(1, 50_000))
            writer.write(said)
            if await reader.readexactly(len(said)) != said:
                self._account.wrong.append("a WebSocket's bytes came back changed")
        if self._random.random() < 0.3:
            writer.transport.abort()

    async def vanishes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ask, and be gone."""
        del reader
        writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % self._path())
        await asyncio.sleep(self._random.uniform(0, 0.1))
        writer.transport.abort()

    async def stalls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin, and say no more."""
        begun = [b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"]
        writer.write(self._random.choice(begun))
        head = await reader.read(1000)
        # The pod may break off, or nobody wake it, before the patience with the client is over.
        if head.split(b" ")[1] not in (b"408", b"502", b"504"):
            self._account.wrong.append(f"a client that stalls was told {head[:40]!r}")

    async def misbehaves(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say nonsense."""
        writer.write(self._random.randbytes(self._random.randrange(1, 2000)) + b"\r\n\r\n")
        head = await reader.read(1000)
        if not head.startswith(b"HTTP/1.1 4"):
            self._account.wrong.append(f"nonsense was answered with {head[:40]!r}")

    def _path(self) -> bytes:
        self._number += 1
        return b"/%d" % self._number

    async def _expect(self, reader: asyncio.StreamReader, answer: bytes) -> bool:
        """Read an answer; returns whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        self._account.seen[f"status {status.decode()}"] += 1
        if status != b"200":
            return False
        if b"chunked" in head:
            body = (await reader.readuntil(b"0\r\n\r\n")).split(b"\r\n")[1]
        else:
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(size)
        if body != answer:
            self._account.wrong.append(f"asked for {answer!r} and got {body[:60]!r}")
        return b"connection: close" not in head.lower()

    # TCP

    async def talks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear the server's first words, then line for line; end with half a connection."""
        if await reader.readline() != b"hello\n":
            return
        for _ in range(self._random.randrange(1, 10)):
            line = os.urandom(self._random.randrange(1, 1000)).hex().encode() + b"\n"
            writer.write(line)
            heard = await reader.readline()
            if heard != line and heard.endswith(b"\n"):
                self._account.wrong.append("a line came back changed")
            if heard != line:
                return
        writer.write_eof()
        if await reader.read() not in (b"bye\n", b""):
            self._account.wrong.append("there was more than a goodbye")

    async def looks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect and leave, as a health check does."""

    async def aborts(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say something, and break off."""
        del reader
        writer.write(b"never mind\n")
        await asyncio.sleep(self._random.uniform(0, 0.2))
        writer.transport.abort()
