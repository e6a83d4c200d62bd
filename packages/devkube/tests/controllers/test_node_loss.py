from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from tests.controllers.builders import NOW
from tests.controllers.support import NODE, Cluster, cluster_on, eventually, node_named, replica_set

from devkube.controllers.node_lifecycle import silent_in, wanted_taints
from devkube.controllers.objects import NodeLease, NodeLeaseSpec, NodeSpec, SlimNode
from kubeloop.client import NotFound
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_micro_time

NO_SCHEDULE = ("node.kubernetes.io/unreachable", "NoSchedule")


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


async def taints(cluster: Cluster) -> set[tuple[str, str]]:
    node = await cluster.client.resource("v1/nodes").get(NODE)
    return {(t["key"], t["effect"]) for t in node["spec"].get("taints") or []}


async def test_a_node_whose_lease_is_not_renewed_is_lost_and_can_return(tmp_path: Path) -> None:
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

        async def is_tainted() -> bool:
            return NO_SCHEDULE in await taints(cluster)

        await eventually(is_tainted)
        await eventually(lambda: ready_replicas(cluster, 0))

        hour = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        renewed = {"spec": {"renewTime": format_micro_time(hour)}}
        await leases.patch(NODE, MergePatch(renewed), namespace="kube-node-lease")
        ready = node_named(NODE)["status"]["conditions"]
        await (
            cluster.client.resource("v1/nodes")
            .subresource("status")
            .patch(NODE, MergePatch({"status": {"conditions": ready}}))
        )

        async def is_clean() -> bool:
            return not await taints(cluster)

        await eventually(is_clean)


async def ready_replicas(cluster: Cluster, number: int) -> bool:
    found = await cluster.get("replicasets", "web")
    return ((found or {}).get("status") or {}).get("readyReplicas", 0) == number


async def test_pods_of_a_node_that_is_gone_go_too(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, pod_quarantine=0.3) as cluster:
        await cluster.client.resource("v1/nodes").create(node_named("node-2"))
        body = replica_set(replicas=1)
        body["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}
        await cluster.replicasets.create(body)
        await eventually(lambda: ready_replicas(cluster, 1))
        (pod,) = await cluster.list("pods")
        cluster.kubelet.may_end = lambda pod: False
        await cluster.client.resource("v1/nodes").delete(NODE)

        async def is_gone() -> bool:
            try:
                await cluster.pods.get(pod["metadata"]["name"])
            except NotFound:
                return True
            return False

        await eventually(is_gone)


async def test_a_node_that_comes_back_in_time_keeps_its_pods(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, pod_quarantine=1.0) as cluster:
        await cluster.replicasets.create(replica_set(replicas=1))
        await eventually(lambda: ready_replicas(cluster, 1))
        (pod,) = await cluster.list("pods")
        nodes = cluster.client.resource("v1/nodes")
        await nodes.delete(NODE)
        await nodes.create(node_named(NODE))
        # A pod of a second node, gone for good, shows when the time was up.
        await nodes.create(node_named("node-2"))
        other = replica_set("other", replicas=1)
        other["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-2"}
        await cluster.replicasets.create(other)

        async def placed() -> bool:
            pods = await cluster.list("pods", selector="app=other")
            return [p["spec"].get("nodeName") for p in pods] == ["node-2"]

        await eventually(placed)
        await nodes.delete("node-2")

        async def none_on_two() -> bool:
            pods = await cluster.list("pods", selector="app=other")
            return all(p["spec"].get("nodeName") != "node-2" for p in pods)

        await eventually(none_on_two)
        found = await cluster.get("pods", pod["metadata"]["name"])
        assert found is not None
        assert found["metadata"]["uid"] == pod["metadata"]["uid"]


@pytest.mark.parametrize(("age", "left"), [(0.0, 50.0), (20.0, 30.0), (50.0, 0.0), (99.0, 0.0)])
def test_a_lease_tells_when_a_node_will_count_as_lost(age: float, left: float) -> None:
    renewed = format_micro_time(NOW - dt.timedelta(seconds=age))
    held = NodeLease(ObjectMeta(name=NODE), NodeLeaseSpec(renew_time=renewed))
    assert silent_in(held, 50.0, NOW) == left
    assert silent_in(None, 50.0, NOW) is None


def test_a_cordon_is_a_taint_and_foreign_taints_stay() -> None:
    node = SlimNode(ObjectMeta(name=NODE), NodeSpec(unschedulable=True))
    (taint,) = wanted_taints(node, NOW) or ()
    assert (taint.key, taint.effect) == ("node.kubernetes.io/unschedulable", "NoSchedule")
    freed = SlimNode(ObjectMeta(name=NODE), NodeSpec(taints=(taint,)))
    assert wanted_taints(freed, NOW) == ()
    assert wanted_taints(SlimNode(ObjectMeta(name=NODE)), NOW) is None
