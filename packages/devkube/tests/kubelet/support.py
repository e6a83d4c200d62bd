"""A dev API server with one kubelet on it; pods are bound by name, without a scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from devkube.addresses import AddressPool
from devkube.apiserver.server import ApiServer
from devkube.kubelet.kubelet import PATH, Kubelet, KubeletSettings
from devkube.kubelet.logs.reading import LogOptions, read_log
from devkube.kubelet.pods.plan import RestartPolicy
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.tasks import finish
from kubeloop.client import Client, ClientConfig, NotFound
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

NODE = "node-1"
# Where `python -m tests...` finds these modules.
ROOT = Path(__file__).resolve().parents[2]
# Of this process alone: tests run side by side, and pods bind fixed ports.
NETWORK = f"127.{20 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
QUICK = KubeletSettings(
    environment={"PATH": f"{Path(sys.executable).parent}:{PATH}"},
    restarts=RestartPolicy(first=0.2, longest=6.0),
    retry=Backoff(duration=0.02, factor=2.0, cap=0.2),
)
# A server that answers on $POD_IP; `/health` is 200 unless the file that it is given exists.
WEB = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sick = len(sys.argv) > 2 and os.path.exists(sys.argv[2])
        self.send_response(500 if sick else 200); self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *_): pass
print("listening", flush=True)
http.server.HTTPServer((os.environ["POD_IP"], int(sys.argv[1])), Handler).serve_forever()
"""


def container(*argv: str, name: str = "main", **fields: Any) -> JsonObject:
    return {"name": name, "image": "local", "command": list(argv), **fields}


def shell(script: str, name: str = "main", **fields: Any) -> JsonObject:
    return container("sh", "-c", script, name=name, **fields)


def web(port: int = 8080, *more: str, name: str = "main", **fields: Any) -> JsonObject:
    return container("python", "-u", "-c", WEB, str(port), *more, name=name, **fields)


def pod(*containers: JsonObject, name: str = "web", node: str = NODE, **spec: Any) -> JsonObject:
    metadata = spec.pop("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"nodeName": node, "containers": list(containers), **spec},
    }


@dataclasses.dataclass
class Cluster:
    server: ApiServer
    client: Client
    kubelet: Kubelet
    directory: Path
    tasks: list[asyncio.Task[None]] = dataclasses.field(default_factory=list)

    async def create(self, obj: JsonObject, plural: str = "v1/pods") -> JsonObject:
        return await self.client.resource(plural).create(obj, namespace="default")

    async def get(self, name: str = "web") -> JsonObject | None:
        try:
            return await self.client.resource("v1/pods").get(name, namespace="default")
        except NotFound:
            return None

    async def delete(self, name: str = "web", **options: Any) -> None:
        await self.client.resource("v1/pods").delete(name, namespace="default", **options)

    async def until(
        self,
        holds: Callable[[JsonObject], Any],
        *,
        name: str = "web",
        timeout: float = 40.0,
    ) -> JsonObject:
        """Wait until the pod is as it should be, and return it."""
        seen: JsonObject | None = None

        async def asked() -> bool:
            nonlocal seen
            seen = await self.get(name)
            return seen is not None and bool(holds(seen))

        try:
            await eventually(asked, timeout=timeout)
        except AssertionError:
            raise AssertionError(f"pod {name} is {seen and seen.get('status')}") from None
        assert seen is not None
        return seen

    async def gone(self, name: str = "web", *, timeout: float = 40.0) -> None:
        async def asked() -> bool:
            return await self.get(name) is None

        await eventually(asked, timeout=timeout)

    async def logs(self, name: str = "web", container: str = "main", **options: Any) -> str:
        worker = self.kubelet.worker("default", name)
        assert worker is not None
        log = worker.log(container, previous=options.get("previous", False))
        assert log is not None
        return b"".join([piece async for piece in read_log(log, LogOptions(**options))]).decode()

    async def printed(self, text: str, name: str = "web", **options: Any) -> None:
        """Wait until a container has printed something."""

        async def asked() -> bool:
            return text in await self.logs(name, **options)

        await eventually(asked)

    async def events(self, reason: str = "") -> list[str]:
        found = self.client.resource("v1/events").items(namespace="default")
        return [e["message"] async for e in found if not reason or e["reason"] == reason]

    async def event(self, reason: str, *, timeout: float = 40.0) -> str:
        """Wait for an event, and return its message."""
        messages = await eventually(
            lambda: self.events(reason), f"an event {reason}", timeout=timeout
        )
        return messages[0]

    async def stop_kubelet(self) -> None:
        tasks, self.tasks = self.tasks, []
        await finish(tasks)

    async def start_kubelet(self, settings: KubeletSettings = QUICK) -> None:
        """Start a new kubelet, as after a restart of the machine."""
        self.kubelet = Kubelet(
            self.client,
            node_name=NODE,
            ip_pool=AddressPool(f"{NETWORK}.0/24"),
            root_dir=self.directory / "kubelet",
            settings=settings,
        )
        task = asyncio.create_task(self.kubelet.run())
        self.tasks.append(task)
        ready = asyncio.create_task(self.kubelet.wait_ready())
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED, timeout=15)
        if not ready.done():
            await finish([ready])
            await task


@contextlib.asynccontextmanager
async def cluster_on(directory: Path, settings: KubeletSettings = QUICK) -> AsyncIterator[Cluster]:
    async with ApiServer() as server:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(server.admin_kubeconfig())
        async with Client(ClientConfig.from_kubeconfig(kubeconfig)) as client:
            cluster = Cluster(server, client, None, directory)  # type: ignore[arg-type]
            try:
                await cluster.start_kubelet(settings)
                yield cluster
                for task in cluster.tasks:
                    if task.done():
                        await task
            finally:
                await cluster.stop_kubelet()


def is_ready(pod: JsonObject) -> bool:
    return condition(pod, "Ready") == "True"


def condition(pod: JsonObject, kind: str) -> str:
    found = (pod.get("status") or {}).get("conditions") or []
    return next((c["status"] for c in found if c["type"] == kind), "")


def status_of(pod: JsonObject, name: str = "main") -> JsonObject:
    status = pod["status"]
    every = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    unknown: JsonObject = {"name": name, "restartCount": 0, "state": {}}
    return next((item for item in every if item["name"] == name), unknown)


def state_of(pod: JsonObject, name: str = "main") -> JsonObject:
    return status_of(pod, name).get("state") or {}


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    finally:
        process.kill()
        process.wait()
