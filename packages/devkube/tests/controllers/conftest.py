from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.controllers.support import NODE, Cluster, cluster_at, cluster_on, first_of, running

from devkube.controllers.manager import ControllerManager
from kubeloop.client import Client, ClientConfig, NotFound
from kubeloop.objects.patches import MergePatch
from tests.controlplane.binaries import Binaries
from tests.controlplane.plugin import (
    controlplane,
    controlplane_binaries,
    controlplane_settings,
    namespaces,
)
from tests.controlplane.rig import ControlPlane, Options

__all__ = ["controlplane", "controlplane_binaries", "controlplane_settings", "namespaces"]


@pytest.fixture
async def dev_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A dev cluster: our server, our controllers, one node and a kubelet that pretends."""
    async with cluster_on(tmp_path) as made:
        yield made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `cluster` runs on ours and on Kubernetes' own: what holds there must hold here.

    Marked `any_server`, it runs a third time: our controllers are programs for any API server.
    """
    if "cluster" not in metafunc.fixturenames:
        return
    marks = pytest.mark.controlplane
    params = ["dev", pytest.param("real", marks=marks)]
    if metafunc.definition.get_closest_marker("any_server"):
        params.append(pytest.param("ours-on-real", marks=marks))
    metafunc.parametrize("cluster", params, indirect=True)


@pytest.fixture(scope="session")
def bare_server(controlplane_binaries: Binaries) -> Iterator[ControlPlane]:
    """Kubernetes' own API server without controllers."""
    options = Options(controllers=False, scheduler=False)
    with ControlPlane(controlplane_binaries, options) as rig:
        yield rig


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of the parameter's kind."""
    if request.param == "dev":
        async with cluster_on(tmp_path) as made:
            yield made
    elif request.param == "real":
        async with on_server(request.getfixturevalue("controlplane")) as made:
            yield made
    else:
        rig: ControlPlane = request.getfixturevalue("bare_server")
        async with Client(ClientConfig.from_kubeconfig(rig.kubeconfig)) as client:
            controllers = ControllerManager(client, root_ca=rig.ca_file.read_bytes())
            async with running(controllers.run(), "controllers") as task:
                await first_of(controllers.wait_synced(), [task])
                async with on_server(rig) as made:
                    yield made


@contextlib.asynccontextmanager
async def on_server(rig: ControlPlane) -> AsyncIterator[Cluster]:
    """A namespace and a node of Kubernetes' own server."""
    async with Client(ClientConfig.from_kubeconfig(rig.kubeconfig)) as client:
        try:
            await client.resource("v1/nodes").get(NODE)
        except NotFound:
            rig.create_node(NODE)
            # Admission taints new nodes; our controllers leave taints alone.
            await client.resource("v1/nodes").patch(NODE, MergePatch({"spec": {"taints": None}}))
        async with cluster_at(client, rig.kubeconfig) as made:
            yield made
