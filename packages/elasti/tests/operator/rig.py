"""An operator on a cluster: server and controllers are real, kubelet and resolvers pretend.

The same on the dev cluster's server and on Kubernetes' own; `servers` makes rigs on either.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from tests.controllers.support import Cluster, deployment
from tests.operator.fakes import (
    ELASTISERVICES,
    RESOLVER_NAMESPACE,
    FakePrometheus,
    FakeResolver,
    Translated,
    loopback,
)

from elasti.operator.app import OperatorApp
from elasti.operator.model.children import slice_names
from elasti.operator.settings import OperatorSettings
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.client import AlreadyExists, Client, ClientConfig, NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from kubeloop.testing.virtual_time import VirtualClock, VirtualTimeLoop
from tests.waiting import eventually

__all__ = ["SLICES", "FakePrometheus", "FakeResolver", "Rig", "loopback"]

SLICES = "discovery.k8s.io/v1/endpointslices"
RESOLVER_SERVICE = "elasti-resolver-service"
PATIENCE = 45.0
"""How long to wait for what takes a second on an idle machine."""


class FastClock:
    """The wall clock of an impatient test: it runs so many times faster from now on.

    Cooldowns are whole seconds, and so are the times in objects; with this they pass sooner.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began = asyncio.get_running_loop().time()
        self._start = dt.datetime.now(dt.UTC)

    def now(self) -> dt.datetime:
        passed = (asyncio.get_running_loop().time() - self._began) * self._speed
        return self._start + dt.timedelta(seconds=passed)


class Rig:
    """What a test talks to."""

    def __init__(
        self,
        cluster: Cluster,
        resolver: FakeResolver,
        settings: OperatorSettings,
        config: ClientConfig,
        *,
        shown: str = "",
    ) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.namespace = cluster.namespace
        self.resolver = resolver
        self.resolvers = [resolver]
        self.settings = settings
        self.config = config
        loop = asyncio.get_running_loop()
        virtual = isinstance(loop, VirtualTimeLoop)
        self.clock: Clock = (
            VirtualClock(dt.datetime.now(dt.UTC) - dt.timedelta(seconds=loop.time()))
            if virtual
            else SystemClock()
        )
        self.elastiservices = self.client.resource(ELASTISERVICES, namespace=self.namespace)
        self._shown = shown

    # The operator and what it talks to

    @contextlib.asynccontextmanager
    async def operator(self, **changes: Any) -> AsyncIterator[OperatorApp]:
        """Run an operator; one that fails fails the test."""
        chosen = dataclasses.replace(self.settings, **changes)
        async with Client(self.config) as client:
            operator = OperatorApp(
                chosen,
                client=client,
                open_client=lambda: Client(self.config),
                clock=self.clock,
                resolver_client=lambda: Translated(self.resolvers),
            )
            task = asyncio.create_task(operator.run(), name="operator")
            try:
                await eventually(lambda: operator.is_synced or task.done())
                if task.done():
                    await task
                yield operator
            finally:
                operator.stop()
                await finish([task], cancel=False)
            await task

    def hurry(self, speed: float = 5.0) -> None:
        """Let cooldowns pass sooner, for operators that start after this."""
        self.clock = FastClock(speed)

    @contextlib.asynccontextmanager
    async def another_resolver(self, shown: str = "") -> AsyncIterator[FakeResolver]:
        """Run one more, which nobody knows before it is listed."""
        shown = shown or (self._shown and f"{self._shown}.{len(self.resolvers) + 1}")
        made = FakeResolver(self.client, loopback(), self.resolver.admin_port, shown=shown)
        async with made.running():
            self.resolvers.append(made)
            yield made

    async def wake(self, operator: OperatorApp, service: str, **headers: str) -> tuple[int, Any]:
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

    async def tells(self, kind: str, reason: str, name: str = "web") -> JsonObject:
        """Wait until a condition has a reason, and return it."""

        async def is_so() -> bool:
            return (await self.condition(kind, name)).get("reason") == reason

        try:
            await eventually(is_so, timeout=PATIENCE)
        except AssertionError:
            found = await self.condition(kind, name)
            raise AssertionError(f"{name} should say {kind}: {reason}, not {found}") from None
        return await self.condition(kind, name)

    async def says(self, kind: str, words: str, name: str = "web") -> JsonObject:
        """Wait until a condition's message has these words, and return it."""

        async def is_so() -> bool:
            return words in (await self.condition(kind, name)).get("message", "")

        try:
            await eventually(is_so, timeout=PATIENCE)
        except AssertionError:
            found = await self.condition(kind, name)
            raise AssertionError(f"{name} should say {words!r} in {kind}, not {found}") from None
        return await self.condition(kind, name)

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

    async def addresses(self, name: str = "web", family: str = "IPv4") -> list[str]:
        found = await self.slice(name, family)
        return sorted(e["addresses"][0] for e in (found or {}).get("endpoints") or ())

    async def becomes(self, state: str, name: str = "web", *, timeout: float = PATIENCE) -> None:
        async def is_so() -> bool:
            return await self.state(name) == state

        try:
            await eventually(is_so, timeout=timeout)
        except AssertionError:
            raise AssertionError(
                f"{name} should become {state}: {await self.status(name)}"
            ) from None

    async def events(self, reason: str) -> list[JsonObject]:
        """What was told under that reason."""
        return [event for event in await self.cluster.list("events") if event["reason"] == reason]

    async def list_resolvers(self, *endpoints: JsonObject, family: str = "IPv4") -> None:
        """Say which resolvers there are of an address family."""
        slices = self.client.resource(SLICES, namespace=RESOLVER_NAMESPACE)
        name = f"{RESOLVER_SERVICE}-{family.lower()}"
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/service-name": RESOLVER_SERVICE},
            },
            "addressType": family,
            "ports": [{"name": "admin", "port": self.resolver.admin_port, "protocol": "TCP"}],
            "endpoints": list(endpoints),
        }
        try:
            await slices.create(body)
        except AlreadyExists:
            await slices.patch(name, MergePatch({"endpoints": list(endpoints)}))
