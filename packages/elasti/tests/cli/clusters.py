"""Clusters of their own for commands that change everything: on a thread, since commands have a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from click.testing import CliRunner, Result

from devkube import kubeconfig as kubeconfigs
from devkube.cluster import DevCluster
from elasti.cli.dev import container_environment
from elasti.cli.main import main
from kubeloop.client import Client, NotFound
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

T = TypeVar("T")
PATIENCE = 120.0
_RBAC = "rbac.authorization.k8s.io"


class Cluster:
    """A dev cluster, an administrator's client in its thread, and commands in ours."""

    def __init__(self, cluster: DevCluster, client: Client, directory: Path) -> None:
        self._cluster = cluster
        self.client = client
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self.admin = directory / "admin"
        kubeconfigs.write(self.admin, cluster.access())

    def run(self, *arguments: str, kubeconfig: Path | None = None, **options: Any) -> Result:
        """Run a command, as the administrator by default."""
        runner = CliRunner(env={"KUBECONFIG": str(kubeconfig or self.admin)})
        return runner.invoke(main, list(arguments), **options)

    def ok(self, *arguments: str, **options: Any) -> str:
        """Run a command that succeeds, and return what it says."""
        result = self.run(*arguments, **options)
        assert result.exit_code == 0, result.output
        return result.output

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the cluster is."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def get(self, resource: str, name: str, namespace: str = "") -> JsonObject | None:
        """Return an object; None where there is none."""
        try:
            return self.call(self.client.resource(resource).get(name, namespace=namespace or None))
        except NotFound:
            return None

    def names(self, resource: str, namespace: str = "") -> set[str]:
        """Return the names of all objects of a kind."""

        async def listed() -> set[str]:
            items = self.client.resource(resource).items(namespace=namespace)
            return {item["metadata"]["name"] async for item in items}

        return self.call(listed())

    def apply(self, *objects: JsonObject) -> None:
        """Make objects."""

        async def applied() -> None:
            self.client.mapper.invalidate()
            for obj in objects:
                resource = await self.client.resource_for(obj["apiVersion"], obj["kind"])
                await resource.apply(obj, field_manager="test", force=True)

        self.call(applied())

    def eventually(self, condition: Any) -> None:
        """Wait until a condition, made of this object's own methods, holds."""
        asked = functools.partial(asyncio.to_thread, condition)
        self.call(eventually(asked, timeout=PATIENCE - 10, every=0.1))

    def user(self, name: str, *rules: JsonObject, namespace: str = "") -> Path:
        """Return the kubeconfig of somebody who may do just this, everywhere or in a namespace."""
        path = self._directory / name
        kubeconfigs.write(path, self._cluster.access(name, ()))
        kind = "Role" if namespace else "ClusterRole"
        meta = {"name": name} | ({"namespace": namespace} if namespace else {})
        if rules:
            role = {"apiGroup": _RBAC, "kind": kind, "name": name}
            subject = {"apiGroup": _RBAC, "kind": "User", "name": name}
            api = {"apiVersion": f"{_RBAC}/v1"}
            self.apply(
                {**api, "kind": kind, "metadata": meta, "rules": list(rules)},
                {
                    **api,
                    "kind": f"{kind}Binding",
                    "metadata": meta,
                    "roleRef": role,
                    "subjects": [subject],
                },
            )
        return path

    def nowhere(self) -> Path:
        """Return a kubeconfig whose server is not there."""
        document = yaml.safe_load(self.admin.read_text())
        document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
        path = self._directory / "nowhere"
        path.write_text(yaml.safe_dump(document))
        return path


@contextlib.contextmanager
def cluster_on(directory: Path, *, nodes: int) -> Iterator[Cluster]:
    """Run a cluster on a thread; without nodes no pod ever runs, and it is quick."""
    ready: concurrent.futures.Future[Cluster] = concurrent.futures.Future()
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def play() -> None:
        loops.append(asyncio.get_running_loop())
        path = directory / "own"
        async with DevCluster(
            nodes=nodes, environment=container_environment(os.environ)
        ) as cluster:
            kubeconfigs.write(path, cluster.access())
            await cluster.wait_ready()
            async with Client.from_kubeconfig([path]) as client:
                ready.set_result(Cluster(cluster, client, directory))
                await stop.wait()

    def thread() -> None:
        try:
            asyncio.run(play())
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    running = threading.Thread(target=thread, name="cluster")
    running.start()
    try:
        yield ready.result(PATIENCE)
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        running.join(PATIENCE)
