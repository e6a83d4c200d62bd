from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.support import Cluster, deployment, eventually
from tests.controllers.workloads import REVISION, conditions, set_image, settled, sizes

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch


async def test_a_replica_set_is_named_and_marked_by_its_template(cluster: Cluster) -> None:
    body = deployment(replicas=1)
    body["metadata"]["annotations"] = {"example.com/note": "hello"}
    made = await cluster.deployments.create(body)
    await settled(cluster, replicas=1)
    (item,) = await cluster.list("replicasets")
    digest = item["metadata"]["labels"]["pod-template-hash"]
    assert item["metadata"]["name"] == f"web-{digest}"
    assert item["metadata"]["labels"] == {"app": "web", "pod-template-hash": digest}
    assert item["spec"]["selector"] == {"matchLabels": {"app": "web", "pod-template-hash": digest}}
    assert item["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] == digest
    # Kubernetes' own controller notes sizes besides.
    noted = {"example.com/note": "hello", REVISION: "1"}
    assert noted.items() <= item["metadata"]["annotations"].items()
    assert item["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "web",
            "uid": made["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    (pod,) = await cluster.list("pods")
    assert pod["metadata"]["name"].startswith(f"web-{digest}-")
    assert pod["metadata"]["generateName"] == f"web-{digest}-"
    assert pod["metadata"]["labels"] == {"app": "web", "pod-template-hash": digest}


@pytest.mark.any_server
async def test_a_rollout_that_never_gets_ready_keeps_the_old_pods(cluster: Cluster) -> None:
    await cluster.deployments.create(
        deployment(
            replicas=4,
            strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            progressDeadlineSeconds=2,
        )
    )
    await settled(cluster, replicas=4)
    cluster.kubelet.may_be_ready = lambda pod: pod["spec"]["containers"][0]["image"] == "web:1"
    await set_image(cluster, "web:2")

    async def stuck() -> JsonObject | None:
        found = await cluster.get("deployments", "web")
        assert found is not None
        late = conditions(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")
        return found if late else None

    found = await eventually(stuck)
    assert conditions(found)["Available"] == ("True", "MinimumReplicasAvailable")
    assert await sizes(cluster) == {"1": 3, "2": 2}
    assert found["status"]["unavailableReplicas"] == 2
    messages = [c["message"] for c in found["status"]["conditions"] if c["type"] == "Progressing"]
    assert "has timed out progressing." in messages[0]
    cluster.kubelet.may_be_ready = lambda pod: True
    cluster.kubelet.look_again()
    await settled(cluster, replicas=4)


@pytest.mark.any_server
async def test_recreate_starts_no_new_pod_while_an_old_one_runs(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2, strategy={"type": "Recreate"}))
    await settled(cluster, replicas=2)
    cluster.kubelet.may_end = lambda pod: False
    await set_image(cluster, "web:2")

    async def all_ending() -> bool:
        pods = await cluster.list("pods")
        return all(pod["metadata"].get("deletionTimestamp") for pod in pods)

    await eventually(all_ending)
    assert await sizes(cluster) == {"1": 0}
    cluster.kubelet.may_end = lambda pod: True
    cluster.kubelet.look_again()
    await settled(cluster, replicas=2)
    assert await sizes(cluster) == {"1": 0, "2": 2}


@pytest.mark.any_server
async def test_a_paused_deployment_scales_but_does_not_roll_out(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=1))
    await settled(cluster, replicas=1)
    await cluster.deployments.patch("web", MergePatch({"spec": {"paused": True}}))
    await set_image(cluster, "web:2")
    await cluster.deployments.patch("web", MergePatch({"spec": {"replicas": 2}}))

    async def scaled() -> JsonObject | None:
        found = await cluster.get("deployments", "web")
        assert found is not None
        return found if found["status"].get("availableReplicas") == 2 else None

    found = await eventually(scaled)
    assert await sizes(cluster) == {"1": 2}
    assert not found["status"].get("updatedReplicas")
    await cluster.deployments.patch("web", MergePatch({"spec": {"paused": False}}))
    await settled(cluster, replicas=2)
    assert await sizes(cluster) == {"1": 0, "2": 2}


async def test_events_tell_what_was_scaled(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2))
    await settled(cluster, replicas=2)

    async def told() -> Any:
        events = await cluster.list("events")
        return {(e["involvedObject"]["kind"], e["reason"]): e["message"] for e in events}

    async def all_told() -> Any:
        found = await told()
        wanted = {("Deployment", "ScalingReplicaSet"), ("ReplicaSet", "SuccessfulCreate")}
        return found if wanted <= found.keys() else None

    found = await eventually(all_told)
    (item,) = await cluster.list("replicasets")
    name = item["metadata"]["name"]
    assert found["Deployment", "ScalingReplicaSet"] == f"Scaled up replica set {name} from 0 to 2"
    assert found["ReplicaSet", "SuccessfulCreate"].startswith(f"Created pod: {name}-")


@pytest.mark.any_server
async def test_kubectl_follows_restarts_and_undoes_rollouts(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2))
    told = await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert 'deployment "web" successfully rolled out' in told
    await cluster.kubectl("set", "image", "deployment/web", "web=web:2")
    await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    await cluster.kubectl("rollout", "undo", "deployment/web")
    await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    found = await settled(cluster, replicas=2)
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "web:1"
    assert await sizes(cluster) == {"2": 0, "3": 2}
    await cluster.kubectl("rollout", "restart", "deployment/web")
    await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    await cluster.kubectl("scale", "deployment/web", "--replicas=1")
    await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    history = await cluster.kubectl("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines() if line[:1].isdigit()] == [
        "2",
        "3",
        "4",
    ]
