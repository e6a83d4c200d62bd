"""The pods of a soak: they answer, delay, break off, and echo."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from elasti.resolver.proxy.statistics import TrafficStatistics

if TYPE_CHECKING:
    import random

    from benchmarks.resolver_soak_account import Account
    from elasti.resolver.proxy.upstream.interface import (
        HeldConnection,
        LocalAnswer,
        Refusal,
        RequestFacts,
        TcpWake,
        UpstreamAddress,
        WaitingPage,
    )

_UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


class Pods:
    """Handlers for servers of asyncio's streams."""

    def __init__(self, account: Account, rng: random.Random) -> None:
        self._account, self._random = account, rng

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests with what they asked for."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak first, then echo lines, then say goodbye."""
        with contextlib.suppress(OSError):
            writer.write(b"hello\n")
            while line := await reader.readline():
                self._account.requests += 1
                if self._random.random() < 0.01:
                    writer.transport.abort()
                    return
                writer.write(line)
                await writer.drain()
            writer.write(b"bye\n")
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"\r\nupgrade: websocket\r\n" in head.lower():
            return await self._upgrade(reader, writer)
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        body = await reader.readexactly(size)
        method, path = head.split(b" ", 2)[:2]
        self._account.executed(path)
        return await self._answer(writer, b"%b %b %d" % (method, path, len(body)))

    async def _answer(self, writer: asyncio.StreamWriter, answer: bytes) -> bool:
        chance = self._random.random()
        if chance < 0.02:
            return False
        if chance < 0.04:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
            await writer.drain()
            return False
        if chance < 0.06:
            await asyncio.sleep(self._random.uniform(0, 0.3))
        if chance < 0.3:
            piece = b"%x\r\n%b\r\n" % (len(answer), answer)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + piece)
            await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()
        return chance > 0.1

    async def _upgrade(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Echo bytes, as a WebSocket's are for whoever only passes them."""
        self._account.requests += 1
        writer.write(_UPGRADED)
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        return False


class OnePod:
    """A target with one pod, asleep until it is released."""

    def __init__(self, address: UpstreamAddress, *, asleep: bool) -> None:
        self.address = address
        self.asleep = asleep
        self.stepping_aside = False
        self.tcp_wake: TcpWake = "Connect"
        self.page: WaitingPage | None = None
        self.statistics = TrafficStatistics()
        self.waiting: dict[HeldConnection, None] = {}

    def pick(self) -> UpstreamAddress | None:
        return None if self.asleep else self.address

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        del first
        self.waiting[waiter] = None
        return None

    def leave(self, waiter: HeldConnection) -> None:
        self.waiting.pop(waiter, None)

    def refused(self, address: UpstreamAddress) -> None:
        del address

    def answer_locally(self, asked: RequestFacts) -> LocalAnswer | None:
        del asked
        return None

    def explain(self, refusal: Refusal) -> str:
        return refusal.message

    def ignored(self, rule: str) -> None:
        del rule

    def arrived(self, now: float) -> None:
        del now

    def release(self) -> None:
        self.asleep = False
        waiting, self.waiting = self.waiting, {}
        for waiter in waiting:
            waiter.admit(self.address)
