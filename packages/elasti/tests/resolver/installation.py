"""`elasti resolver` as processes before an API server, with an operator and pods of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
from tests.resolver.cluster import fake_operator
from tests.resolver.support import free_port

from devkube.apiserver.server import ApiServer
from elasti.api.crd import custom_resource_definition
from elasti.api.names import (
    API_VERSION,
    ELASTISERVICES,
    MANAGED_BY,
    PRIVATE_LABEL,
    private_service_name,
    resolver_slice_name,
)
from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from kubeloop.client import Client
from kubeloop.client.errors import AlreadyExists, KubeError, NotFound
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICE_LABEL, SLICES
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

# With a limit on descriptors first, where the test asks for one.
_PROGRAM = """
import resource, sys
descriptors = int(sys.argv.pop(1))
if descriptors:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
from elasti.cli.main import main
main()
"""


# What cannot be asked yet is not so yet.
NOT_YET = (OSError, aiohttp.ClientError, KubeError)


class Running:
    """One `elasti resolver`."""

    def __init__(self, process: asyncio.subprocess.Process, admin: str, log: Path) -> None:
        self.process, self.admin, self.log = process, admin, log

    async def ask(self, route: str) -> tuple[int, bytes]:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{self.admin}{route}") as answer:
                return answer.status, await answer.read()

    async def is_ready(self) -> bool:
        return (await self.ask("/readyz"))[0] == 200

    async def activity(self, service: str, namespace: str = "default") -> dict[str, Any]:
        _, body = await self.ask(f"/activity?namespace={namespace}&service={service}")
        return dict(json.loads(body))

    async def holds(self, count: int, service: str = "web") -> None:
        """Wait until so many connections are held."""

        async def so_many() -> bool:
            return (await self.activity(service)).get("held") == count

        await eventually(so_many, ignore=NOT_YET, every=0.05)


class Installation:
    """An API server, and what an operator and Kubernetes do there."""

    def __init__(self, client: Client, kubeconfig: Path, operator: str) -> None:
        self._client, self._kubeconfig, self._operator = client, kubeconfig, operator
        self.woken: asyncio.Queue[str] = asyncio.Queue()
        #: What wakes with a Service, as the operator answers.
        self.parts: dict[str, tuple[WakePart, ...]] = {}

    @contextlib.asynccontextmanager
    async def resolver(
        self,
        *flags: str,
        descriptors: int = 0,
        host: str = "127.0.0.1",
        ready: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Running]:
        """Start one; it is killed at the end where it still runs."""
        admin = free_port()
        log = self._kubeconfig.with_name(f"resolver-{admin}.log")
        settings = {"KUBECONFIG": str(self._kubeconfig), "ELASTI_ENGAGE_SETTLE": "100ms"}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _PROGRAM, str(descriptors), "resolver",
                "--host", host, "--admin-port", str(admin), "--shared-port", "0",
                "--operator-url", self._operator, "--no-authentication", *flags,
                env=os.environ | settings | dict(environment or {}), stderr=output,
            )  # fmt: skip
        shown = f"[{host}]" if ":" in host else host
        running = Running(process, f"{shown}:{admin}", log)
        try:
            if ready:
                await eventually(running.is_ready, ignore=NOT_YET, every=0.05)
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def define(self) -> None:
        """Make ElastiServices known."""
        definitions = self._client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")
        await definitions.create(custom_resource_definition())

    async def namespace(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self._client.resource("v1/namespaces").create(body)

    async def service(
        self,
        service: str,
        port: int,
        *,
        name: str = "http",
        namespace: str = "default",
        **wake: Any,
    ) -> None:
        """Make what an operator makes for a sleeping Service."""
        await self.ports(service, port, name=name, namespace=namespace, **wake)
        services = self._client.resource("v1/services", namespace=namespace)
        meta = {"name": private_service_name(service), "labels": {PRIVATE_LABEL: "true"}}
        ports = [{"name": name, "port": 80}]
        await services.create(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}}
        )

    async def ports(
        self,
        service: str,
        port: int,
        *,
        name: str = "http",
        namespace: str = "default",
        **wake: Any,
    ) -> None:
        """Make an ElastiService that has a resolver port, and nothing else."""
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": service}
        spec = {"service": service, "scaleTargetRef": target, "wake": wake}
        body = {
            "apiVersion": API_VERSION,
            "kind": "ElastiService",
            "metadata": {"name": service},
            "spec": spec,
        }
        objects = self._client.resource(ELASTISERVICES, namespace=namespace)
        made = await eventually(lambda: objects.create(body), ignore=NOT_YET, every=0.05)
        status = {"resolverPorts": [{"name": name, "port": 80, "resolverPort": port}]}
        await objects.subresource("status").replace(made | {"status": status})

    async def remove(self, service: str, *, namespace: str = "default") -> None:
        """Remove the ElastiService of a Service."""
        await self._client.resource(ELASTISERVICES, namespace=namespace).delete(service)

    async def remove_all(self, *, namespace: str = "default") -> None:
        """Remove every ElastiService of a namespace."""
        await self._client.resource(ELASTISERVICES, namespace=namespace).delete_collection()

    async def endpoint(
        self,
        service: str,
        port: int,
        *,
        name: str = "http",
        namespace: str = "default",
        address: str = "127.0.0.1",
        ready: bool = True,
        pod: str = "",
    ) -> None:
        """Do what Kubernetes does when a pod has an address."""
        if not pod:
            pod = f"{service}-{port}"
            with contextlib.suppress(AlreadyExists):
                await self.pod(
                    pod, {"containers": [{"name": "app", "image": "app"}]}, namespace=namespace
                )
        status = MergePatch({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
        pods = self._client.resource("v1/pods", namespace=namespace)
        await pods.subresource("status").patch(pod, status)
        endpoint: dict[str, Any] = {
            "addresses": [address],
            "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "name": pod, "namespace": namespace},
        }
        private = private_service_name(service)
        await self._put_slice(
            f"{private}-x",
            {PRIVATE_LABEL: "true", SERVICE_LABEL: private},
            [endpoint],
            {name: port},
            namespace,
        )

    async def publish(
        self, service: str, ports: dict[str, int], *addresses: str, namespace: str = "default"
    ) -> None:
        """Point a Service at resolvers."""
        await self._put_slice(
            resolver_slice_name(service),
            {MANAGED_BY_LABEL: MANAGED_BY, SERVICE_LABEL: service},
            [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
            ports,
            namespace,
        )

    async def pod(self, name: str, spec: dict[str, Any], *, namespace: str = "default") -> None:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self._client.resource("v1/pods", namespace=namespace).create(body)

    async def _put_slice(
        self,
        name: str,
        labels: dict[str, str],
        endpoints: list[dict[str, Any]],
        ports: dict[str, int],
        namespace: str,
    ) -> None:
        address = endpoints[0]["addresses"][0] if endpoints else "127.0.0.1"
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv6" if ":" in address else "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": n, "port": p, "protocol": "TCP"} for n, p in ports.items()],
        }
        slices = self._client.resource(SLICES, namespace=namespace)
        try:
            known = await slices.get(name)
        except NotFound:
            await slices.create(body)
        else:
            version = {"resourceVersion": known["metadata"]["resourceVersion"]}
            body["metadata"] = {"name": name, "labels": labels} | version
            await slices.replace(body)


@contextlib.asynccontextmanager
async def installation(folder: Path) -> AsyncIterator[Installation]:
    """An API server with ElastiServices defined, and an operator that promises every wake-up."""
    woken: asyncio.Queue[str] = asyncio.Queue()
    parts: dict[str, tuple[WakePart, ...]] = {}

    def on_wake(request: Any) -> IncomingReply:
        woken.put_nowait(request.svc)
        return IncomingReply(WakeOutcome.SCALING, parts=parts.get(request.svc, ()))

    kubeconfig = folder / "kubeconfig"
    async with ApiServer() as server, fake_operator(on_wake) as operator:
        kubeconfig.write_text(server.admin_kubeconfig())
        async with Client.from_kubeconfig(kubeconfig) as client:
            made = Installation(client, kubeconfig, operator)
            made.woken, made.parts = woken, parts
            await made.define()
            yield made
