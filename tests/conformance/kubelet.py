"""A kubelet that pretends: the pods of one namespace start, are ready and end, and nothing runs.

It stands in on both servers, so that what is compared is the controllers. `may_start`, `may_be_ready`
and `may_end` hold pods back; whoever changes them calls `look_again`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Callable

from kubeloop.aio.tasks import finish
from kubeloop.client import AlreadyExists, Conflict, NotFound
from kubeloop.controller.controller import Controller
from kubeloop.controller.reconcile import Request
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.conformance.kube import Kube

NODE = "pretended"
ADDRESSES = itertools.count(1)


class Kubelet:
    """What a test tells how its pods shall fare."""

    def __init__(self, kube: Kube) -> None:
        self._pods = kube.pods
        self._factory = SharedInformerFactory(kube.client, namespace=kube.namespace)
        self._informer = self._factory.informer("v1/pods", dict)
        self._controller = Controller("kubelet", self._reconcile, workers=4)
        self._controller.watch(self._informer)
        self.may_start: Callable[[JsonObject], bool] = lambda pod: True
        self.may_be_ready: Callable[[JsonObject], bool] = lambda pod: True
        self.may_end: Callable[[JsonObject], bool] = lambda pod: True

    def look_again(self) -> None:
        for pod in self._informer.store.list():
            metadata = pod["metadata"]
            self._controller.queue.add(Request(metadata["namespace"], metadata["name"]))

    async def run(self) -> None:
        async with self._factory.running():
            await self._factory.wait_for_sync()
            await self._controller.run()

    async def _reconcile(self, request: Request) -> None:
        pod = self._informer.lister.find(*request)
        if pod is None or pod["spec"].get("nodeName") != NODE:
            return
        with contextlib.suppress(NotFound, Conflict):
            if pod["metadata"].get("deletionTimestamp"):
                if self.may_end(pod):
                    await self._pods.delete(request.name, grace_period=0)
            elif pod["status"].get("phase") not in ("Succeeded", "Failed") and self.may_start(pod):
                await self._update(pod)

    async def _update(self, pod: JsonObject) -> None:
        ready = "True" if self.may_be_ready(pod) else "False"
        status, metadata = pod["status"], pod["metadata"]
        conditions = {c["type"]: c for c in status.get("conditions") or []}
        if status.get("podIP") and conditions.get("Ready", {}).get("status") == ready:
            return
        address = status.get("podIP") or new_address()
        for kind in ("Ready", "ContainersReady"):
            conditions[kind] = {"type": kind, "status": ready, "lastTransitionTime": now()}
        patch = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": list(conditions.values()),
        }
        await self._pods.subresource("status").patch(
            metadata["name"],
            MergePatch(
                {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}
            ),
        )


def new_address() -> str:
    number = next(ADDRESSES)
    return f"10.200.{1 + number // 250}.{number % 250 + 1}"


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.asynccontextmanager
async def pretending(kube: Kube) -> AsyncIterator[Kubelet]:
    """Have a node, and a kubelet for the pods of the test's namespace."""
    with contextlib.suppress(AlreadyExists):
        await kube.cluster("v1/nodes").create(node())
    kubelet = Kubelet(kube)
    task = asyncio.create_task(kubelet.run())
    try:
        yield kubelet
    finally:
        await finish([task])
    if not task.cancelled():
        await task


def node() -> JsonObject:
    resources = {"cpu": "1000", "memory": "1000Gi", "pods": "5000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Pretended"}],
            "addresses": [{"type": "InternalIP", "address": "10.200.0.9"}],
        },
    }
