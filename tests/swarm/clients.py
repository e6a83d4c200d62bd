"""Clients that keep books: each request is sent once, through a node's service proxy, and waits patiently."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator
from typing import Any

from tests.history.events import Answer, Call
from tests.swarm.cluster import Cluster
from tests.swarm.loop import Process
from tests.swarm.network import MemoryTransport

_PATIENCE = 100.0


@dataclasses.dataclass(eq=False)
class _Told:
    """What a client learned of its request."""

    status: int = 0
    pod: str = ""
    fault: str = ""
    place: str = ""


@dataclasses.dataclass(eq=False)
class Open:
    """A connection of a client to a resolver."""

    number: str
    app: str
    process: Process
    near: MemoryTransport
    is_open: bool = True

    @property
    def is_slow(self) -> bool:
        return "-" in self.number

    @property
    def accepted_at(self) -> float:
        return self.near.peer.accepted_at


class Clients:
    """All clients of a run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.loop, self.books = cluster, cluster.loop, cluster.books
        self._numbers = itertools.count(1)
        self.open = 0
        #: How many of all requests take an app some seconds.
        self.slow = 0.0
        self._through: dict[str, Open] = {}
        self.processes = [Process(f"client-{node}", f"10.7.0.{node}", node) for node in (0, 1)]

    def send(self, app: str, *, slow: bool = False, keeps: float = 0.0) -> None:
        """Send a request from one of the nodes.

        `slow`: it takes the app longer than a cooldown; `keeps`: another comes on its connection so much later.
        """
        node = self.loop.random.choice((0, 1))
        number = f"r{next(self._numbers)}"
        if slow:
            number += f"-{self.loop.random.randint(24, 28)}"
        elif self.loop.random.random() < self.slow:
            number += f"-{self.loop.random.randint(2, 9)}"
        self.processes[node].start(self._send(app, node, number, keeps), number)

    async def _send(self, app: str, node: int, number: str, keeps: float) -> None:
        writer: Any = None
        try:
            async with self._in_books(app, number) as told:
                view = self.cluster.views[node].get(app) or []
                if not view:
                    raise ConnectionRefusedError("the node knows no endpoint")
                place = self.loop.random.choice(view)
                told.place = f" through {place[2]} {place[0]}:{place[1]}"
                reader, writer = await asyncio.open_connection(place[0], place[1])
                await self._exchange(reader, writer, place, number, app, told)
            if keeps and not told.fault and _is_resolver(place):
                await asyncio.sleep(keeps)
                # What has ended is not used again, as in any client's pool.
                if not reader.at_eof() and not writer.transport.is_over:
                    number += "k"
                    async with self._in_books(app, number) as told:
                        told.place = f" through {place[2]} {place[0]}:{place[1]}, kept"
                        await self._exchange(reader, writer, place, number, app, told)
        finally:
            if writer is not None:
                writer.close()

    @contextlib.asynccontextmanager
    async def _in_books(self, app: str, number: str) -> AsyncIterator[_Told]:
        note, loop, told = self.books.note, self.loop, _Told()
        note(Call(at=loop.now, id=number, service=app))
        self.open += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                yield told
                if not told.pod.startswith(f"{app}-"):
                    raise ValueError(f"answered by {told.pod}, of another Service")
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            told.fault = f"{type(error).__name__}: {error}"
        finally:
            self.open -= 1
        if told.status != 200 and not told.fault:
            told.fault = f"status {told.status}"
        place = told.place if told.fault else ""
        fault = told.fault + place
        note(Answer(at=loop.now, id=number, status=told.status, pod=told.pod, fault=fault))

    async def _exchange(
        self,
        reader: Any,
        writer: Any,
        place: tuple[str, int, str],
        number: str,
        app: str,
        told: _Told,
    ) -> None:
        opened = None
        if _is_resolver(place):
            process = self.cluster.network.addresses[place[0]]
            opened = self._through[number] = Open(number, app, process, writer.transport)
        try:
            writer.write(f"GET /{number} HTTP/1.1\r\nHost: app\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            told.status = int(head.split(b" ")[1])
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            told.pod = (await reader.readexactly(length)).decode()
        finally:
            if opened is not None:
                opened.is_open = False
                del self._through[number]

    def through(self, app: str) -> list[Open]:
        """Return the requests that a resolver has accepted and not answered."""
        found = [one for one in self._through.values() if one.app == app and one.process.alive]
        return [one for one in found if one.accepted_at <= self.loop.now and not one.near.is_over]


def _is_resolver(place: tuple[str, int, str]) -> bool:
    return place[2].startswith("resolver")
