from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from tests.controllers.builders import NOW
from tests.controllers.support import NODE, Cluster, cluster_on, eventually, replica_set

from devkube.controllers.node_lifecycle import expires_in
from devkube.controllers.objects import NodeLease, NodeLeaseSpec
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.times import format_micro_time


def lease(renewed: dt.datetime) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NODE, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": NODE,
            "leaseDurationSeconds": 40,
            "renewTime": format_micro_time(renewed),
        },
    }


async def test_a_node_without_a_renewed_lease_is_not_ready(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, node_grace=0.5) as cluster:
        await cluster.replicasets.create(replica_set(replicas=1))
        await eventually(lambda: ready_replicas(cluster, 1))
        cluster.kubelet.is_dead = True
        leases = cluster.client.resource("coordination.k8s.io/v1/leases")
        await leases.create(lease(dt.datetime.now(dt.UTC)))

        async def is_lost() -> JsonObject | None:
            node: JsonObject = await cluster.client.resource("v1/nodes").get(NODE)
            conditions = {c["type"]: c for c in node["status"]["conditions"]}
            return conditions["Ready"] if conditions["Ready"]["status"] == "Unknown" else None

        condition = await eventually(is_lost)
        assert condition["reason"] == "NodeStatusUnknown"
        assert condition["message"] == "Kubelet stopped posting node status."

        await eventually(lambda: ready_replicas(cluster, 0))


async def ready_replicas(cluster: Cluster, number: int) -> bool:
    found = await cluster.get("replicasets", "web")
    return ((found or {}).get("status") or {}).get("readyReplicas", 0) == number


@pytest.mark.parametrize(("age", "left"), [(0.0, 50.0), (20.0, 30.0), (50.0, 0.0), (99.0, 0.0)])
def test_a_lease_expires_after_the_grace_period(age: float, left: float) -> None:
    renewed = format_micro_time(NOW - dt.timedelta(seconds=age))
    held = NodeLease(ObjectMeta(name=NODE), NodeLeaseSpec(renew_time=renewed))
    assert expires_in(held, 50.0, NOW) == left
    assert expires_in(None, 50.0, NOW) is None
