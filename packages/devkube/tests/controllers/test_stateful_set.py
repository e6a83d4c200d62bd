from __future__ import annotations

import pytest
from tests.controllers.support import Cluster, eventually
from tests.controllers.workloads import stateful_set, with_status

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, MergePatch


async def images(cluster: Cluster) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"]
        for pod in await cluster.list("pods")
    }


async def set_image(cluster: Cluster, image: str) -> None:
    path = "/spec/template/spec/containers/0/image"
    await cluster.statefulsets.patch(
        "db", JsonPatch([{"op": "replace", "path": path, "value": image}])
    )


async def delete_and_wait(cluster: Cluster, name: str) -> None:
    """Delete a pod and wait for another one of that name."""
    before = await cluster.get("pods", name)
    assert before is not None
    await cluster.pods.delete(name)

    async def is_new() -> bool:
        found = await cluster.get("pods", name)
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    await eventually(is_new)


async def test_pods_have_names_and_places_of_their_own(cluster: Cluster) -> None:
    await cluster.statefulsets.create(stateful_set(replicas=2))
    found = await with_status(cluster, availableReplicas=2)
    revision = found["status"]["currentRevision"]
    assert found["status"] == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "currentReplicas": 2,
        "updatedReplicas": 2,
        "availableReplicas": 2,
        "currentRevision": revision,
        "updateRevision": revision,
        "collisionCount": 0,
    }
    pods = sorted(await cluster.list("pods"), key=lambda pod: pod["metadata"]["name"])
    assert [pod["metadata"]["name"] for pod in pods] == ["db-0", "db-1"]
    assert pods[1]["metadata"]["labels"] == {
        "app": "db",
        "statefulset.kubernetes.io/pod-name": "db-1",
        "apps.kubernetes.io/pod-index": "1",
        "controller-revision-hash": revision,
    }
    assert (pods[1]["spec"]["hostname"], pods[1]["spec"]["subdomain"]) == ("db-1", "peers")
    (remembered,) = await cluster.list("controllerrevisions")
    assert remembered["metadata"]["name"] == revision
    assert remembered["revision"] == 1
    assert remembered["metadata"]["labels"]["app"] == "db"
    assert remembered["data"]["spec"]["template"]["$patch"] == "replace"


@pytest.mark.any_server
async def test_an_update_goes_from_the_highest_number_down_to_the_partition(
    cluster: Cluster,
) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    await cluster.statefulsets.create(stateful_set(replicas=3, updateStrategy=rolling))
    first = await with_status(cluster, availableReplicas=3)
    await set_image(cluster, "web:2")
    found = await with_status(cluster, updatedReplicas=2, availableReplicas=3)
    assert await images(cluster) == {"db-0": "web:1", "db-1": "web:2", "db-2": "web:2"}
    assert found["status"]["currentRevision"] == first["status"]["currentRevision"]
    assert found["status"]["updateRevision"] != found["status"]["currentRevision"]
    assert found["status"]["currentReplicas"] == 1
    # A pod below the partition comes back as it was.
    await delete_and_wait(cluster, "db-0")
    await with_status(cluster, availableReplicas=3, currentReplicas=1)
    assert (await images(cluster))["db-0"] == "web:1"
    await cluster.statefulsets.patch(
        "db", MergePatch({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
    )
    found = await with_status(cluster, updatedReplicas=3, availableReplicas=3, currentReplicas=3)
    assert found["status"]["currentRevision"] == found["status"]["updateRevision"]
    assert set((await images(cluster)).values()) == {"web:2"}


async def test_an_update_waits_for_each_pod(cluster: Cluster) -> None:
    await cluster.statefulsets.create(stateful_set(replicas=3))
    await with_status(cluster, availableReplicas=3)
    cluster.kubelet.may_be_ready = lambda pod: pod["spec"]["containers"][0]["image"] == "web:1"
    await set_image(cluster, "web:2")
    await with_status(cluster, updatedReplicas=1, readyReplicas=2, replicas=3)
    assert await images(cluster) == {"db-0": "web:1", "db-1": "web:1", "db-2": "web:2"}
    cluster.kubelet.may_be_ready = lambda pod: True
    cluster.kubelet.look_again()
    await with_status(cluster, updatedReplicas=3, availableReplicas=3)


async def test_on_delete_leaves_the_update_to_the_user(cluster: Cluster) -> None:
    await cluster.statefulsets.create(stateful_set(replicas=2, updateStrategy={"type": "OnDelete"}))
    await with_status(cluster, availableReplicas=2)
    await set_image(cluster, "web:2")
    await with_status(cluster, availableReplicas=2, updatedReplicas=0)
    await delete_and_wait(cluster, "db-0")
    await with_status(cluster, availableReplicas=2, updatedReplicas=1)
    assert await images(cluster) == {"db-0": "web:2", "db-1": "web:1"}


@pytest.mark.any_server
async def test_kubectl_follows_and_undoes_an_update(cluster: Cluster) -> None:
    await cluster.statefulsets.create(stateful_set(replicas=2))
    await cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=30s")
    await cluster.kubectl("set", "image", "statefulset/db", "web=web:2")
    await cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=30s")
    await cluster.kubectl("rollout", "undo", "statefulset/db")
    await cluster.kubectl("rollout", "status", "statefulset/db", "--timeout=30s")
    assert set((await images(cluster)).values()) == {"web:1"}
    revisions = await cluster.list("controllerrevisions")
    assert sorted(item["revision"] for item in revisions) == [2, 3]


async def test_a_service_gives_the_pods_their_host_names(cluster: Cluster) -> None:
    await cluster.services.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "peers"},
            "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 80}]},
        }
    )
    await cluster.statefulsets.create(stateful_set(replicas=2))

    async def both() -> list[JsonObject]:
        found = await cluster.list("slices", selector="kubernetes.io/service-name=peers")
        endpoints = [e for item in found for e in item.get("endpoints") or []]
        return found if len([e for e in endpoints if e["conditions"]["ready"]]) == 2 else []

    (item,) = await eventually(both)
    assert item["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
    assert sorted(e["hostname"] for e in item["endpoints"]) == ["db-0", "db-1"]


async def test_claims_become_empty_directories(dev_cluster: Cluster) -> None:
    body = stateful_set(
        replicas=1,
        volumeClaimTemplates=[
            {
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        ],
    )
    mounts = [{"name": "data", "mountPath": "/data"}]
    body["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = mounts
    await dev_cluster.statefulsets.create(body)
    await with_status(dev_cluster, availableReplicas=1)
    pod = await dev_cluster.get("pods", "db-0")
    assert pod is not None
    assert {"name": "data", "emptyDir": {}} in pod["spec"]["volumes"]

    async def warned() -> bool:
        return "NoStorage" in {event["reason"] for event in await dev_cluster.list("events")}

    await eventually(warned)
