"""A population of ElastiServices with their targets and Services, made through the API.

One in twenty is awake: its Deployment asks for a replica, and both its Services, the public one and
the private one to come, have a ready endpoint. The others sleep.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from elasti.api.crd import custom_resource_definition
from elasti.api.names import PRIVATE_LABEL, private_service_name
from kubeloop.aio.wait import poll
from kubeloop.client import KubeError
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kubeloop.client import Client

ELASTISERVICES = "elasti.truefoundry.com/v1alpha1/elastiservices"
DEPLOYMENTS = "apps/v1/deployments"
SERVICES = "v1/services"
SLICES = "discovery.k8s.io/v1/endpointslices"
SYSTEM = "elasti"
_RESOLVER = "elasti-resolver-service"
_NAMESPACES = 50
_AWAKE_EVERY = 20
_WRITERS = 32
_COOLDOWN = 5


class Name(NamedTuple):
    """Who is who in the population; ElastiService, Service and Deployment share the name."""

    namespace: str
    name: str
    awake: bool


def name_of(number: int) -> Name:
    """Return the name of one of them."""
    return Name(
        f"bench-{number % _NAMESPACES}", f"svc-{number:05}", awake=number % _AWAKE_EVERY == 1
    )


async def concurrently(items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> None:
    """Do the work for every item, by several at a time."""
    left = iter(items)

    async def writer() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(writer())


class Population:
    """Makes and touches objects."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.names: list[Name] = []

    async def prepare(self, resolver: str, admin_port: int) -> None:
        """Make what is there before the first ElastiService: kinds, namespaces, a resolver."""
        definitions = self._client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")
        await definitions.create(custom_resource_definition())
        await self.make_namespaces(SYSTEM)
        labels = {"kubernetes.io/service-name": _RESOLVER}
        await self._slice(SYSTEM, _RESOLVER, labels, resolver, admin_port)
        await poll(self._is_served, 0.1, immediate=True, timeout=60)

    async def make_namespaces(self, *more: str) -> None:
        """Make those that the population lives in."""
        spaces = self._client.resource("v1/namespaces")
        for name in (*more, *(f"bench-{number}" for number in range(_NAMESPACES))):
            await spaces.create({"metadata": {"name": name}})

    async def grow(self, size: int) -> None:
        """Make as many as are missing."""
        await self.add([name_of(number) for number in range(len(self.names), size)])

    async def add(self, new: list[Name]) -> None:
        """Make these."""
        await concurrently(new, self._make)
        self.names += new

    async def touch(self, mark: str) -> None:
        """Change something that nobody looks at, of every object."""
        patch = MergePatch({"metadata": {"annotations": {"bench.example.com/touch": mark}}})
        for resource in (ELASTISERVICES, DEPLOYMENTS, SERVICES):
            await self._patch_all(resource, lambda _name: patch)

    async def give_triggers(self, prometheus: str) -> None:
        """Give each a Prometheus trigger with a query of its own."""
        await self._patch_all(ELASTISERVICES, lambda name: MergePatch(_triggers(name, prometheus)))

    def chains(self) -> list[tuple[Name, Name, Name]]:
        """Return every third with the two that follow it in its namespace, if all of them sleep."""
        step, names = _NAMESPACES, self.names
        firsts = (number for number in range(len(names)) if number // step % 3 == 0)
        threes = (
            (names[n], names[n + step], names[n + 2 * step])
            for n in firsts
            if n + 2 * step < len(names)
        )
        return [three for three in threes if not any(name.awake for name in three)]

    async def join(self) -> None:
        """Have the first of each chain depend on the second, and that on the third."""
        needs = {
            name: three[at + 1] for three in self.chains() for at, name in enumerate(three[:2])
        }
        objects = self._client.resource(ELASTISERVICES)

        async def change(name: Name) -> None:
            patch = MergePatch({"spec": {"dependsOn": [{"name": needs[name].name}]}})
            await objects.patch(name.name, patch, namespace=name.namespace)

        await concurrently(needs, change)

    async def replace_resolver(self, pod: str) -> None:
        """Have another pod stand where the resolver was; it answers at the same address."""
        slices = self._client.resource(SLICES, namespace=SYSTEM)
        (piece,) = [item async for item in slices.items()]
        (endpoint,) = piece["endpoints"]
        reference = endpoint["targetRef"] | {"name": pod, "uid": pod}
        patch = MergePatch({"endpoints": [endpoint | {"targetRef": reference}]})
        await slices.patch(piece["metadata"]["name"], patch)

    async def _patch_all(self, resource: str, patch: Callable[[Name], MergePatch]) -> None:
        objects = self._client.resource(resource)

        async def change(name: Name) -> None:
            await objects.patch(name.name, patch(name), namespace=name.namespace)

        await concurrently(self.names, change)

    async def _is_served(self) -> bool:
        try:
            [item async for item in self._client.resource(ELASTISERVICES).items()]
        except KubeError:
            return False
        return True

    async def _make(self, name: Name) -> None:
        resource = self._client.resource
        space = name.namespace
        await resource(DEPLOYMENTS, namespace=space).create(_deployment(name))
        await resource(SERVICES, namespace=space).create(_service(name))
        if name.awake:
            private = private_service_name(name.name)
            by_controller = {"endpointslice.kubernetes.io/managed-by": "bench"}
            for service, extra in ((name.name, {}), (private, {PRIVATE_LABEL: "true"})):
                labels = by_controller | {"kubernetes.io/service-name": service} | extra
                await self._slice(space, service, labels, "10.200.7.7", 8080)
        await resource(ELASTISERVICES, namespace=space).create(_elastiservice(name))

    async def _slice(
        self, namespace: str, name: str, labels: dict[str, str], address: str, port: int
    ) -> None:
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-bench", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [address],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "nodeName": "node-1",
                    "targetRef": {"kind": "Pod", "name": f"{name}-0", "namespace": namespace},
                }
            ],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        }
        await self._client.resource(SLICES, namespace=namespace).create(body)


def _elastiservice(name: Name) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name.name}
    spec = {
        "service": name.name,
        "scaleTargetRef": target,
        "minTargetReplicas": 1,
        "cooldownPeriod": _COOLDOWN,
    }
    return {
        "apiVersion": "elasti.truefoundry.com/v1alpha1",
        "kind": "ElastiService",
        "metadata": {"name": name.name},
        "spec": spec,
    }


def _triggers(name: Name, prometheus: str) -> dict[str, Any]:
    kind = "awake" if name.awake else "asleep"
    metadata = {
        "serverAddress": prometheus,
        "query": f'sum(rate(requests_total{{service="{name.name}",kind="{kind}"}}[1m]))',
        "threshold": "0.5",
    }
    return {"spec": {"triggers": [{"type": "prometheus", "metadata": metadata}]}}


def _service(name: Name) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    labels = {"app": name.name, "team": name.namespace, "app.kubernetes.io/part-of": "bench"}
    spec = {"selector": {"app": name.name}, "ports": ports}
    return {"metadata": {"name": name.name, "labels": labels}, "spec": spec}


def _deployment(name: Name) -> dict[str, Any]:
    labels = {"app": name.name}
    container = {
        "name": "web",
        "image": f"registry.example.com/{name.namespace}/{name.name}:1.2.3",
        "ports": [{"name": "http", "containerPort": 8080}],
        "env": [{"name": f"SETTING_{number}", "value": f"value {number}"} for number in range(12)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/alive", "port": "http"}},
    }
    return {
        "metadata": {"name": name.name, "labels": labels | {"team": name.namespace}},
        "spec": {
            "replicas": 1 if name.awake else 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
