# ruff: noqa: PLC0415  (each process imports the library that it is about, and no other)
"""One library follows the pods of a server, the way its own documentation shows it.

With `--last` it is measured: the time until every listed pod is known, and until the newest change
is. Without, each change of what it knows is printed, until it is ended from outside.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.runners.cluster import kubeconfig
from benchmarks.runners.usage import Stopwatch, peak, resident


class View:
    """What the program knows: the pods by key, and when it knew them all."""

    def __init__(self, *, listed: int, last: int) -> None:
        self.objects: dict[str, Any] = {}
        self.result: dict[str, float] = {}
        self.done = asyncio.Event()
        self._listed = listed
        self._last = last
        self._clock = Stopwatch()

    def start(self) -> None:
        """Begin to measure; imports and connections come before."""
        gc.collect()
        self._clock = Stopwatch()

    def put(self, namespace: str | None, name: str | None, version: str | None, obj: Any) -> None:
        """Take a pod that is there; `obj` is what a program would keep, None where the library does."""
        key = f"{namespace}/{name}"
        if self._last:
            self.objects[key] = obj
            if len(self.objects) == self._listed and not self.result:
                self._synced()
            self._changed(version)
        elif key not in self.objects:
            self.objects[key] = obj
            self._print()

    def remove(self, namespace: str | None, name: str | None, version: str | None) -> None:
        """Take a pod that is gone."""
        if self.objects.pop(f"{namespace}/{name}", self) is self:
            return
        if self._last:
            self._changed(version)
        else:
            self._print()

    def take(self, kind: str, namespace: Any, name: Any, version: Any, obj: Any) -> None:
        """Take an event of a watch."""
        if kind == "DELETED":
            self.remove(namespace, name, version)
        elif kind in {"ADDED", "MODIFIED"}:
            self.put(namespace, name, version, obj)

    def _synced(self) -> None:
        self.result = {f"list_{name}": value for name, value in self._clock.read().items()}
        self.result["list_peak"] = float(peak())
        gc.collect()
        self.result["resident"] = float(resident())
        self._clock = Stopwatch()

    def _changed(self, version: str | None) -> None:
        if version == str(self._last) and not self.done.is_set():
            self.result |= self._clock.read() | {"live": float(len(self.objects))}
            self.done.set()

    def _print(self) -> None:
        print(json.dumps({"at": time.time(), "knows": sorted(self.objects)}), flush=True)


async def kubeloop(url: str, view: View, kind: type[Any]) -> None:
    """A shared informer with one handler; `kind` is how its cache holds the pods."""
    from kubeloop import Client, SharedInformerFactory
    from kubeloop.informer.handlers import Deleted, Updated
    from kubeloop.objects.meta import access_for

    def handle(note: Any) -> None:
        obj = note.new if isinstance(note, Updated) else note.obj
        args = access.namespace(obj), access.name(obj), access.version(obj)
        if isinstance(note, Deleted):
            view.remove(*args)
        else:
            view.put(*args, None)

    access = access_for(kind)
    with kubeconfig(url, "") as path:
        async with Client.from_kubeconfig(path) as client:
            factory = SharedInformerFactory(client)
            pods = factory.informer("v1/pods", kind)
            pods.add_handler(on_event=handle)
            view.start()
            async with factory.running():
                await asyncio.Event().wait()


async def kubeloop_slim(url: str, view: View) -> None:
    """The informer's cache holds Structs with the fields that are read."""
    from benchmarks.models import SlimPod

    await kubeloop(url, view, SlimPod)


async def kubeloop_dict(url: str, view: View) -> None:
    """The informer's cache holds whole dictionaries."""
    await kubeloop(url, view, dict)


async def kubernetes(url: str, view: View) -> None:
    """`kubernetes.informer.SharedInformer` with handlers; its thread, its cache."""
    from kubernetes import client, config
    from kubernetes.informer import SharedInformer

    loop = asyncio.get_running_loop()

    def handler(kind: str) -> Callable[[Any], None]:
        def handle(obj: Any) -> None:
            meta = obj.metadata
            call = (kind, meta.namespace, meta.name, meta.resource_version, None)
            loop.call_soon_threadsafe(view.take, *call)

        return handle

    with kubeconfig(url, "") as path:
        config.load_kube_config(path)
        informer = SharedInformer(client.CoreV1Api().list_pod_for_all_namespaces)
        for kind in ("ADDED", "MODIFIED", "DELETED"):
            informer.add_event_handler(kind, handler(kind))
        view.start()
        informer.start()
        await asyncio.Event().wait()


async def kubernetes_asyncio(url: str, view: View) -> None:
    """A list, then `watch.Watch().stream` from its version; the program keeps the objects."""
    from kubernetes_asyncio import client, config, watch

    with kubeconfig(url, "") as path:
        await config.load_kube_config(path)
        async with client.ApiClient() as api:
            v1 = client.CoreV1Api(api)
            view.start()
            listed = await v1.list_pod_for_all_namespaces()
            for pod in listed.items:
                meta = pod.metadata
                view.put(meta.namespace, meta.name, meta.resource_version, pod)
            version = listed.metadata.resource_version
            async with watch.Watch() as stream:
                async for event in stream.stream(
                    v1.list_pod_for_all_namespaces, resource_version=version
                ):
                    meta = event["object"].metadata
                    args = (meta.namespace, meta.name, meta.resource_version)
                    view.take(event["type"], *args, event["object"])


async def kopf(url: str, view: View) -> None:
    """`@kopf.on.event`; the program keeps the objects: `@kopf.index` is quadratic in the first list."""
    import kopf as framework

    registry = framework.OperatorRegistry()
    settings = framework.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the server has nothing but pods

    @framework.on.login(registry=registry)
    def login(**_: Any) -> Any:
        return framework.ConnectionInfo(server=url)

    @framework.on.event("pods", registry=registry)
    async def changed(event: Any, **_: Any) -> None:
        meta = event["object"]["metadata"]
        kind = event["type"] or "ADDED"  # None for what was listed
        view.take(kind, meta["namespace"], meta["name"], meta["resourceVersion"], event["object"])

    view.start()
    await framework.operator(
        registry=registry, settings=settings, standalone=True, clusterwide=True
    )


async def lightkube(url: str, view: View) -> None:
    """A list, then `AsyncClient.watch` from its version; the program keeps the objects."""
    from lightkube import AsyncClient, KubeConfig
    from lightkube.resources.core_v1 import Pod

    with kubeconfig(url, "") as path:
        client = AsyncClient(config=KubeConfig.from_file(path))
        view.start()
        listed = client.list(Pod, namespace="*")
        async for pod in listed:
            meta = pod.metadata
            view.put(meta.namespace, meta.name, meta.resourceVersion, pod)
        version = listed.resourceVersion
        async for kind, pod in client.watch(Pod, namespace="*", resource_version=version):
            meta = pod.metadata
            view.take(kind, meta.namespace, meta.name, meta.resourceVersion, pod)


async def kr8s(url: str, view: View) -> None:
    """`api.watch`, which begins with what there is; the program keeps the objects."""
    import kr8s as library
    from kr8s import asyncio as aio

    with kubeconfig(url, "") as path:
        api = await aio.api(kubeconfig=path)
        view.start()
        async for kind, pod in api.watch("pods", namespace=library.ALL):
            view.take(kind, pod.namespace, pod.name, pod.raw["metadata"]["resourceVersion"], pod)


PEERS: dict[str, Callable[[str, View], Awaitable[None]]] = {
    "kubeloop, Structs": kubeloop_slim,
    "kubeloop, dictionaries": kubeloop_dict,
    "kubernetes": kubernetes,
    "kubernetes_asyncio": kubernetes_asyncio,
    "kopf": kopf,
    "lightkube": lightkube,
    "kr8s": kr8s,
}


async def main() -> None:
    """Follow until the newest change is known, or until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--listed", type=int, default=0)
    parser.add_argument("--last", type=int, default=0)
    arguments = parser.parse_args()
    view = View(listed=arguments.listed, last=arguments.last)
    following = asyncio.ensure_future(PEERS[arguments.peer](arguments.url, view))
    if not arguments.last:
        try:
            await following
            print(json.dumps({"at": time.time(), "ended": "returned"}), flush=True)
        except Exception as error:  # noqa: BLE001  # what it is, is the result
            said = f"raised {type(error).__name__}"
            print(
                json.dumps({"at": time.time(), "ended": said, "why": str(error)[:200]}), flush=True
            )
        return
    waiting = asyncio.ensure_future(view.done.wait())
    await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        following.result()
    print(json.dumps(view.result), flush=True)
    os._exit(0)  # no library's way to stop is measured


if __name__ == "__main__":
    asyncio.run(main())
