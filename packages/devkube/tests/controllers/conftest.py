from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.controllers.support import NODE, Cluster, cluster_at, cluster_on

from kubeloop.client import Client, ClientConfig, NotFound
from tests.controlplane.plugin import (
    controlplane,
    controlplane_binaries,
    controlplane_settings,
    namespaces,
)
from tests.controlplane.rig import ControlPlane

__all__ = ["controlplane", "controlplane_binaries", "controlplane_settings", "namespaces"]


@pytest.fixture
async def dev_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A dev cluster: our server, our controllers, one node and a kubelet that pretends."""
    async with cluster_on(tmp_path) as made:
        yield made


@pytest.fixture(
    params=[
        "dev",
        pytest.param("real", marks=[pytest.mark.controlplane, pytest.mark.differential]),
    ]
)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """The same with Kubernetes' own server and controllers: what holds there must hold here."""
    if request.param == "dev":
        async with cluster_on(tmp_path) as made:
            yield made
        return
    rig: ControlPlane = request.getfixturevalue("controlplane")
    async with Client(ClientConfig.from_kubeconfig(rig.kubeconfig)) as client:
        try:
            await client.resource("v1/nodes").get(NODE)
        except NotFound:
            rig.create_node(NODE)
        async with cluster_at(client, rig.kubeconfig) as made:
            yield made
