"""Clients that keep books: each request is sent once, through a node's service proxy, and waits patiently."""

from __future__ import annotations

import asyncio
import itertools

from tests.history.events import Answer, Call
from tests.swarm.cluster import Cluster
from tests.swarm.loop import Process

_PATIENCE = 100.0


class Clients:
    """All clients of a run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.loop, self.books = cluster, cluster.loop, cluster.books
        self._numbers = itertools.count(1)
        self.open = 0
        self.processes = [Process(f"client-{node}", f"10.7.0.{node}", node) for node in (0, 1)]

    def send(self, app: str) -> None:
        """Send a request from one of the nodes."""
        node = self.loop.random.choice((0, 1))
        number = f"r{next(self._numbers)}"
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
                status, pod = await self._exchange(place, number)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            self.open -= 1
        if status != 200 and not fault:
            fault = f"status {status}"
        through = f" through {place[2]} {place[0]}:{place[1]}" if place and fault else ""
        note(Answer(at=loop.now, id=number, status=status, pod=pod, fault=fault + through))

    async def _exchange(self, place: tuple[str, int, str], number: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(place[0], place[1])
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
            writer.close()
