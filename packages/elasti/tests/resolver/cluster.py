"""A cluster in memory for the resolver: the four resources it watches, pods to read, an operator."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from elasti.api.names import (
    ELASTISERVICES,
    MANAGED_BY,
    PRIVATE_LABEL,
    private_service_name,
    resolver_slice_name,
)
from elasti.api.wire import INCOMING_PATH, IncomingReply, IncomingRequest, WakeOutcome
from elasti.resolver.projections import ElastiView, ServiceView, SliceView
from kubeloop.client.errors import NotFound, Status
from kubeloop.objects.core import MANAGED_BY_LABEL, PODS, SERVICE_LABEL, SERVICES, SLICES, Pod
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import STRUCT_ACCESS
from kubeloop.testing.fake_source import FakeSource
from tests.web_server import web_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

NAMESPACE = "shop"
# A pod of this name and its address is there whenever it is asked for, without probes.
PLAIN_POD = "at-"


def _source(kind: type[Any]) -> FakeSource[Any]:
    return FakeSource(
        namespace=NAMESPACE,
        represent=lambda obj: msgspec.convert(obj, kind, strict=False),
        access=STRUCT_ACCESS,
    )


class _Resource:
    """A resource's fake with the calls that are not list and watch."""

    def __init__(self, cluster: FakeCluster, path: str) -> None:
        self._cluster = cluster
        self._path = path

    async def get(self, name: str, *, namespace: str, timeout: float) -> Any:
        if name.startswith(PLAIN_POD):
            return msgspec.convert(pod(name, address=name.removeprefix(PLAIN_POD)), Pod)
        self._cluster.pod_reads.append(name)
        found = self._cluster.pods.get(name)
        if found is None:
            raise NotFound(Status(code=404, reason="NotFound", message=f"pod {name} not found"))
        return msgspec.convert(found, Pod)

    async def patch(self, name: str, patch: Any, *, namespace: str, timeout: float) -> Any:
        self._cluster.patches.append((name, msgspec.json.decode(patch.body)))


class FakeCluster:
    """A `ResourceClient` and what is behind it."""

    def __init__(self) -> None:
        self.objects = _source(ElastiView)
        self.services = _source(ServiceView)
        self.slices = _source(SliceView)
        self.pods: dict[str, Any] = {}
        self.pod_reads: list[str] = []
        self.patches: list[tuple[str, Any]] = []

    def resource(self, resource: Any, kind: type[Any] = dict, *, namespace: str = "") -> Any:
        path = resource if isinstance(resource, str) else str(resource)
        gvr = GroupVersionResource.parse(resource) if isinstance(resource, str) else resource
        del path
        if kind is ElastiView:
            return self.objects
        if kind is ServiceView:
            return self.services
        if kind is SliceView:
            return self.slices
        assert gvr in map(GroupVersionResource.parse, (PODS, ELASTISERVICES, SERVICES, SLICES))
        return _Resource(self, str(gvr))

    # What an operator and Kubernetes do

    def elasti_service(
        self, service: str, *ports: tuple[str, int], name: str = "", created: str = "", **spec: Any
    ) -> None:
        """Create or replace an ElastiService; ports are (name, resolver port)."""
        obj = self.objects.build(
            name or service,
            uid=f"uid-{name or service}",
            spec={"service": service, **spec},
            status={
                "resolverPorts": [
                    {"port": 80 + i, "name": n, "resolverPort": p} for i, (n, p) in enumerate(ports)
                ]
            },
        )
        obj["metadata"]["creationTimestamp"] = created or "2026-01-01T00:00:00Z"
        self.objects.put(obj)

    def private_service(self, service: str, *ports: dict[str, Any]) -> None:
        self.services.put(
            self.services.build(
                private_service_name(service),
                labels={PRIVATE_LABEL: "true"},
                spec={"ports": list(ports) or [{"name": "http", "port": 80}]},
            )
        )

    def endpoints(self, service: str, *endpoints: dict[str, Any], ports: dict[str, int]) -> None:
        """Replace the private slice."""
        name = private_service_name(service)
        self.slices.put(
            self.slices.build(
                f"{name}-x",
                labels={PRIVATE_LABEL: "true", SERVICE_LABEL: name},
                endpoints=list(endpoints),
                ports=[{"name": n, "port": p, "protocol": "TCP"} for n, p in ports.items()],
            )
        )

    def publish(self, service: str, ports: dict[str, int], *addresses: str) -> None:
        """Point a Service at resolvers."""
        self.slices.put(
            self.slices.build(
                resolver_slice_name(service),
                labels={MANAGED_BY_LABEL: MANAGED_BY, SERVICE_LABEL: service},
                endpoints=[{"addresses": [a]} for a in addresses or ("10.0.0.1",)],
                ports=[{"name": n, "port": p, "protocol": "TCP"} for n, p in ports.items()],
            )
        )

    def unpublish(self, service: str) -> None:
        self.slices.delete(resolver_slice_name(service))


def endpoint(
    address: str, *, ready: bool = False, terminating: bool = False, pod: str = ""
) -> dict[str, Any]:
    name = pod or f"{PLAIN_POD}{address}"
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"},
    }


def pod(
    name: str, *containers: dict[str, Any], address: str = "127.0.0.1", **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"},
        "spec": {"containers": list(containers), **spec},
        "status": {"podIP": address, "podIPs": [{"ip": address}]},
    }


@contextlib.asynccontextmanager
async def fake_operator(
    on_wake: Callable[[IncomingRequest], WakeOutcome | IncomingReply], *, leads: bool = True
) -> AsyncIterator[str]:
    """Serve the operator's endpoint; yields its URL."""

    async def incoming(request: web.Request) -> web.Response:
        reply = on_wake(msgspec.json.decode(await request.read(), type=IncomingRequest))
        if isinstance(reply, WakeOutcome):
            reply = IncomingReply(outcome=reply, leads=leads)
        return web.Response(body=msgspec.json.encode(reply), status=reply.outcome.code)

    async with web_server(web.post(INCOMING_PATH, incoming)) as url:
        yield url


async def settle(turns: int = 50) -> None:
    """Let everything that is due now happen."""
    for _ in range(turns):
        await asyncio.sleep(0)
