from __future__ import annotations

import pytest
from tests.controllers.support import Cluster, deployment, eventually, frozen, replica_set, template

from devkube.apiserver.faults import InjectedFault
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, MergePatch


async def with_status(cluster: Cluster, name: str = "web", **wanted: int) -> JsonObject:
    async def has() -> JsonObject | None:
        found = await cluster.get("replicasets", name)
        assert found is not None
        status = found.get("status", {})
        return found if all(status.get(k, 0) == v for k, v in wanted.items()) else None

    found: JsonObject = await eventually(has)
    return found


def names(pods: list[JsonObject]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


@pytest.mark.any_server
async def test_a_matching_pod_without_a_controller_is_adopted(cluster: Cluster) -> None:
    await cluster.pods.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **template({"app": "web"}),
            "metadata": {"name": "lone", "labels": {"app": "web"}},
        }
    )
    made = await cluster.replicasets.create(replica_set(replicas=1))
    await with_status(cluster, replicas=1)
    (pod,) = await cluster.list("pods")
    assert pod["metadata"]["name"] == "lone"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)


@pytest.mark.any_server
async def test_a_pod_that_no_longer_matches_is_released_and_replaced(
    cluster: Cluster,
) -> None:
    await cluster.replicasets.create(replica_set(replicas=1))
    await with_status(cluster, availableReplicas=1)
    (pod,) = await cluster.list("pods")
    name = pod["metadata"]["name"]
    await cluster.pods.patch(
        name, JsonPatch([{"op": "replace", "path": "/metadata/labels/app", "value": "other"}])
    )

    async def released() -> bool:
        pods = {p["metadata"]["name"]: p for p in await cluster.list("pods")}
        return len(pods) == 2 and not pods[name]["metadata"].get("ownerReferences")

    await eventually(released)


async def test_terminating_pods_are_not_waited_for(cluster: Cluster) -> None:
    await cluster.replicasets.create(replica_set(replicas=2))
    await with_status(cluster, availableReplicas=2)
    cluster.kubelet.may_end = lambda pod: False
    victim = min(names(await cluster.list("pods")))
    await cluster.pods.delete(victim)
    await eventually(lambda: count_pods(cluster, 3))
    await with_status(cluster, availableReplicas=2)


async def count_pods(cluster: Cluster, wanted: int) -> bool:
    return len(await cluster.list("pods")) == wanted


async def _failing(cluster: Cluster) -> bool:
    found = await cluster.get("replicasets", "web")
    listed = (found or {}).get("status", {}).get("conditions") or []
    return [(c["type"], c["reason"]) for c in listed] == [("ReplicaFailure", "FailedCreate")]


async def test_a_failed_creation_is_reported_and_retried(dev_cluster: Cluster) -> None:
    faults = dev_cluster.faults
    path = f"/api/v1/namespaces/{dev_cluster.namespace}/pods"
    faults.add(InjectedFault(code=500, verb="create", path=path))
    await dev_cluster.replicasets.create(replica_set(replicas=2))
    await eventually(lambda: _failing(dev_cluster))
    faults.clear()
    found = await with_status(dev_cluster, availableReplicas=2)
    await eventually(lambda: _mended(dev_cluster))
    assert found["status"]["replicas"] == 2


async def _mended(cluster: Cluster) -> bool:
    found = await cluster.get("replicasets", "web")
    return not (found or {}).get("status", {}).get("conditions")


async def touch(cluster: Cluster, number: int) -> None:
    """Change a ReplicaSet so that it is looked at again, and wait until it was."""
    generation = {"metadata": {"annotations": {"touched": str(number)}}}
    await cluster.replicasets.patch("web", MergePatch(generation))


async def test_a_stale_cache_makes_no_pod_twice(dev_cluster: Cluster) -> None:
    cluster = dev_cluster
    with frozen(cluster, "/api/v1/pods"):
        await cluster.replicasets.create(replica_set(replicas=3))

        async def three() -> bool:
            return len(await cluster.list("pods")) == 3

        await eventually(three)
        before = names(await cluster.list("pods"))
        for number in range(5):
            await touch(cluster, number)
        # Another one, made and seen after all of that, shows that there was time for it.
        await cluster.deployments.create(deployment("probe", replicas=0))
        await eventually(lambda: cluster_has_replica_sets(cluster, 2))
        assert names(await cluster.list("pods")) == before
    await with_status(cluster, availableReplicas=3)
    assert names(await cluster.list("pods")) == before


async def cluster_has_replica_sets(cluster: Cluster, number: int) -> bool:
    return len(await cluster.list("replicasets")) == number


async def test_a_stale_cache_deletes_no_pod_twice(dev_cluster: Cluster) -> None:
    cluster = dev_cluster
    await cluster.replicasets.create(replica_set(replicas=5))
    await with_status(cluster, availableReplicas=5)
    cluster.kubelet.is_dead = True
    with frozen(cluster, "/api/v1/pods"):
        await cluster.replicasets.patch("web", MergePatch({"spec": {"replicas": 3}}))
        found = await with_status(cluster, observedGeneration=2)
        assert found["spec"]["replicas"] == 3
        for number in range(5):
            await touch(cluster, number)
        await cluster.deployments.create(deployment("probe", replicas=0))
        await eventually(lambda: cluster_has_replica_sets(cluster, 2))
        ending = [p for p in await cluster.list("pods") if p["metadata"].get("deletionTimestamp")]
        assert len(ending) == 2
    await with_status(cluster, replicas=3)
    await eventually(lambda: deletions(cluster))
    assert await deletions(cluster) == 2


async def deletions(cluster: Cluster) -> int:
    """How many deletions were told of, each as often as it was."""
    events = await cluster.list("events")
    return sum(event["count"] for event in events if event["reason"] == "SuccessfulDelete")


async def test_a_paused_controller_does_what_it_was_asked_for_when_it_goes_on(
    dev_cluster: Cluster,
) -> None:
    controllers = dev_cluster.controllers
    controllers.pause("replicaset")
    assert controllers.is_paused("replicaset")
    await dev_cluster.replicasets.create(replica_set(replicas=2))
    await dev_cluster.configmaps.create({"metadata": {"name": "later"}})
    assert await dev_cluster.list("pods") == []
    controllers.resume("replicaset")
    await with_status(dev_cluster, availableReplicas=2)


async def test_pausing_an_unknown_controller_lists_the_names(dev_cluster: Cluster) -> None:
    with pytest.raises(KeyError, match="there are: deployment, replicaset"):
        dev_cluster.controllers.pause("nope")
