"""Traffic of all kinds for as long as one likes, with faults, while the accounts must stay even.

usage: python -m benchmarks.resolver_soak --seconds N

Clients come, ask, pipeline, upload, stall, vanish and misbehave; the pod answers, delays, breaks off
and disappears for a while. Every answer that comes must be the right one, nothing may be executed
twice that must not be, and at the end nothing may be held, open or grown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.resolver_proxy import OnePod
from elasti.resolver.proxy.front import DataPath
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.ports import PortProtocol
from elasti.resolver.proxy.target import Address, Refusal

_CLIENTS = 60


class Soak:
    """The run: a pod, a data path and a crowd, with one account of what happened."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.executed: Counter[bytes] = Counter()
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.numbers = iter(range(1 << 60))
        self.port = 0

    async def run(self, seconds: float) -> None:
        pod = await asyncio.start_server(self._pod, "127.0.0.1", 0, backlog=4096)
        target = OnePod(Address(*pod.sockets[0].getsockname()[:2]), asleep=False)
        path = DataPath(limits=Limits(head=2.0, body_stall=2.0, linger=1.0, answer=3.0))
        path.start()
        front = path.front(target, PortProtocol.HTTP)
        server = await asyncio.get_running_loop().create_server(front, "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sleep_and_wake(target, end))
            for _ in range(_CLIENTS):
                tasks.create_task(self._client(end))
        target.release()
        await self._settle(front)
        for listener in (server, pod):
            listener.close()
        front.close()
        await path.aclose()

    async def _settle(self, front: Any) -> None:
        counted = front.statistics
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while counted.connections or counted.active:  # noqa: ASYNC110 -- nobody tells
                    await asyncio.sleep(0.1)
        left = (counted.connections, counted.active, counted.held, counted.tunnels)
        if any(left):
            self.wrong.append(f"left behind: connections, active, held, tunnels = {left}")
        for name, times in self.executed.items():
            if times > 1 and name.startswith(b"POST"):
                self.wrong.append(f"executed {times} times: {name!r}")

    async def _sleep_and_wake(self, target: OnePod, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(self.random.uniform(0.2, 1.0))
            target.asleep = True
            await asyncio.sleep(self.random.uniform(0.1, 0.5))
            if self.random.random() < 0.1:
                waiting, target.waiting = target.waiting, {}
                for waiter in waiting:
                    waiter.give_up(Refusal.TIMEOUT)
            target.release()

    # the pod

    async def _pod(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._pod_request(reader, writer):
                pass
        writer.close()

    async def _pod_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        body = await reader.readexactly(size)
        name = b" ".join(head.split(b" ", 2)[:2])
        self.executed[name] += 1
        answer = name + b" %d" % len(body)
        chance = self.random.random()
        if chance < 0.02:
            return False
        if chance < 0.04:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
            await writer.drain()
            return False
        if chance < 0.06:
            await asyncio.sleep(self.random.uniform(0, 0.3))
        if chance < 0.3:
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
                % (len(answer), answer)
            )
            await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()
        return chance > 0.1

    # the clients

    async def _client(self, end: float) -> None:
        kinds = (
            [self._asks] * 6 + [self._pipelines] * 2 + [self._uploads] * 2
            + [self._vanishes, self._stalls, self._misbehaves]
        )  # fmt: skip
        while time.monotonic() < end:
            kind = self.random.choice(kinds)
            try:
                async with asyncio.timeout(30):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    try:
                        await kind(reader, writer)
                        self.seen[kind.__name__] += 1
                    finally:
                        writer.close()
            except (OSError, asyncio.IncompleteReadError):
                self.seen["broken off"] += 1
            except TimeoutError:
                self.wrong.append(f"{kind.__name__} waited for more than 30 s")

    async def _asks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self.random.randrange(1, 20)):
            path = b"/%d" % next(self.numbers)
            writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            if not await self._expect(reader, b"GET %b 0" % path):
                return

    async def _pipelines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths = [b"/%d" % next(self.numbers) for _ in range(self.random.randrange(2, 30))]
        writer.write(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths))
        for path in paths:
            if not await self._expect(reader, b"GET %b 0" % path):
                return

    async def _uploads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path, size = b"/%d" % next(self.numbers), self.random.randrange(1, 500_000)
        writer.write(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path, size))
        writer.write(os.urandom(size))
        await writer.drain()
        await self._expect(reader, b"POST %b %d" % (path, size))

    async def _vanishes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % next(self.numbers))
        await asyncio.sleep(self.random.uniform(0, 0.1))
        writer.transport.abort()

    async def _stalls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            self.random.choice(
                [b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"]
            )
        )
        head = await reader.read(1000)
        # The pod may break off, or nobody wake it, before the patience with the client is over.
        if head.split(b" ")[1] not in (b"408", b"502", b"504"):
            self.wrong.append(f"a client that stalls was told {head[:40]!r}")

    async def _misbehaves(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.random.randbytes(self.random.randrange(1, 2000)) + b"\r\n\r\n")
        head = await reader.read(1000)
        if not head.startswith(b"HTTP/1.1 4"):
            self.wrong.append(f"nonsense was answered with {head[:40]!r}")

    async def _expect(self, reader: asyncio.StreamReader, answer: bytes) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        self.seen[f"status {status.decode()}"] += 1
        if status != b"200":
            return False
        if b"chunked" in head:
            body = (await reader.readuntil(b"0\r\n\r\n")).split(b"\r\n")[1]
        else:
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(size)
        if body != answer:
            self.wrong.append(f"asked for {answer!r} and got {body[:60]!r}")
        return b"connection: close" not in head.lower()


def _descriptors() -> set[str]:
    """Return what sockets the process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith("socket:")}


def _rss() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    soak = Soak(arguments.seed)
    descriptors = _descriptors()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(soak.run(arguments.seconds))
    gc.collect()
    if left := _descriptors() - descriptors:
        soak.wrong.append(f"descriptors were left open: {left}")
    print(
        f"{sum(soak.executed.values())} requests reached the pod; RSS {_rss():.0f} MiB at the end"
    )
    for what, count in sorted(soak.seen.items()):
        print(f"{count:8} {what}")
    for problem in soak.wrong[:20]:
        print(f"WRONG: {problem}")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
