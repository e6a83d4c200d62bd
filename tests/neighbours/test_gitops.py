"""What Argo CD's and Flux's own engines make of a target that sleeps, and of one that woke, with the manifests of our guides.

`make neighbours` builds the programs; a row whose program is not in the cache is skipped with that reason.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from elasti.operator.scale_handler import ScaleHandler
from hack.kubernetes_pins import kubernetes_version
from kubeloop.client.client import Client
from tests.controlplane.replicas import BEFORE, Cluster, deployment
from tests.neighbours.programs import program
from tests.neighbours.rows import Report, Scenario, pinned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.controlplane.rig import ControlPlane

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def cluster(controlplane: ControlPlane) -> AsyncIterator[Cluster]:
    namespace = controlplane.create_namespace("gitops")
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        deployments = client.resource("apps/v1/deployments", namespace=namespace)
        yield Cluster(deployments, ScaleHandler(client), namespace)


@pytest.fixture
def compared(
    request: pytest.FixtureRequest, controlplane: ControlPlane, report: Report
) -> Callable[[str], None]:
    """Write down that an engine compared one way to keep replicas in Git, asleep and awake."""
    asleep = request.node.callspec.params["asleep"]
    way = f"replicas: {request.node.callspec.id.split('-')[0]} ({asleep} while asleep)"
    place = f"control plane {kubernetes_version()}"
    return lambda name: report.keep(name, pinned(name), place, Scenario(name=way))


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode().strip()


def manifest(cluster: Cluster, replicas: int | None, tmp_path: Path) -> str:
    obj = deployment(replicas)
    obj["metadata"]["namespace"] = cluster.namespace
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(obj))
    return str(path)


POINTER = ("-ignore", "/spec/replicas")


@pytest.mark.parametrize(
    ("in_git", "options", "asleep"),
    [
        (None, (), "Synced"),
        (BEFORE, POINTER, "Synced"),
        (BEFORE, ("-managers", "elasti-operator"), "Synced"),
        (BEFORE, (), "OutOfSync"),
    ],
    ids=["left out", "jsonPointers", "managedFieldsManagers", "in Git"],
)
async def test_argo_cd_compares(
    cluster: Cluster,
    tmp_path: Path,
    in_git: int | None,
    options: tuple[str, ...],
    asleep: str,
    compared: Callable[[str], None],
) -> None:
    argocd, live = str(program("argocd")), tmp_path / "live.json"
    wanted = manifest(cluster, in_git, tmp_path)
    await cluster.applies(BEFORE, "argocd-controller")

    async def verdict() -> str:
        live.write_text(json.dumps(await cluster.deployments.get("web")))
        return await run(str(argocd), *options, str(live), wanted)

    assert await verdict() == "Synced"
    await cluster.park()
    assert await verdict() == asleep
    await cluster.wake()
    assert await verdict() == "Synced"
    compared("Argo CD's diff engine")


@pytest.mark.parametrize(
    ("in_git", "options", "asleep"),
    [
        (None, (), "unchanged"),
        (BEFORE, POINTER, "unchanged"),
        (BEFORE, (), "configured"),
    ],
    ids=["left out", "ignore", "in Git"],
)
async def test_flux_compares_and_applies(
    controlplane: ControlPlane,
    cluster: Cluster,
    tmp_path: Path,
    in_git: int | None,
    options: tuple[str, ...],
    asleep: str,
    compared: Callable[[str], None],
) -> None:
    flux, wanted = str(program("flux")), manifest(cluster, in_git, tmp_path)
    call = (flux, *options, str(controlplane.kubeconfig), wanted)
    applied = (flux, "-apply", *call[1:])
    assert await run(*applied) == "created"
    if in_git is None:
        await cluster.scales_to(BEFORE, "kube-controller-manager")
    assert await run(*call) == "unchanged"
    await cluster.park()
    assert await run(*call) == asleep
    assert await run(*applied) == asleep
    assert await cluster.replicas() == (BEFORE if asleep == "configured" else 0)
    await cluster.park()
    await cluster.wake()
    assert await run(*call) == "unchanged"
    compared("Flux's diff engine")
