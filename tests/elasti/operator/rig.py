"""An operator on a cluster of its own: server and controllers in this process, a kubelet and
resolvers that pretend."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from tests.devcluster.controllers.support import (
    Cluster,
    cluster_on,
    deployment,
    eventually,
)

from elasti.api.crd import custom_resource_definition
from elasti.api.types import ElastiService
from elasti.api.wire import ActivityReport, ProbeIdentity, is_probe, probe_answer
from elasti.operator.app import Operator
from elasti.operator.children import slice_names
from elasti.operator.resolver_client import ResolverClient
from elasti.operator.settings import Settings
from kubeloop.aio.tasks import finish
from kubeloop.aio.wait import poll
from kubeloop.client import AlreadyExists, Client, ClientConfig, NotFound
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.options import WatchOptions
from kubeloop.objects.patches import MergePatch

ELASTISERVICES = "elasti.truefoundry.com/v1alpha1/elastiservices"
SLICES = "discovery.k8s.io/v1/endpointslices"
RESOLVER_NAMESPACE = "elasti"
RESOLVER_SERVICE = "elasti-resolver-service"


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
            for es in self._informer.store.list():
                identity = ProbeIdentity(es.metadata.namespace, es.spec.service)
                for port in es.status.resolver_ports:
                    if port.resolver_port not in self._listeners:
                        server = await asyncio.start_server(
                            self._serve(identity), self.address, port.resolver_port
                        )
                        self._listeners[port.resolver_port] = identity, server

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


class Translated(ResolverClient):
    """Reaches a resolver on loopback under an address that a real API server takes."""

    def __init__(self, resolver: FakeResolver) -> None:
        super().__init__(admin_port=resolver.admin_port)
        self._resolver = resolver

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        return await super().owns(self._real(address), port, namespace, service)

    async def activity(self, address: str, namespace: str, service: str) -> ActivityReport | None:
        return await super().activity(self._real(address), namespace, service)

    def _real(self, address: str) -> str:
        return self._resolver.address if address == self._resolver.shown else address


class Rig:
    """What a test talks to."""

    def __init__(self, cluster: Cluster, resolver: FakeResolver, settings: Settings) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.namespace = cluster.namespace
        self.resolver = resolver
        self.settings = settings
        self.elastiservices = self.client.resource(ELASTISERVICES, namespace=self.namespace)
        self.config: ClientConfig | None = None

    # The operator

    @contextlib.asynccontextmanager
    async def operator(self, **changes: Any) -> AsyncIterator[Operator]:
        """Run an operator; one that fails fails the test."""
        chosen = dataclasses.replace(self.settings, **changes)
        config = self.config or ClientConfig.from_kubeconfig(self.cluster.kubeconfig)
        async with Client(config) as client:
            operator = Operator(
                chosen,
                client=client,
                open_client=lambda: Client(config),
                resolver_port=lambda: Translated(self.resolver),
            )
            task = asyncio.create_task(operator.run(), name="operator")
            try:
                await until_true(lambda: operator.is_synced or task.done())
                if task.done():
                    await task
                yield operator
            finally:
                operator.stop()
                await finish([task], cancel=False)
            await task

    async def wake(self, operator: Operator, service: str, **headers: str) -> tuple[int, Any]:
        """Ask for a wake-up as a resolver does."""
        url = f"http://127.0.0.1:{operator.server.port}/informer/incoming-request"
        body = {"count": 1, "svc": service, "namespace": self.namespace}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as response,
        ):
            return response.status, await response.json()

    # Objects

    async def web(self, replicas: int = 1, name: str = "web", **spec: Any) -> None:
        """A Deployment, its Service and an ElastiService."""
        await self.cluster.deployments.create(deployment(name, replicas))
        await self.service(name)
        await self.elastiservice(name, **spec)

    async def service(self, name: str = "web", **spec: Any) -> JsonObject:
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        body = {"selector": {"app": name}, "ports": ports, **spec}
        return await self.cluster.services.create({"metadata": {"name": name}, "spec": body})

    async def elastiservice(self, name: str = "web", **spec: Any) -> JsonObject:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        body = {"service": name, "scaleTargetRef": target, "cooldownPeriod": 1, **spec}
        return await self.elastiservices.create(
            {
                "apiVersion": "elasti.truefoundry.com/v1alpha1",
                "kind": "ElastiService",
                "metadata": {"name": name},
                "spec": body,
            }
        )

    async def status(self, name: str = "web") -> JsonObject:
        return (await self.elastiservices.get(name)).get("status") or {}

    async def condition(self, kind: str, name: str = "web") -> JsonObject:
        found = (await self.status(name)).get("conditions") or []
        return next((entry for entry in found if entry["type"] == kind), {})

    async def state(self, name: str = "web") -> str:
        return (await self.status(name)).get("state", "")

    async def replicas(self, name: str = "web") -> int:
        return (await self.cluster.deployments.get(name))["spec"]["replicas"]

    async def scale(self, replicas: int, name: str = "web") -> None:
        await self.cluster.deployments.subresource("scale").patch(
            name, MergePatch({"spec": {"replicas": replicas}}), field_manager="kubectl"
        )

    async def slice(self, name: str = "web", family: str = "IPv4") -> JsonObject | None:
        try:
            return await self.client.resource(SLICES, namespace=self.namespace).get(
                slice_names(name)[family]
            )
        except NotFound:
            return None

    async def addresses(self, name: str = "web") -> list[str]:
        found = await self.slice(name)
        return sorted(e["addresses"][0] for e in (found or {}).get("endpoints") or ())

    async def becomes(self, state: str, name: str = "web", *, timeout: float = 15.0) -> None:
        async def is_so() -> bool:
            return await self.state(name) == state

        try:
            await poll(is_so, 0.02, immediate=True, timeout=timeout)
        except TimeoutError:
            raise AssertionError(
                f"{name} should become {state}: {await self.status(name)}"
            ) from None

    async def list_resolvers(self, *endpoints: JsonObject) -> None:
        """Say which resolvers there are."""
        slices = self.client.resource(SLICES, namespace=RESOLVER_NAMESPACE)
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": RESOLVER_SERVICE,
                "labels": {"kubernetes.io/service-name": RESOLVER_SERVICE},
            },
            "addressType": "IPv4",
            "ports": [{"name": "admin", "port": self.resolver.admin_port, "protocol": "TCP"}],
            "endpoints": list(endpoints),
        }
        try:
            await slices.create(body)
        except AlreadyExists:
            await slices.patch(RESOLVER_SERVICE, MergePatch({"endpoints": list(endpoints)}))


async def until_true(condition: Any) -> None:
    await poll(condition, 0.01, immediate=True, timeout=20)


@contextlib.asynccontextmanager
async def rig_on(tmp_path: Path, **changes: Any) -> AsyncIterator[Rig]:
    """A dev cluster with our CRD, a resolver that pretends, and settings with short times."""
    async with cluster_on(tmp_path) as cluster, rig_at(cluster, **changes) as rig:
        yield rig


@contextlib.asynccontextmanager
async def rig_at(cluster: Cluster, *, shown: str = "", **changes: Any) -> AsyncIterator[Rig]:
    """The same on a cluster that runs."""
    client = cluster.client
    with contextlib.suppress(AlreadyExists):
        await client.resource("apiextensions.k8s.io/v1/customresourcedefinitions").create(
            custom_resource_definition()
        )
    with contextlib.suppress(AlreadyExists):
        await client.resource("v1/namespaces").create({"metadata": {"name": RESOLVER_NAMESPACE}})
    await eventually(lambda: _served(client))
    resolver = FakeResolver(client, loopback(), 0, shown=shown)
    async with resolver.running():
        values: dict[str, Any] = {
            "resolver_admin_port": resolver.admin_port,
            "engage_settle": 0.3,
            "release_settle": 0.1,
            "polling_interval": 0.2,
            "finalize_wait": 5.0,
            "resolver_loss_grace": 0.5,
            "sweep_period": 0.5,
            "host": "127.0.0.1",
            "port": 0,
            "health_port": 0,
            "authenticate": False,
            "leader_elect": False,
            "workers": 4,
        }
        rig = Rig(cluster, resolver, Settings(**(values | changes)))
        await rig.list_resolvers(resolver.endpoint())
        yield rig


async def _served(client: Client) -> bool:
    client.mapper.invalidate()
    try:
        await client.mapper.resolve("elastiservices.elasti.truefoundry.com")
    except Exception:
        return False
    return True


class FakePrometheus:
    """Answers every query with one number, and the uptime query with 1."""

    def __init__(self) -> None:
        self.value = 0.0
        self.up = 1.0
        self.queries: list[str] = []
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakePrometheus]:
        app = web.Application()
        app.router.add_get("/api/v1/query", self._query)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def trigger(self, query: str = "sum(rate(requests[1m]))") -> JsonObject:
        metadata = {"serverAddress": self.url, "query": query, "threshold": "0.5"}
        return {"type": "prometheus", "metadata": metadata}

    async def _query(self, request: web.Request) -> web.Response:
        query = request.query["query"]
        self.queries.append(query)
        value = self.up if query.startswith("min_over_time") else self.value
        result = [{"metric": {}, "value": [0, str(value)]}]
        return web.json_response(
            {"status": "success", "data": {"resultType": "vector", "result": result}}
        )


class Recorder:
    """Everything that happened to slices, in the server's own order."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._events: list[tuple[int, str, JsonObject]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Recorder]:
        slices = self._rig.client.resource(SLICES, namespace=self._rig.namespace)
        stream = await slices.watch(WatchOptions(timeout_seconds=3600))
        task = asyncio.create_task(self._record(stream), name="recorder")
        try:
            yield self
        finally:
            await finish([task])
            await stream.close()

    async def _record(self, stream: Any) -> None:
        while events := await stream.read():
            for event in events:
                if event.type in ("ADDED", "MODIFIED", "DELETED"):
                    version = int(event.object["metadata"]["resourceVersion"])
                    self._events.append((version, event.type, event.object))

    def dark_moments(self, service: str = "web") -> list[str]:
        """Every version at which neither a ready pod nor the resolver was in the rotation.

        Counted from the first moment at which one was.
        """
        present: dict[str, JsonObject] = {}
        dark, lit = [], False
        for version, kind, obj in sorted(self._events, key=lambda event: event[0]):
            meta = obj["metadata"]
            if (meta.get("labels") or {}).get("kubernetes.io/service-name") != service:
                continue
            if kind == "DELETED":
                present.pop(meta["name"], None)
            else:
                present[meta["name"]] = obj
            bright = any(
                (endpoint.get("conditions") or {}).get("ready")
                for piece in present.values()
                for endpoint in piece.get("endpoints") or ()
            )
            lit = lit or bright
            if lit and not bright:
                dark.append(f"{version}: {kind} {meta['name']}")
        return dark
