"""Clients that keep books: each request is sent once, through a node's service proxy, and waits patiently."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Any

from tests.history.events import Answer, Call
from tests.swarm.cluster import Cluster
from tests.swarm.loop import Process
from tests.swarm.network import MemoryTransport

_PATIENCE = 100.0


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

    def send(self, app: str, *, slow: bool = False) -> None:
        """Send a request from one of the nodes; `slow`: it takes the app longer than a cooldown."""
        node = self.loop.random.choice((0, 1))
        number = f"r{next(self._numbers)}"
        if slow:
            number += f"-{self.loop.random.randint(24, 28)}"
        elif self.loop.random.random() < self.slow:
            number += f"-{self.loop.random.randint(2, 9)}"
        self.processes[node].start(self._send(app, node, number), number)

    async def _send(self, app: str, node: int, number: str) -> None:
        note, loop = self.books.note, self.loop
        note(Call(at=loop.now, id=number, service=app))
        self.open += 1
        status, pod, fault, place = 0, "", "", None
        try:
            async with asyncio.timeout(_PATIENCE):
                view = self.cluster.views[node].get(app) or []
                if not view:
                    raise ConnectionRefusedError("the node knows no endpoint")
                place = loop.random.choice(view)
                status, pod = await self._exchange(place, number, app)
                if not pod.startswith(f"{app}-"):
                    raise ValueError(f"answered by {pod}, of another Service")
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            self.open -= 1
        if status != 200 and not fault:
            fault = f"status {status}"
        through = f" through {place[2]} {place[0]}:{place[1]}" if place and fault else ""
        note(Answer(at=loop.now, id=number, status=status, pod=pod, fault=fault + through))

    async def _exchange(
        self, place: tuple[str, int, str], number: str, app: str
    ) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(place[0], place[1])
        opened = None
        if place[2].startswith("resolver"):
            process = self.cluster.network.addresses[place[0]]
            near: Any = writer.transport
            opened = self._through[number] = Open(number, app, process, near)
        try:
            writer.write(f"GET /{number} HTTP/1.1\r\nHost: app\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ")[1])
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            return status, (await reader.readexactly(length)).decode()
        finally:
            if opened is not None:
                opened.is_open = False
                del self._through[number]
            writer.close()

    def through(self, app: str) -> list[Open]:
        """Return the requests that a resolver has accepted and not answered."""
        found = [one for one in self._through.values() if one.app == app and one.process.alive]
        return [one for one in found if one.accepted_at <= self.loop.now and not one.near.is_over]
