"""What one case has: a namespace on the environment, an app, clients, and ways to look."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

from elasti.api.names import private_service_name
from kubeloop.client import Client, NotFound, Resource
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.e2e.cases.objects import HttpBin
from tests.e2e.cases.prometheus import Prometheus
from tests.e2e.environment import SERVICES, SLICES, Address, Environment


@dataclasses.dataclass(frozen=True, slots=True)
class CaseContext:
    """One case's own part of an environment."""

    environment: Environment
    namespace: str
    prometheus: Prometheus

    @property
    def client(self) -> Client:
        """The administrator's."""
        return self.environment.client

    def resource(self, name: str) -> Resource[JsonObject]:
        """Return a kind, within the case's namespace."""
        return self.client.resource(name, namespace=self.namespace)

    def app(self, **more: Any) -> HttpBin:
        """Return an app to be; see `HttpBin` for what may be chosen."""
        return HttpBin(**{"namespace": self.namespace, **more})

    # Putting things there

    async def serving(self, app: HttpBin) -> HttpBin:
        """Put an app there, and wait until its pods serve."""
        await self.environment.apply(*app.objects())
        await self.reaches(app, "Serve")
        await self.reachable(app)
        return app

    async def sleeping(self, app: HttpBin) -> HttpBin:
        """Put an app there at zero, and wait until the resolver stands for it."""
        app = app.but(replicas=0)
        await self.environment.apply(*app.objects())
        await self.asleep(app)
        return app

    async def scale(self, app: HttpBin, replicas: int) -> None:
        """Scale as `kubectl scale` does."""
        patch = MergePatch({"spec": {"replicas": replicas}})
        await self._workloads(app).subresource("scale").patch(app.name, patch)

    async def reachable(self, app: HttpBin) -> None:
        """Wait until nodes lead the Service's address somewhere."""
        await self.environment.reachable(await self.environment.address(app.namespace, app.name))

    # Looking

    async def replicas(self, app: HttpBin) -> int:
        """Return how many replicas are asked for."""
        return int((await self._workloads(app).get(app.name))["spec"]["replicas"])

    async def status(self, app: HttpBin) -> JsonObject:
        """Return the ElastiService's status."""
        return (await self.resource(SERVICES).get(app.name)).get("status") or {}

    async def mode(self, app: HttpBin) -> str:
        """Return KubeElasti's word for where traffic goes."""
        return str((await self.status(app)).get("mode", ""))

    async def pods(self, app: HttpBin) -> list[JsonObject]:
        """Return the app's pods that are not going away."""
        return await self.environment.pods(self.namespace, f"app={app.name}")

    async def private(self, app: HttpBin) -> JsonObject | None:
        """Return the private Service, where it is."""
        try:
            return await self.resource("v1/services").get(private_service_name(app.name))
        except NotFound:
            return None

    async def slice_addresses(self, app: HttpBin) -> list[str]:
        """Return the resolvers that the app's slice lists."""
        found = await self.environment.slice(self.namespace, app.name)
        return sorted(e["addresses"][0] for e in (found or {}).get("endpoints") or ())

    async def private_endpoints(self, app: HttpBin) -> list[JsonObject]:
        """Return the slices of the private Service."""
        selector = f"kubernetes.io/service-name={private_service_name(app.name)}"
        return [piece async for piece in self.resource(SLICES).items(selector=selector)]

    # Waiting

    async def reaches(self, app: HttpBin, *states: str) -> None:
        """Wait for a state."""
        await self.environment.reaches(self.namespace, app.name, *states)

    async def asleep(self, app: HttpBin) -> None:
        """Wait until an app has no pod and the resolver takes its traffic, on the nodes too."""

        async def rests() -> bool:
            at_zero = await self.replicas(app) == 0 and not await self.pods(app)
            return at_zero and bool(await self.slice_addresses(app))

        await self.reaches(app, "Proxy")
        await self.environment.until(rests, f"{app.name} is at zero behind the resolver")
        assert await self.mode(app) == "proxy"
        await self.reachable(app)

    # Asking

    async def ask(
        self, app: HttpBin, *requests: str | JsonObject, reuse: bool = False
    ) -> list[JsonObject]:
        """Send requests to the Service's address: paths, or requests as `ask` takes them."""
        address = await self.environment.address(self.namespace, app.name)
        return await self.ask_at(address, *requests, reuse=reuse)

    async def ask_at(
        self,
        address: Address,
        *requests: str | JsonObject,
        reuse: bool = False,
        timeout: float = 150.0,
        seconds: float = 0.0,
    ) -> list[JsonObject]:
        """Send requests to an address that is known; again and again for so many seconds."""
        asked = [{"path": item} if isinstance(item, str) else item for item in requests]
        where = {"host": address.host, "port": address.port, "timeout": timeout}
        plan = {**where, "reuse": reuse, "seconds": seconds, "requests": asked}
        answers: list[JsonObject] = await self.run("tests.e2e.cases.ask", json.dumps(plan))
        return answers

    async def run(self, module: str, *arguments: str) -> Any:
        """Run a module of ours where Services can be reached, and read the JSON that it prints."""
        process = await self.environment.testbed.spawn(
            [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, f"{module} failed"
        return json.loads(output)

    def _workloads(self, app: HttpBin) -> Resource[JsonObject]:
        return self.resource(f"apps/v1/{app.kind.lower()}s")
