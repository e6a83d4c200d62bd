"""What an operator talks to beside the API server, pretended: resolvers, a Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import msgspec
from aiohttp import web

from elasti.api.types import ElastiService
from elasti.api.wire import ActivityReport, ProbeIdentity, is_probe, probe_answer
from elasti.operator.handover.resolver_client import HttpResolverClient
from kubeloop.client import Client
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.meta import JsonObject
from tests.web_server import web_server

ELASTISERVICES = "elasti.truefoundry.com/v1alpha1/elastiservices"
RESOLVER_NAMESPACE = "elasti"


def loopback() -> str:
    """An address that no other test listens on at this moment, most likely."""
    parts = [random.randrange(2, 254) for _ in range(3)]
    return f"127.{parts[0]}.{parts[1]}.{parts[2]}"


class FakeResolver:
    """Opens the ports that status gives it, answers probes and says what it was told to see."""

    def __init__(self, client: Client, address: str, admin_port: int, *, shown: str = "") -> None:
        self.address = address
        self.shown = shown or address
        self.admin_port = admin_port
        self.reports: dict[tuple[str, str], ActivityReport | None] = {}
        self.quiet = ActivityReport(held=0, open=0)
        self.answers_probes = True
        self.asked: list[tuple[str, str]] = []
        self._factory = SharedInformerFactory(client)
        self._informer = self._factory.informer(ELASTISERVICES, ElastiService)
        self._listeners: dict[int, tuple[ProbeIdentity, asyncio.Server]] = {}
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeResolver]:
        app = web.Application()
        app.router.add_get("/activity", self._activity)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, self.address, self.admin_port).start()
        self.admin_port = runner.addresses[0][1]
        self._informer.add_handler(on_event=self._changed)
        try:
            async with self._factory.running():
                yield self
        finally:
            for _, server in self._listeners.values():
                server.close()
                await server.wait_closed()
            await runner.cleanup()

    def waiting(self, namespace: str, service: str) -> None:
        """Have somebody wait for a Service."""
        self.reports[namespace, service] = ActivityReport(held=1, open=1, last_arrival_age=0.0)

    def endpoint(self, *, ready: bool = True) -> JsonObject:
        return {
            "addresses": [self.shown],
            "conditions": {"ready": ready, "serving": ready, "terminating": False},
            "nodeName": "node-1",
            "zone": "zone-a",
            "targetRef": {
                "kind": "Pod",
                "namespace": RESOLVER_NAMESPACE,
                "name": f"resolver-{self.address}",
                "uid": f"uid-{self.address}",
            },
        }

    async def _changed(self, _event: Any) -> None:
        async with self._lock:
            wanted = self._wanted()
            for port, (identity, server) in list(self._listeners.items()):
                if wanted.get(port) != identity:
                    del self._listeners[port]
                    server.close()
                    await server.wait_closed()
            for port, identity in wanted.items() - self._open():
                server = await asyncio.start_server(self._serve(identity), self.address, port)
                self._listeners[port] = identity, server

    def _wanted(self) -> dict[int, ProbeIdentity]:
        """Whose ports are whose, by status alone; where two claim one, the older has it."""
        by_age = sorted(
            self._informer.store.list(),
            key=lambda es: (es.metadata.creation_timestamp, es.metadata.uid),
            reverse=True,
        )
        return {
            port.resolver_port: ProbeIdentity(es.metadata.namespace, es.spec.service)
            for es in by_age
            for port in es.status.resolver_ports
        }

    def _open(self) -> set[tuple[int, ProbeIdentity]]:
        return {(port, identity) for port, (identity, _) in self._listeners.items()}

    def _serve(self, identity: ProbeIdentity) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = await reader.read(1024)
            if is_probe(data) and self.answers_probes:
                writer.write(probe_answer(identity))
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        return serve

    async def _activity(self, request: web.Request) -> web.Response:
        key = request.query["namespace"], request.query["service"]
        self.asked.append(key)
        report = self.reports.get(key, self.quiet)
        if report is None:
            return web.Response(status=500)
        return web.Response(body=msgspec.json.encode(report))


class Translated(HttpResolverClient):
    """Reaches resolvers on loopback under addresses that a real API server takes."""

    def __init__(self, resolvers: list[FakeResolver]) -> None:
        super().__init__(admin_port=resolvers[0].admin_port)
        self._resolvers = resolvers

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        return await super().owns(self._real(address), port, namespace, service)

    async def activity(
        self, address: str, namespace: str, service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        return await super().activity(self._real(address), namespace, service, hold=hold)

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        return await super().reachable(self._real(address), ended)

    def _real(self, address: str) -> str:
        return next((r.address for r in self._resolvers if r.shown == address), address)


class FakePrometheus:
    """Answers every query with one number, and the uptime query with 1.

    `answers` gives some queries series of their own; `headers` are those of the last question. The
    query `hung` is answered when it `may_answer`.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self.up = 1.0
        self.answers: dict[str, list[float]] = {}
        self.queries: list[str] = []
        self.headers: dict[str, str] = {}
        self.hung = ""
        self.may_answer = asyncio.Event()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with web_server(web.get("/api/v1/query", self._query)) as self.url:
            yield self

    def trigger(self, query: str = "sum(rate(requests[1m]))") -> JsonObject:
        metadata = {"serverAddress": self.url, "query": query, "threshold": "0.5"}
        return {"type": "prometheus", "metadata": metadata}

    async def _query(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.queries.append(query)
        if query == self.hung:
            await self.may_answer.wait()
        self.headers = dict(request.headers)
        up = query.startswith("min_over_time")
        values = [self.up] if up else self.answers.get(query, [self.value])
        result = [{"metric": {}, "value": [0, str(value)]} for value in values]
        return web.json_response(
            {"status": "success", "data": {"resultType": "vector", "result": result}}
        )
