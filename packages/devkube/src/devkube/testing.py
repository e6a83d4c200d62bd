"""A cluster for a test: a pytest plugin with the fixture `cluster`.

    pytest_plugins = ["devkube.testing"]          # in the test module, or in the top conftest.py

    async def test_something(cluster):
        await cluster.client.resource("v1/namespaces").create({"metadata": {"name": "shop"}})

Every test has a cluster of its own: API server, controllers, one node, service proxy. It is ready when the
test begins and gone with every process when it ends. Needs pytest-asyncio: `pip install 'devkube[testing]'`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio

from devkube import kubeconfig
from devkube.apiserver.auth import ADMIN_GROUP
from devkube.cluster import DevCluster
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.objects.meta import JsonObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCluster:
    """A cluster that is ready. `client` is an administrator's, `kubeconfig` a file for other programs."""

    client: Client
    kubeconfig: Path
    dev: DevCluster

    async def wait_for(
        self,
        resource: str,
        name: str,
        until: Callable[[JsonObject], object] = bool,
        *,
        namespace: str | None = None,
        timeout: float = 30.0,
    ) -> JsonObject:
        """Return an object as soon as it exists and `until` says so. Raises TimeoutError."""
        found: JsonObject | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    with contextlib.suppress(NotFound):
                        found = await self.client.resource(resource).get(name, namespace=namespace)
                        if until(found):
                            return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise TimeoutError(f"{resource} {name}, after {timeout:g} s: {found}") from None


@contextlib.asynccontextmanager
async def start_cluster(directory: Path, **options: Any) -> AsyncIterator[ReadyCluster]:
    """Run a cluster during a block; `options` are those of `DevCluster`, such as `nodes`."""
    async with DevCluster(**options) as dev:
        path = directory / "kubeconfig"
        kubeconfig.write(path, dev.access())
        config = dev.server.client_config("dev-admin", [ADMIN_GROUP])
        async with Client(config) as client:
            await dev.wait_ready()
            yield ReadyCluster(client=client, kubeconfig=path, dev=dev)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ReadyCluster]:
    """Return a cluster with one node, for this test alone."""
    async with start_cluster(tmp_path) as ready:
        yield ready
