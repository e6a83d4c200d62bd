"""A dev API server with the controllers on it and, for a kubelet, a few lines that pretend."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from devkube.apiserver.faults import FaultInjector, InjectedFault
from devkube.apiserver.server import ApiServer
from devkube.controllers.manager import ControllerManager
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.tasks import finish
from kubeloop.client import Client, ClientConfig, KubeError, NotFound
from kubeloop.controller.controller import Controller
from kubeloop.controller.reconcile import Request
from kubeloop.informer import ReflectorOptions, SharedInformerFactory
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually, patient

NODE = "node-1"
STAMP = "2030-01-01T00:00:00Z"


class FakeKubelet:
    """Starts and ends pods at once, without running anything; `may_be_ready` and `may_end` choose."""

    def __init__(self, client: Client, *, network: str = "10.1") -> None:
        self._client = client
        self._pods = client.resource("v1/pods")
        self._network = network
        self._addresses = 0
        backoff = Backoff(duration=0.1, factor=2.0, cap=1.0)
        self._factory = SharedInformerFactory(client, options=ReflectorOptions(backoff=backoff))
        self._informer = self._factory.informer("v1/pods", dict)
        self.may_be_ready: Callable[[JsonObject], bool] = lambda pod: True
        self.may_end: Callable[[JsonObject], bool] = lambda pod: True
        self.is_dead = False
        self.controller = Controller("kubelet", self._reconcile, workers=4)
        self.controller.watch(self._informer)

    def look_again(self) -> None:
        """The answers of the choosers may have changed."""
        for pod in self._informer.store.list():
            self.controller.queue.add(
                Request(pod["metadata"]["namespace"], pod["metadata"]["name"])
            )

    async def run(self) -> None:
        async with self._factory.running():
            await self._factory.wait_for_sync()
            await self.controller.run()

    async def _reconcile(self, request: Request) -> None:
        pod = self._informer.lister.find(*request)
        if self.is_dead or pod is None or not pod["spec"].get("nodeName"):
            return
        with contextlib.suppress(NotFound):
            if pod["metadata"].get("deletionTimestamp"):
                if self.may_end(pod):
                    await self._pods.delete(
                        request.name, namespace=request.namespace, grace_period=0
                    )
            elif pod["status"].get("phase") not in ("Succeeded", "Failed"):
                await self._update(pod)

    async def _update(self, pod: JsonObject) -> None:
        ready = "True" if self.may_be_ready(pod) else "False"
        status = pod["status"]
        found = [c for c in status.get("conditions") or [] if c["type"] == "Ready"]
        if status.get("podIP") and found and found[0]["status"] == ready:
            return
        address = status.get("podIP") or self._address()
        others = [c for c in status.get("conditions") or [] if c["type"] != "Ready"]
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": now_text()}
        patch = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [*others, condition],
        }
        metadata = pod["metadata"]
        await self._pods.subresource("status").patch(
            metadata["name"],
            MergePatch({"metadata": {"uid": metadata["uid"]}, "status": patch}),
            namespace=metadata["namespace"],
        )

    def _address(self) -> str:
        self._addresses += 1
        return f"{self._network}.{self._addresses // 250}.{self._addresses % 250 + 1}"


def now_text() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """What a test talks to."""

    def __init__(
        self,
        client: Client,
        kubelet: FakeKubelet,
        kubeconfig: Path,
        namespace: str,
        server: ApiServer | None = None,
        controllers: ControllerManager | None = None,
    ) -> None:
        self.client = client
        self.kubelet = kubelet
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._server = server
        self._controllers = controllers

    @property
    def faults(self) -> FaultInjector:
        """The dev server's faults."""
        assert self._server is not None
        return self._server.core.faults

    @property
    def controllers(self) -> ControllerManager:
        """Ours, for tests that are not for any cluster."""
        assert self._controllers is not None
        return self._controllers

    def __getattr__(self, plural: str) -> Any:
        return self.client.resource(_RESOURCES[plural], namespace=self.namespace)

    async def list(self, plural: str, *, selector: str = "") -> list[Any]:
        resource = self.client.resource(_RESOURCES[plural])
        return [item async for item in resource.items(selector=selector, namespace=self.namespace)]

    async def get(self, plural: str, name: str) -> JsonObject | None:
        try:
            resource = self.client.resource(_RESOURCES[plural])
            return await resource.get(name, namespace=self.namespace)
        except NotFound:
            return None

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the real kubectl; its output, or an AssertionError with what it said."""
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={self.namespace}",
            *arguments,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await process.communicate(stdin.encode() if stdin is not None else None)
        assert process.returncode == 0, output.decode()
        return output.decode()


_RESOURCES = {
    "pods": "v1/pods",
    "services": "v1/services",
    "events": "v1/events",
    "nodes": "v1/nodes",
    "namespaces": "v1/namespaces",
    "configmaps": "v1/configmaps",
    "secrets": "v1/secrets",
    "serviceaccounts": "v1/serviceaccounts",
    "endpoints": "v1/endpoints",
    "leases": "coordination.k8s.io/v1/leases",
    "deployments": "apps/v1/deployments",
    "replicasets": "apps/v1/replicasets",
    "statefulsets": "apps/v1/statefulsets",
    "controllerrevisions": "apps/v1/controllerrevisions",
    "slices": "discovery.k8s.io/v1/endpointslices",
    "crds": "apiextensions.k8s.io/v1/customresourcedefinitions",
    "widgets": "example.com/v1/widgets",
}


@contextlib.asynccontextmanager
async def cluster_on(tmp_path: Path, **options: Any) -> AsyncIterator[Cluster]:
    """Run the dev cluster's server, its controllers and a pretending kubelet."""
    async with ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.admin_kubeconfig())
        async with Client(ClientConfig.from_kubeconfig(kubeconfig)) as client:
            controllers = ControllerManager(client, root_ca=server.ca_pem, **options)
            await client.resource("v1/nodes").create(node_named(NODE))
            async with running(controllers.run(), "controllers") as task:
                await first_of(controllers.wait_synced(), [task])
                async with cluster_at(
                    client, kubeconfig, server=server, controllers=controllers
                ) as cluster:
                    yield cluster


@contextlib.asynccontextmanager
async def cluster_at(
    client: Client,
    kubeconfig: Path,
    *,
    server: ApiServer | None = None,
    controllers: ControllerManager | None = None,
) -> AsyncIterator[Cluster]:
    """Use a cluster that runs: a namespace of its own, and a pretending kubelet."""
    kubelet = FakeKubelet(client)
    namespaces = client.resource("v1/namespaces")
    made = await namespaces.create({"metadata": {"generateName": "test-"}})
    name = made["metadata"]["name"]
    cluster = Cluster(client, kubelet, kubeconfig, name, server, controllers)
    async with running(kubelet.run(), "kubelet"):
        await eventually(lambda: cluster.get("serviceaccounts", "default"))
        yield cluster


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        await finish([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


@contextlib.contextmanager
def frozen(cluster: Cluster, path: str) -> Iterator[None]:
    """Let nobody follow a resource over all namespaces: caches of it stay as they are."""
    for verb in ("list", "watch"):
        cluster.faults.add(InjectedFault(code=503, verb=verb, path=path))
    cluster.faults.drop_watches()
    try:
        yield
    finally:
        cluster.faults.clear()


async def first_of(work: Awaitable[Any], tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the work, or fail with the task that failed before it."""
    waiting = asyncio.ensure_future(work)
    await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED, timeout=30)
    if not waiting.done():
        waiting.cancel()
        for task in tasks:
            if task.done():
                await task
        raise TimeoutError("the controllers did not sync")


def node_named(name: str, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"pods": "100"},
        },
    }


def template(labels: dict[str, str], *, image: str = "web:1", **spec: Any) -> JsonObject:
    container = {"name": "web", "image": image, "ports": [{"name": "http", "containerPort": 8080}]}
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}


def deployment(name: str = "web", replicas: int = 3, **spec: Any) -> JsonObject:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template(labels),
            **spec,
        },
    }


def replica_set(name: str = "web", replicas: int = 2, **spec: Any) -> JsonObject:
    made = deployment(name, replicas, **spec)
    return {**made, "kind": "ReplicaSet"}


__all__ = [
    "Cluster",
    "FakeKubelet",
    "KubeError",
    "LazyObject",
    "cluster_on",
    "deployment",
    "eventually",
    "frozen",
    "node_named",
    "patient",
    "replica_set",
    "template",
]
