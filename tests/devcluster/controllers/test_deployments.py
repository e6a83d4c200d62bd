from __future__ import annotations

from tests.devcluster.controllers.support import Cluster, deployment, eventually


async def test_a_deployment_becomes_available(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=3))

    async def available() -> bool:
        found = await cluster.get("deployments", "web")
        return found is not None and found.get("status", {}).get("availableReplicas") == 3

    await eventually(available)
    found = await cluster.get("deployments", "web")
    assert found is not None
    assert {c["type"]: (c["status"], c["reason"]) for c in found["status"]["conditions"]} == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
