from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.support import NODE, Cluster, eventually, node_named, template

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch


def pod(name: str = "one", **spec: Any) -> JsonObject:
    made = template({"app": "one"}, **spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made["spec"]}


async def placed(cluster: Cluster, name: str = "one") -> str:
    async def node() -> str:
        found = await cluster.get("pods", name)
        assert found is not None
        return found["spec"].get("nodeName") or ""

    answer: str = await eventually(node)
    return answer


async def unschedulable(cluster: Cluster, name: str = "one") -> JsonObject:
    async def told() -> JsonObject | None:
        found = await cluster.get("pods", name)
        if found is None:
            await cluster.pods.create(pod(name))
            return None
        if found["spec"].get("nodeName"):
            # Bound by a scheduler that had not heard of the change to its node: it gets another.
            await cluster.pods.delete(name, grace_period=0)
            return None
        listed = found["status"].get("conditions") or []
        condition = next((c for c in listed if c["type"] == "PodScheduled"), None)
        return condition if condition and condition["status"] == "False" else None

    answer: JsonObject = await eventually(told)
    return answer


async def test_an_unschedulable_pod_has_a_condition_until_a_node_fits(cluster: Cluster) -> None:
    selector = {"example.com/disk": cluster.namespace}
    await cluster.pods.create(pod(nodeSelector=selector))
    condition = await unschedulable(cluster)
    assert condition["reason"] == "Unschedulable"
    assert "node(s) didn't match Pod's node affinity/selector" in condition["message"]
    assert condition["message"].startswith("0/1 nodes are available: 1 node(s) didn't match")

    async def event() -> bool:
        events = await cluster.list("events")
        return "FailedScheduling" in {e["reason"] for e in events}

    await eventually(event)
    nodes = cluster.client.resource("v1/nodes")
    await nodes.patch(NODE, MergePatch({"metadata": {"labels": selector}}))
    assert await placed(cluster) == NODE
    await nodes.patch(NODE, MergePatch({"metadata": {"labels": {"example.com/disk": None}}}))


@pytest.mark.any_server
async def test_a_cordoned_node_takes_no_pods(cluster: Cluster) -> None:
    nodes = cluster.client.resource("v1/nodes")
    await nodes.patch(NODE, MergePatch({"spec": {"unschedulable": True}}))
    try:
        await cluster.pods.create(pod())
        condition = await unschedulable(cluster)
        assert "0/1 nodes are available" in condition["message"]
    finally:
        await nodes.patch(NODE, MergePatch({"spec": {"unschedulable": None}}))
    assert await placed(cluster) == NODE


async def test_pods_of_other_schedulers_are_left_alone(cluster: Cluster) -> None:
    await cluster.pods.create(pod(schedulerName="mine"))
    await cluster.pods.create(pod("two"))
    await placed(cluster, "two")
    found = await cluster.get("pods", "one")
    assert found is not None
    assert not found["spec"].get("nodeName")


async def test_an_unschedulable_pod_is_reported_once(dev_cluster: Cluster) -> None:
    await dev_cluster.pods.create(pod(nodeSelector={"no": "where"}))
    await unschedulable(dev_cluster)
    await dev_cluster.pods.create(pod("two"))
    await placed(dev_cluster, "two")

    async def told() -> list[int]:
        events = await dev_cluster.list("events")
        scheduled = [e for e in events if e["reason"] == "Scheduled"]
        failed = [e["count"] for e in events if e["reason"] == "FailedScheduling"]
        return failed if scheduled else []

    assert await eventually(told) == [1]


async def test_a_gate_keeps_a_pod_from_being_placed(cluster: Cluster) -> None:
    await cluster.pods.create(pod(schedulingGates=[{"name": "example.com/wait"}]))
    await cluster.pods.create(pod("two"))
    await placed(cluster, "two")
    found = await cluster.get("pods", "one")
    assert found is not None
    assert not found["spec"].get("nodeName")
    await cluster.pods.patch("one", MergePatch({"spec": {"schedulingGates": None}}))
    assert await placed(cluster) == NODE


async def test_pods_spread_over_equal_nodes(dev_cluster: Cluster) -> None:
    await dev_cluster.client.resource("v1/nodes").create(node_named("node-2"))
    for number in range(10):
        await dev_cluster.pods.create(pod(f"pod-{number}"))
    homes = [await placed(dev_cluster, f"pod-{number}") for number in range(10)]
    assert sorted(homes) == [NODE] * 5 + ["node-2"] * 5
