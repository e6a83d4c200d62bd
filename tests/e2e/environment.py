"""The environment on which scenarios play: Elasti installed in a cluster, and the means to hurt it.

    environment = Environment(testbed)
    await environment.install(Installation(version="1"))
    namespace = await environment.namespace("cycle")
    await environment.apply(*objects)
    host, port = await environment.address(namespace, "web")
    leader = await environment.leader()
    await environment.kill(leader)
    async with environment.testbed.api_away(): ...

Scenarios use the administrator's client to look and to disturb. Operator and resolver run as pods
from the bundle that `elasti manifests` prints, under their own accounts and rights.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from elasti.api.defaults import RESOLVER_ADMIN_PORT
from elasti.api.names import API_VERSION, LEASE_NAME, PLURAL, resolver_slice_name
from kubeloop.client import Client, KubeError, NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.e2e import bundle
from tests.e2e.bundle import Installation
from tests.e2e.testbed import PATIENCE, Testbed, Unsupported
from tests.waiting import eventually

__all__ = ["Address", "Environment", "Installation", "Testbed", "Unsupported"]

T = TypeVar("T")
_MANAGER = "elasti-e2e"
_POLL_SECONDS = 0.1
SERVICES = f"{API_VERSION}/{PLURAL}"
SLICES = "discovery.k8s.io/v1/endpointslices"
DEPLOYMENTS = "apps/v1/deployments"


class Address(NamedTuple):
    """Where clients of a Service connect to."""

    host: str
    port: int


class Environment:
    """Elasti in a cluster."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.installed: Installation | None = None

    @property
    def name(self) -> str:
        """As the report calls it."""
        return self.testbed.name

    @property
    def client(self) -> Client:
        """The administrator's client."""
        return self.testbed.client

    # Elasti itself

    async def install(self, installation: Installation) -> None:
        """Install Elasti, or bring it to another version or setting, and wait until it is ready."""
        await self.apply(bundle.definition())
        await self._established()
        await self.apply(*bundle.foundations(installation))
        operator = await self.address(bundle.NAMESPACE, bundle.OPERATOR_SERVICE)
        await self.apply(*bundle.programs(installation, operator.host))
        for name in (bundle.OPERATOR, bundle.RESOLVER):
            await self.rolled_out(bundle.NAMESPACE, name)
        await self.leader()
        self.installed = installation

    async def operator_pods(self) -> list[JsonObject]:
        """Return the operator's pods that are not going away."""
        return await self.pods(bundle.NAMESPACE, bundle.OPERATOR_SELECTOR)

    async def resolver_pods(self) -> list[JsonObject]:
        """Return the resolver's pods that are not going away."""
        return await self.pods(bundle.NAMESPACE, bundle.RESOLVER_SELECTOR)

    async def leader(self) -> JsonObject:
        """Return the operator pod that leads now; waits until one of the living does."""
        leases = self.client.resource("coordination.k8s.io/v1/leases", namespace=bundle.NAMESPACE)

        async def leading() -> JsonObject | None:
            holder = (await leases.get(LEASE_NAME))["spec"].get("holderIdentity") or ""
            for pod in await self.operator_pods():
                if holder.startswith(pod["metadata"]["name"]):
                    return pod
            return None

        return await self.until(leading, "an operator leads")

    async def roll(self, name: str) -> None:
        """Replace every pod of operator or resolver (`bundle.OPERATOR`, `RESOLVER`), one by one."""
        stamp = {"elasti.e2e/rolled": secrets.token_hex(4)}
        patch = {"spec": {"template": {"metadata": {"annotations": stamp}}}}
        deployments = self.client.resource(DEPLOYMENTS, namespace=bundle.NAMESPACE)
        await deployments.patch(name, MergePatch(patch))
        await self.rolled_out(bundle.NAMESPACE, name)

    # What scenarios put into the cluster

    async def namespace(self, prefix: str) -> str:
        """Make a namespace for a scenario."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        await self.client.resource("v1/namespaces").create({"metadata": {"name": name}})
        return name

    async def apply(self, *objects: JsonObject) -> None:
        """Create or change objects, by server-side apply."""
        for obj in objects:
            resource = await self.client.resource_for(obj["apiVersion"], obj["kind"])
            await resource.apply(obj, field_manager=_MANAGER, force=True)

    async def address(self, namespace: str, service: str) -> Address:
        """Return a Service's own address and first port."""
        found = await self.client.resource("v1/services", namespace=namespace).get(service)
        return Address(found["spec"]["clusterIP"], found["spec"]["ports"][0]["port"])

    async def reachable(self, *addresses: Address) -> None:
        """Wait until addresses accept connections: nodes hear of a new Service later than we do."""
        wanted = [f"{address.host}:{address.port}" for address in addresses]
        process = await self.testbed.spawn(
            [sys.executable, "-m", "tests.e2e.reach", str(PATIENCE), *wanted]
        )
        assert await process.wait() == 0, f"{self.name}: not every one of {wanted} is reachable"

    async def pods(self, namespace: str, selector: str) -> list[JsonObject]:
        """Return the pods that a selector names and that are not going away."""
        resource = self.client.resource("v1/pods", namespace=namespace)
        found = [pod async for pod in resource.items(selector=selector)]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    async def scale(self, namespace: str, deployment: str, replicas: int) -> None:
        """Scale a Deployment as a person does."""
        deployments = self.client.resource(DEPLOYMENTS, namespace=namespace)
        await deployments.patch(deployment, MergePatch({"spec": {"replicas": replicas}}))

    async def replicas(self, namespace: str, deployment: str) -> int:
        """Return how many replicas are asked for."""
        deployments = self.client.resource(DEPLOYMENTS, namespace=namespace)
        return int((await deployments.get(deployment))["spec"].get("replicas", 1))

    async def state(self, namespace: str, name: str) -> str:
        """Return the state that the operator reports of an ElastiService; empty before it does."""
        found = await self.client.resource(SERVICES, namespace=namespace).get(name)
        return str(found.get("status", {}).get("state", ""))

    async def reaches(self, namespace: str, name: str, *states: str) -> None:
        """Wait until an ElastiService is in one of these states."""

        async def there() -> bool:
            return await self.state(namespace, name) in states

        await self.until(there, f"{namespace}/{name} is in {' or '.join(states)}")

    async def slice(self, namespace: str, service: str) -> JsonObject | None:
        """Return the resolver's slice of a Service, where it is published."""
        slices = self.client.resource(SLICES, namespace=namespace)
        try:
            return await slices.get(resolver_slice_name(service))
        except NotFound:
            return None

    async def holding(self, namespace: str, service: str, count: int) -> None:
        """Wait until the resolvers hold so many connections of a Service."""
        pods = await self.resolver_pods()
        resolvers = [f"{pod['status']['podIP']}:{RESOLVER_ADMIN_PORT}" for pod in pods]
        argv = ["tests.e2e.holding", str(PATIENCE), str(count), namespace, service, *resolvers]
        process = await self.testbed.spawn([sys.executable, "-m", *argv], stderr=subprocess.PIPE)
        _, words = await process.communicate()
        assert process.returncode == 0, f"{self.name}: {words.decode()}"

    # Hurting

    async def kill(self, pod: JsonObject, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to every process of a pod, at once. Its kubelet starts what died again."""
        name = pod["metadata"]["name"]
        pids = self.testbed.processes_of(name)
        if not pids:
            raise AssertionError(f"{self.name}: pod {name} has no process to send {signum.name} to")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    async def lose(self, pod: JsonObject) -> None:
        """Let a pod be gone at once and for good, as when its node burns."""
        await self.kill(pod)
        meta = pod["metadata"]
        pods = self.client.resource("v1/pods", namespace=meta["namespace"])
        with contextlib.suppress(NotFound):
            await pods.delete(meta["name"], grace_period=0)

    # Waiting

    async def rolled_out(self, namespace: str, deployment: str) -> None:
        """Wait until every replica of a Deployment is of its newest version, ready, and alone."""
        deployments = self.client.resource(DEPLOYMENTS, namespace=namespace)

        async def done() -> bool:
            found = await deployments.get(deployment)
            status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
            current = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
            counts = [status.get(f"{word}Replicas", 0) for word in ("updated", "available")]
            return current and [*counts, status.get("replicas", 0)] == [wanted] * 3

        await self.until(done, f"{namespace}/{deployment} is rolled out")

    async def until(
        self,
        condition: Callable[[], Awaitable[T | None]],
        what: str,
        *,
        seconds: float = PATIENCE,
    ) -> T:
        """Ask until the answer is true, and return it; an API server that is away is asked again."""
        answer: T = await eventually(
            condition,
            f"{what} ({self.name})",
            timeout=seconds,
            every=_POLL_SECONDS,
            ignore=(KubeError, OSError),
        )
        return answer

    async def _established(self) -> None:
        definitions = self.client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")
        name = bundle.definition()["metadata"]["name"]

        async def served() -> bool:
            conditions = (await definitions.get(name)).get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        await self.until(served, "the definition is established")
        self.client.mapper.invalidate()
