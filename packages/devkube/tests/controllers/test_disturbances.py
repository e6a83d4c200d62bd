"""Controllers on a server that misbehaves: they converge all the same, and nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.controllers.support import Cluster, cluster_on, deployment, eventually, patient
from tests.controllers.workloads import (
    ready_endpoints,
    service,
    set_image,
    settled,
    sizes,
    stateful_set,
    with_status,
)

from devkube.apiserver.faults import InjectedFault
from devkube.controllers.manager import ControllerManager
from kubeloop.aio.tasks import finish
from kubeloop.objects.patches import MergePatch


@contextlib.asynccontextmanager
async def disturbed(cluster: Cluster, seed: int) -> AsyncIterator[None]:
    """Refuse writes, drop watches and forget history, again and again."""
    dice = random.Random(seed)
    # Deleted pods are asked for by the pretending kubelet too; it gets the same treatment.
    writes = ("create", "update", "patch", "delete")

    async def disturb() -> None:
        while True:
            match dice.choice(["refuse", "drop", "compact"]):
                case "refuse":
                    code, verb = dice.choice([409, 429, 500, 503]), dice.choice(writes)
                    apps = dice.choice(["/apis/apps/", "/api/v1/", "/apis/discovery.k8s.io/"])
                    fault = InjectedFault(code=code, verb=verb, path=apps, count=dice.randint(1, 3))
                    cluster.faults.add(fault)
                case "drop":
                    cluster.faults.drop_watches()
                case _:
                    cluster.faults.compact()
                    cluster.faults.drop_watches()
            await asyncio.sleep(dice.uniform(0.005, 0.05))

    task = asyncio.create_task(disturb())
    try:
        yield
    finally:
        await finish([task])
        cluster.faults.clear()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everything_ends_up_right_on_a_server_that_misbehaves(
    dev_cluster: Cluster, seed: int
) -> None:
    cluster = dev_cluster
    await cluster.services.create(service())
    await cluster.deployments.create(deployment(replicas=4))
    await cluster.statefulsets.create(stateful_set(replicas=3))
    await settled(cluster, replicas=4)
    await with_status(cluster, availableReplicas=3)
    await set_image(cluster, "web:2")
    await cluster.statefulsets.patch("db", MergePatch({"spec": {"replicas": 1}}))
    async with disturbed(cluster, seed):
        await asyncio.sleep(1.0)
    with patient(100):
        await all_is_well(cluster)


async def all_is_well(cluster: Cluster) -> None:
    await settled(cluster, replicas=4)
    assert await sizes(cluster) == {"1": 0, "2": 4}
    await with_status(cluster, replicas=1, availableReplicas=1)

    async def nobody_leaves() -> bool:
        """Whether the last pod that was replaced is out of the slices too."""
        found = await ready_endpoints(cluster, 4)
        return sum(len(item["endpoints"]) for item in found) == 4

    await eventually(nobody_leaves)
    pods = await cluster.list("pods", selector="app=web")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"web:2"}
    await cluster.deployments.delete("web", propagation="Background")

    async def gone() -> bool:
        return not await cluster.list("pods", selector="app=web")

    await eventually(gone)


async def test_controllers_that_are_stopped_halfway_are_followed_by_others(
    dev_cluster: Cluster, tmp_path: Path
) -> None:
    """What one set of controllers began, the next one ends: nothing is only in memory."""
    cluster = dev_cluster
    await cluster.deployments.create(deployment(replicas=6))
    await settled(cluster, replicas=6)
    for name in cluster.controllers.names:
        cluster.controllers.pause(name)
    await set_image(cluster, "web:2")
    for life in range(12):
        other = ControllerManager(cluster.client)
        task = asyncio.create_task(other.run())
        await other.wait_synced()
        await asyncio.sleep(0.004 * life)
        await finish([task])
    for name in cluster.controllers.names:
        cluster.controllers.resume(name)
    await settled(cluster, replicas=6)
    assert await sizes(cluster) == {"1": 0, "2": 6}
    assert len(await cluster.list("pods")) == 6


async def test_a_start_can_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    async with cluster_on(tmp_path) as cluster:
        for step in range(20):
            controllers = ControllerManager(cluster.client)
            task = asyncio.create_task(controllers.run())
            for _ in range(step * 3):
                await asyncio.sleep(0)
            await finish([task])
            assert task.cancelled()
