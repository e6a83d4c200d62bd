"""The API server as its clients meet it: late, behind, sometimes wrong about what it did.

Objects and verbs are those of `FakeApi`. Each process has a client of its own, whose requests and watches take
the pretended network's time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from elasti.api.crd import custom_resource_definition
from kubeloop.client.errors import ConnectionLost, ConnectionRefused, RequestTimeout
from kubeloop.client.request import Request
from kubeloop.testing.fake_client import FakeClient, _FakeStreams
from kubeloop.testing.fake_connection import FakeConnection
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.virtual_time import VirtualClock
from tests.swarm.loop import Process, SwarmLoop
from tests.swarm.network import Network


@dataclasses.dataclass
class Trouble:
    """What the server does wrong now: a chance for each request or event, and how late watches are."""

    refuses: float = 0.0
    #: Writes that are made, and reported as timed out.
    lies: float = 0.0
    conflicts: float = 0.0
    #: etcd has no space: nothing is written.
    full: bool = False
    watch_lag: float = 0.02
    #: How much longer each message takes.
    latency: float = 0.0


class Server:
    """The server of a run."""

    def __init__(self, loop: SwarmLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.process = Process("apiserver")
        self.trouble = Trouble()
        self.admin = FakeClient(
            custom_resource_definition(), namespace="shop", clock=VirtualClock()
        )
        self.clients: list[SwarmClient] = []
        self.note: Callable[[str], None] = lambda _line: None
        #: Called as a client sends that a target is to have no replicas.
        self.on_park: Callable[[], None] = lambda: None

    def client(self, process: Process) -> SwarmClient:
        """Return a client for a process."""
        made = SwarmClient(self, process)
        self.clients.append(made)
        return made

    def forget_history(self) -> None:
        """Compact everything, and close every watch: what resumes is answered with 410."""
        for gvr in list(self.admin._api._sources):
            source = self.admin.source(gvr)
            source.bump()
            source.compact()
            source.drop_watches(lose_pending=True)


class SwarmClient(FakeClient):
    """A client of one process."""

    def __init__(self, server: Server, process: Process) -> None:
        super().__init__(namespace="shop", server=server.admin)
        connection = _Connection(self._api, server, process)
        self._connection = connection
        self._pipeline._transport = connection
        self._streams = _Streams(self._api, connection)


class _Connection(FakeConnection):
    """Requests with latency and trouble."""

    def __init__(self, api: Any, server: Server, process: Process) -> None:
        super().__init__(api)
        self.server, self.process = server, process

    async def travel(self) -> None:
        """Take the time of one message."""
        server = self.server
        late = server.trouble.latency
        await asyncio.sleep(server.network.delay(self.process, server.process) + late)

    async def send(self, request: Request, auth: Any, *, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout or 60.0):
                return await self._send(request, auth)
        except TimeoutError:
            raise RequestTimeout(f"{request}: no answer in {timeout:g} s") from None

    async def _send(self, request: Request, auth: Any) -> Any:
        if request.path.endswith("/scale") and b'"replicas":0' in (request.body or b""):
            self.server.on_park()
        await self.travel()
        trouble, draw = self.server.trouble, self.server.loop.random
        is_write = request.method != "GET"
        lies = is_write and draw.random() < trouble.lies
        answer = await super().send(request, auth, timeout=0)
        self.requests.clear()
        if is_write:
            self.server.note(
                f"{self.process.name} {request.method} {request.path} {answer.status}{' lied' if lies else ''}"
            )
        if lies:
            raise RequestTimeout(f"{request}: no answer")
        await self.travel()
        return answer

    def check(self, request: Request, *, is_write: bool) -> None:
        """Refuse what the server refuses now."""
        trouble, draw = self.server.trouble, self.server.loop.random
        if draw.random() < trouble.refuses:
            raise ConnectionRefused(f"{request}: refused")
        if is_write and trouble.full and "leases" not in request.path:
            raise api_error(500, "InternalError", "etcdserver: mvcc: database space exceeded")
        if request.method == "PUT" and draw.random() < trouble.conflicts:
            raise api_error(409, "Conflict", "the object has been modified")

    def _intercept(self, request: Request, *, done: bool) -> None:
        if not done:
            self.check(request, is_write=request.method != "GET")


class _Streams(_FakeStreams):
    async def watch(self, request: Any, codec: Any, *, seconds: int) -> Any:
        connection: Any = self._connection
        await connection.travel()
        connection.check(request, is_write=False)
        inner = await super().watch(request, codec, seconds=seconds)
        connection.requests.clear()
        return _LateWatch(inner, connection)


class _LateWatch:
    """A watch whose events come late."""

    def __init__(self, inner: Any, connection: _Connection) -> None:
        self._inner, self._connection = inner, connection
        self._opened = connection.server.loop.now

    async def read(self) -> Any:
        events = await self._inner.read()
        server, process = self._connection.server, self._connection.process
        deaf = process.deaf_until - server.loop.now
        if deaf > 0 and self._opened < process.deaf_from:
            await asyncio.sleep(deaf)
            raise ConnectionLost("the kernel gave the connection up")
        lag = server.loop.random.expovariate(1.0 / server.trouble.watch_lag)
        if lag > 10.0:
            raise ConnectionLost("a watch broke")
        await asyncio.sleep(lag)
        await self._connection.travel()
        return events

    async def close(self) -> None:
        await self._inner.close()
