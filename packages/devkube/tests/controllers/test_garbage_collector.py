from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.support import Cluster, deployment, eventually, frozen

from kubeloop.client import ApiError
from kubeloop.objects.meta import JsonObject


def config_map(name: str, *owners: JsonObject, block: bool = False, **metadata: Any) -> JsonObject:
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "ownerReferences": references,
            **metadata,
        },
    }


async def gone(cluster: Cluster, plural: str, *names: str, timeout: float | None = None) -> None:
    async def all_gone() -> bool:
        found = {item["metadata"]["name"] for item in await cluster.list(plural)}
        return not found & set(names)

    await eventually(all_gone, timeout=timeout)


async def test_a_deployment_takes_its_replica_sets_and_pods_along(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2))

    async def two_pods() -> bool:
        return len(await cluster.list("pods")) == 2

    await eventually(two_pods)
    await cluster.deployments.delete("web", propagation="Background")

    async def nothing() -> bool:
        return not await cluster.list("replicasets") and not await cluster.list("pods")

    await eventually(nothing)


async def test_foreground_deletion_waits_for_blocking_dependents(cluster: Cluster) -> None:
    owner = await cluster.configmaps.create(config_map("owner"))
    await cluster.configmaps.create(
        config_map("child", owner, block=True, finalizers=["example.com/hold"])
    )
    await cluster.configmaps.delete("owner", propagation="Foreground")

    async def child_is_going() -> bool:
        child = await cluster.get("configmaps", "child")
        return child is not None and bool(child["metadata"].get("deletionTimestamp"))

    await eventually(child_is_going)
    still = await cluster.get("configmaps", "owner")
    assert still is not None
    assert still["metadata"]["finalizers"] == ["foregroundDeletion"]
    child = await cluster.get("configmaps", "child")
    assert child is not None
    child["metadata"]["finalizers"] = []
    await cluster.configmaps.replace(child)
    await gone(cluster, "configmaps", "owner", "child")


async def test_orphaned_dependents_stay_without_their_owner(cluster: Cluster) -> None:
    owner = await cluster.configmaps.create(config_map("owner"))
    await cluster.configmaps.create(config_map("child", owner))
    await cluster.configmaps.delete("owner", propagation="Orphan")
    await gone(cluster, "configmaps", "owner")
    child = await cluster.get("configmaps", "child")
    assert child is not None
    assert not child["metadata"].get("ownerReferences")


async def test_an_object_goes_only_with_its_last_owner(cluster: Cluster) -> None:
    one = await cluster.configmaps.create(config_map("one"))
    two = await cluster.configmaps.create(config_map("two"))
    await cluster.configmaps.create(config_map("child", one, two))
    await cluster.configmaps.delete("one", propagation="Background")

    async def one_owner() -> bool:
        child = await cluster.get("configmaps", "child")
        assert child is not None
        return [o["name"] for o in child["metadata"]["ownerReferences"]] == ["two"]

    await eventually(one_owner)
    await cluster.configmaps.delete("two", propagation="Background")
    await gone(cluster, "configmaps", "child")


@pytest.mark.parametrize("case", ["another uid", "no such name", "another namespace"])
async def test_an_owner_that_is_not_there_owns_nothing(cluster: Cluster, case: str) -> None:
    owner = await cluster.configmaps.create(config_map("owner"))
    if case == "another uid":
        owner["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555"
    elif case == "no such name":
        owner["metadata"]["name"] = "nobody"
    else:
        elsewhere = config_map("owner")
        elsewhere["metadata"]["namespace"] = "kube-public"
        owner = await cluster.client.resource("v1/configmaps").create(elsewhere)
    await cluster.configmaps.create(config_map("child", owner))
    await gone(cluster, "configmaps", "child")


async def test_cluster_scoped_owners_own_objects_in_namespaces(cluster: Cluster) -> None:
    owner = await cluster.client.resource("v1/namespaces").get("default")
    await cluster.configmaps.create(config_map("child", owner))
    other = await cluster.configmaps.create(config_map("probe"))
    await cluster.configmaps.create(
        config_map("garbage", {**other, "metadata": {**other["metadata"], "uid": "x" * 8}})
    )
    await gone(cluster, "configmaps", "garbage")
    assert await cluster.get("configmaps", "child") is not None


WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.mark.any_server
async def test_custom_resources_defined_later_own_and_are_owned(cluster: Cluster) -> None:
    await cluster.client.resource("apiextensions.k8s.io/v1/customresourcedefinitions").create(
        WIDGETS
    )
    body = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "owner"},
    }
    widget = await eventually(lambda: _try_create(cluster, body))
    await cluster.configmaps.create(config_map("child", widget))
    below = {**body, "metadata": config_map("w", widget)["metadata"]}
    await cluster.widgets.create(below)
    await cluster.widgets.delete("owner", propagation="Background")
    # Kubernetes looks for new kinds every half minute.
    await gone(cluster, "configmaps", "child", timeout=70)
    await gone(cluster, "widgets", "w", timeout=70)


async def _try_create(cluster: Cluster, body: JsonObject) -> JsonObject | None:
    try:
        made: JsonObject = await cluster.widgets.create(body)
        return made
    except ApiError:
        return None


async def running(cluster: Cluster, number: int) -> None:
    async def ready() -> bool:
        pods = await cluster.list("pods")
        return [p["status"].get("phase") for p in pods] == ["Running"] * number

    await eventually(ready)


async def test_kubectl_deletes_a_deployment_in_the_foreground(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2))
    await running(cluster, 2)
    await cluster.kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=30s")
    assert await cluster.list("replicasets") == []
    assert await cluster.list("pods") == []


@pytest.mark.any_server
async def test_what_kubectl_orphans_is_adopted_by_the_next_of_the_kind(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2))
    await running(cluster, 2)
    before = {pod["metadata"]["uid"] for pod in await cluster.list("pods")}
    await cluster.kubectl("delete", "deployment", "web", "--cascade=orphan")
    (item,) = await cluster.list("replicasets")
    assert not item["metadata"].get("ownerReferences")
    made = await cluster.deployments.create(deployment(replicas=2))

    async def adopted() -> bool:
        (found,) = await cluster.list("replicasets")
        owners = found["metadata"].get("ownerReferences") or []
        return [owner["uid"] for owner in owners] == [made["metadata"]["uid"]]

    await eventually(adopted)

    async def complete() -> bool:
        found = await cluster.get("deployments", "web")
        return ((found or {}).get("status") or {}).get("availableReplicas") == 2

    await eventually(complete)
    assert {pod["metadata"]["uid"] for pod in await cluster.list("pods")} == before


async def test_an_owner_in_the_foreground_takes_dependents_of_dependents(
    cluster: Cluster,
) -> None:
    owner = await cluster.configmaps.create(config_map("owner"))
    middle = await cluster.configmaps.create(config_map("middle", owner, block=True))
    await cluster.configmaps.create(config_map("leaf", middle, block=True))
    await cluster.configmaps.delete("owner", propagation="Foreground")
    await gone(cluster, "configmaps", "owner", "middle", "leaf")


@pytest.mark.any_server
async def test_a_circle_of_owners_can_be_deleted(cluster: Cluster) -> None:
    one = await cluster.configmaps.create(config_map("one"))
    two = await cluster.configmaps.create(config_map("two", one, block=True))
    body = config_map("one", two, block=True)
    body["metadata"]["resourceVersion"] = one["metadata"]["resourceVersion"]
    await cluster.configmaps.replace(body)
    await cluster.configmaps.delete("one", propagation="Foreground")
    await gone(cluster, "configmaps", "one", "two")


async def test_a_paused_collector_leaves_dependents_until_it_goes_on(
    dev_cluster: Cluster,
) -> None:
    dev_cluster.controllers.pause("garbagecollector")
    owner = await dev_cluster.configmaps.create(config_map("owner"))
    await dev_cluster.configmaps.create(config_map("child", owner))
    await dev_cluster.configmaps.delete("owner")
    assert await dev_cluster.get("configmaps", "child") is not None
    dev_cluster.controllers.resume("garbagecollector")
    await gone(dev_cluster, "configmaps", "child")


async def test_a_stale_graph_deletes_nothing_that_has_a_new_owner(dev_cluster: Cluster) -> None:
    cluster = dev_cluster
    old = await cluster.secrets.create({"metadata": {"name": "old"}})
    new = await cluster.secrets.create({"metadata": {"name": "new"}})
    old, new = ({**made, "apiVersion": "v1", "kind": "Secret"} for made in (old, new))
    await cluster.configmaps.create(config_map("child", old))
    probe = await cluster.configmaps.create(config_map("probe", old))
    assert probe["metadata"]["ownerReferences"]
    with frozen(cluster, "/api/v1/configmaps"):
        child = await cluster.get("configmaps", "child")
        assert child is not None
        child["metadata"]["ownerReferences"] += config_map("x", new)["metadata"]["ownerReferences"]
        await cluster.configmaps.replace(child)
        await cluster.secrets.delete("old")
        # The other dependent of the same owner goes: both were looked at.
        await gone(cluster, "configmaps", "probe")
        assert await cluster.get("configmaps", "child") is not None

    async def disowned() -> bool:
        found = await cluster.get("configmaps", "child")
        assert found is not None
        return [o["name"] for o in found["metadata"]["ownerReferences"]] == ["new"]

    await eventually(disowned)
