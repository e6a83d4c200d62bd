"""Deployments, ReplicaSets and StatefulSets: what their controllers do."""

from __future__ import annotations

from typing import Any

from kubeloop.client.resource import Resource
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import condition
from tests.conformance.kube import Kube, eventually, gone, names
from tests.conformance.kubelet import Kubelet
from tests.conformance.manifests import deployment, pod, replica_set, stateful_set
from tests.conformance.raw import Answer

REVISION = "deployment.kubernetes.io/revision"


async def all_of(resource: Resource[JsonObject], selector: str = "") -> list[JsonObject]:
    return [item async for item in resource.items(selector=selector)]


async def settled(resource: Resource[JsonObject], name: str, **status: Any) -> JsonObject:
    """Wait until a workload's status is of its generation and has these fields (absent is 0)."""

    async def holds() -> JsonObject | None:
        now = await resource.get(name)
        found = now.get("status", {})
        if found.get("observedGeneration") != now["metadata"]["generation"]:
            return None
        return now if all(found.get(key, 0) == value for key, value in status.items()) else None

    answer: JsonObject = await eventually(holds)
    return answer


def image(name: str) -> JsonPatch:
    path = "/spec/template/spec/containers/0/image"
    return JsonPatch([{"op": "replace", "path": path, "value": name}])


async def run_deployment(kube: Kube, replicas: int = 2, **spec: Any) -> JsonObject:
    await kube.deployments.create(deployment("web", replicas, **spec))
    return await settled(
        kube.deployments, "web", replicas=replicas, readyReplicas=replicas, updatedReplicas=replicas
    )


@behaviour("deployment.creates", "A Deployment makes a ReplicaSet, which makes pods, each owned")
async def test_deployments_make_pods(kube: Kube, kubelet: Kubelet) -> None:
    now = await run_deployment(kube, 2)
    (owned,) = await all_of(kube.replicasets)
    template_hash = owned["metadata"]["labels"]["pod-template-hash"]
    assert owned["metadata"]["name"] == f"web-{template_hash}"
    (owner,) = owned["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "web",
        "uid": now["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert owned["spec"]["selector"]["matchLabels"] == {
        "app": "web",
        "pod-template-hash": template_hash,
    }
    pods = await all_of(kube.pods)
    assert len(pods) == 2
    for found in pods:
        assert found["metadata"]["name"].startswith(f"web-{template_hash}-")
        assert found["metadata"]["generateName"] == f"web-{template_hash}-"
        assert found["metadata"]["labels"] == {"app": "web", "pod-template-hash": template_hash}
        assert found["metadata"]["ownerReferences"][0]["uid"] == owned["metadata"]["uid"]


@behaviour("deployment.revision", "Revisions are numbered on the Deployment and its ReplicaSets")
async def test_revisions_are_numbered(kube: Kube, kubelet: Kubelet) -> None:
    now = await run_deployment(kube, 1)
    assert now["metadata"]["annotations"][REVISION] == "1"
    await kube.deployments.patch("web", image("web:2"))
    now = await settled(kube.deployments, "web", updatedReplicas=1, replicas=1, readyReplicas=1)
    assert now["metadata"]["annotations"][REVISION] == "2"
    found = {s["metadata"]["annotations"][REVISION] for s in await all_of(kube.replicasets)}
    assert found == {"1", "2"}


@behaviour(
    "deployment.conditions", "A Deployment says whether it is available and how it progresses"
)
async def test_deployment_conditions(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_be_ready = lambda pod: False
    await kube.deployments.create(deployment("web", 1))
    now = await settled(kube.deployments, "web", replicas=1, unavailableReplicas=1)
    available = condition(now, "Available")
    assert available is not None
    assert (available["status"], available["reason"]) == ("False", "MinimumReplicasUnavailable")
    kubelet.may_be_ready = lambda pod: True
    kubelet.look_again()
    now = await settled(kube.deployments, "web", availableReplicas=1)
    available, progressing = condition(now, "Available"), condition(now, "Progressing")
    assert available is not None
    assert progressing is not None
    assert (available["status"], available["reason"]) == ("True", "MinimumReplicasAvailable")
    assert (progressing["status"], progressing["reason"]) == ("True", "NewReplicaSetAvailable")


@behaviour("deployment.rollout", "A change of the template moves all pods to a new ReplicaSet")
async def test_rollouts(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 3)
    (old,) = await names(kube.replicasets)
    await kube.deployments.patch("web", image("web:2"))
    await settled(kube.deployments, "web", updatedReplicas=3, replicas=3, availableReplicas=3)
    sets = {s["metadata"]["name"]: s["spec"]["replicas"] for s in await all_of(kube.replicasets)}
    assert sorted(sets.values()) == [0, 3]
    assert sets[old] == 0

    async def all_new() -> bool:
        found = [p["spec"]["containers"][0]["image"] for p in await all_of(kube.pods)]
        return found == ["web:2"] * 3

    await eventually(all_new)


@behaviour("deployment.rolling-bounds", "A rollout that cannot be ready stops within its bounds")
async def test_rollouts_stop_within_bounds(kube: Kube, kubelet: Kubelet) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    await run_deployment(kube, 3, strategy=strategy)
    kubelet.may_be_ready = lambda pod: pod["spec"]["containers"][0]["image"] == "web:1"
    await kube.deployments.patch("web", image("web:2"))
    now = await settled(kube.deployments, "web", updatedReplicas=2, availableReplicas=2, replicas=4)
    assert now["status"]["unavailableReplicas"] == 2


@behaviour("deployment.recreate", "Recreate removes all old pods before the first new one")
async def test_recreate(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 2, strategy={"type": "Recreate"})
    held = False

    def may_end(pod: JsonObject) -> bool:
        return not held

    kubelet.may_end = may_end
    held = True
    await kube.deployments.patch("web", image("web:2"))

    async def both_going() -> bool:
        pods = await all_of(kube.pods)
        return len(pods) == 2 and all(p["metadata"].get("deletionTimestamp") for p in pods)

    await eventually(both_going)
    held = False
    kubelet.look_again()
    await settled(kube.deployments, "web", updatedReplicas=2, replicas=2, availableReplicas=2)


@behaviour(
    "deployment.rollback", "The old template again brings the old ReplicaSet back, renumbered"
)
async def test_rollbacks(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 1)
    (first,) = await names(kube.replicasets)
    await kube.deployments.patch("web", image("web:2"))
    await settled(kube.deployments, "web", updatedReplicas=1, replicas=1, availableReplicas=1)
    await kube.deployments.patch("web", image("web:1"))
    now = await settled(kube.deployments, "web", updatedReplicas=1, replicas=1, availableReplicas=1)
    assert now["metadata"]["annotations"][REVISION] == "3"
    sets = {s["metadata"]["name"]: s for s in await all_of(kube.replicasets)}
    assert len(sets) == 2
    assert sets[first]["spec"]["replicas"] == 1
    assert sets[first]["metadata"]["annotations"][REVISION] == "3"


@behaviour("deployment.pause", "A paused Deployment scales but does not roll out until resumed")
async def test_paused_deployments(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 1)
    await kube.deployments.patch("web", MergePatch({"spec": {"paused": True}}))
    await kube.deployments.patch("web", image("web:2"))
    await kube.deployments.patch("web", MergePatch({"spec": {"replicas": 2}}))
    now = await settled(kube.deployments, "web", replicas=2, availableReplicas=2)
    assert "updatedReplicas" not in now["status"]
    assert len(await names(kube.replicasets)) == 1
    await kube.deployments.patch("web", MergePatch({"spec": {"paused": False}}))
    await settled(kube.deployments, "web", updatedReplicas=2, replicas=2, availableReplicas=2)


@behaviour("deployment.history", "At most revisionHistoryLimit old ReplicaSets are kept")
async def test_history_is_limited(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 1, revisionHistoryLimit=1)
    for number in (2, 3, 4):
        await kube.deployments.patch("web", image(f"web:{number}"))
        await settled(kube.deployments, "web", updatedReplicas=1, replicas=1, availableReplicas=1)

    async def limited() -> bool:
        return len(await names(kube.replicasets)) == 2

    await eventually(limited)


@behaviour("deployment.scale", "Scaling is not a rollout: the ReplicaSet and its revision stay")
async def test_scaling_is_not_a_rollout(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 1)
    scale = kube.deployments.subresource("scale")
    await scale.patch("web", MergePatch({"spec": {"replicas": 4}}))
    now = await settled(kube.deployments, "web", replicas=4, availableReplicas=4)
    assert now["metadata"]["annotations"][REVISION] == "1"
    assert len(await names(kube.replicasets)) == 1
    assert (await scale.get("web"))["status"]["replicas"] == 4


@behaviour("deployment.to-zero", "A Deployment scaled to zero has no pods and is available")
async def test_scaling_to_zero(kube: Kube, kubelet: Kubelet) -> None:
    await run_deployment(kube, 2)
    scale = kube.deployments.subresource("scale")
    await scale.patch("web", MergePatch({"spec": {"replicas": 0}}))
    now = await settled(kube.deployments, "web", replicas=0, availableReplicas=0)
    available = condition(now, "Available")
    assert available is not None
    assert available["status"] == "True"

    async def none_left() -> bool:
        return not await names(kube.pods)

    await eventually(none_left)


@behaviour("deployment.deadline", "A rollout without progress says ProgressDeadlineExceeded")
async def test_progress_deadline(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_be_ready = lambda pod: False
    await kube.deployments.create(deployment("web", 1, progressDeadlineSeconds=1))

    async def exceeded() -> bool:
        found = condition(await kube.deployments.get("web"), "Progressing")
        return found is not None and (found["status"], found["reason"]) == (
            "False",
            "ProgressDeadlineExceeded",
        )

    await eventually(exceeded)


@behaviour("deployment.min-ready", "A pod counts as available only after minReadySeconds")
async def test_min_ready_seconds(kube: Kube, kubelet: Kubelet) -> None:
    await kube.deployments.create(deployment("web", 1, minReadySeconds=3))
    now = await settled(kube.deployments, "web", readyReplicas=1)
    assert now["status"].get("availableReplicas", 0) == 0
    await settled(kube.deployments, "web", availableReplicas=1)


@behaviour("replicaset.replaces", "A pod that is deleted is replaced")
async def test_deleted_pods_are_replaced(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 2))
    await settled(kube.replicasets, "web", readyReplicas=2)
    before = set(await names(kube.pods))
    victim = min(before)
    await kube.pods.delete(victim)

    async def replaced() -> bool:
        now = set(await names(kube.pods))
        return len(now) == 2 and victim not in now

    await eventually(replaced)
    assert len(set(await names(kube.pods)) - before) == 1


@behaviour("replicaset.failed", "A pod that failed is replaced, one that is not ready is not")
async def test_failed_pods_are_replaced(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 1))
    await settled(kube.replicasets, "web", readyReplicas=1)
    (name,) = await names(kube.pods)
    status = kube.pods.subresource("status")
    await status.patch(name, MergePatch({"status": {"phase": "Failed"}}))

    async def replaced() -> bool:
        return any(other != name for other in await names(kube.pods))

    await eventually(replaced)
    await settled(kube.replicasets, "web", replicas=1, readyReplicas=1)


@behaviour("replicaset.adopts", "A pod without an owner that the selector matches is adopted")
async def test_orphans_are_adopted(kube: Kube, kubelet: Kubelet) -> None:
    await kube.pods.create(pod("orphan", metadata={"labels": {"app": "web"}}))
    made = await kube.replicasets.create(replica_set("web", 1))
    await settled(kube.replicasets, "web", replicas=1)
    assert await names(kube.pods) == ["orphan"]
    (owner,) = (await kube.pods.get("orphan"))["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)


@behaviour("replicaset.releases", "A pod whose labels no longer match is released and replaced")
async def test_pods_are_released(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 1))
    await settled(kube.replicasets, "web", readyReplicas=1)
    (name,) = await names(kube.pods)
    await kube.pods.patch(name, MergePatch({"metadata": {"labels": {"app": "free"}}}))

    async def released() -> bool:
        freed = await kube.pods.get(name)
        others = [other for other in await names(kube.pods) if other != name]
        return not freed["metadata"].get("ownerReferences") and len(others) == 1

    await eventually(released)


@behaviour("replicaset.scale-down", "Scaling down takes pods that are not ready first")
async def test_unready_pods_go_first(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 3))
    await settled(kube.replicasets, "web", readyReplicas=3)
    chosen = sorted(await names(kube.pods))[1]
    kubelet.may_be_ready = lambda pod: pod["metadata"]["name"] != chosen
    kubelet.look_again()
    await settled(kube.replicasets, "web", readyReplicas=2)
    await kube.replicasets.patch("web", MergePatch({"spec": {"replicas": 2}}))
    await gone(kube.pods, chosen)
    await settled(kube.replicasets, "web", replicas=2, readyReplicas=2)


@behaviour("replicaset.deletion-cost", "pod-deletion-cost chooses who goes when scaling down")
async def test_deletion_cost(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 3))
    await settled(kube.replicasets, "web", readyReplicas=3)
    cheap = sorted(await names(kube.pods))[1]
    annotation = {"controller.kubernetes.io/pod-deletion-cost": "-10"}
    await kube.pods.patch(cheap, MergePatch({"metadata": {"annotations": annotation}}))

    async def seen() -> bool:
        return "annotations" in (await kube.pods.get(cheap))["metadata"]

    await eventually(seen)
    await kube.replicasets.patch("web", MergePatch({"spec": {"replicas": 2}}))
    await gone(kube.pods, cheap)


@behaviour("statefulset.order", "Pods are named by ordinals and made one after another, when ready")
async def test_stateful_pods_are_made_in_order(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_be_ready = lambda pod: False
    await kube.statefulsets.create(stateful_set("db", 3))
    await settled(kube.statefulsets, "db", replicas=1)
    assert await names(kube.pods) == ["db-0"]
    kubelet.may_be_ready = lambda pod: pod["metadata"]["name"] == "db-0"
    kubelet.look_again()
    await settled(kube.statefulsets, "db", replicas=2, readyReplicas=1)
    assert await names(kube.pods) == ["db-0", "db-1"]
    kubelet.may_be_ready = lambda pod: True
    kubelet.look_again()
    await settled(kube.statefulsets, "db", replicas=3, readyReplicas=3)
    assert await names(kube.pods) == ["db-0", "db-1", "db-2"]


@behaviour("statefulset.identity", "Each pod has its ordinal in labels, and a stable host name")
async def test_stateful_pods_have_identity(kube: Kube, kubelet: Kubelet) -> None:
    await kube.statefulsets.create(stateful_set("db", 1))
    now = await settled(kube.statefulsets, "db", readyReplicas=1)
    found = await kube.pods.get("db-0")
    labels = found["metadata"]["labels"]
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-0"
    assert labels["apps.kubernetes.io/pod-index"] == "0"
    assert labels["controller-revision-hash"] == now["status"]["updateRevision"]
    assert (found["spec"]["hostname"], found["spec"]["subdomain"]) == ("db-0", "db")


@behaviour("statefulset.scale-down", "Scaling down removes the highest ordinal first, one by one")
async def test_stateful_pods_go_in_reverse(kube: Kube, kubelet: Kubelet) -> None:
    await kube.statefulsets.create(stateful_set("db", 3))
    await settled(kube.statefulsets, "db", readyReplicas=3)
    kubelet.may_end = lambda pod: False
    await kube.statefulsets.patch("db", MergePatch({"spec": {"replicas": 0}}))

    async def going() -> list[str]:
        pods = await all_of(kube.pods)
        return [p["metadata"]["name"] for p in pods if p["metadata"].get("deletionTimestamp")]

    assert await eventually(going) == ["db-2"]
    kubelet.may_end = lambda pod: True
    kubelet.look_again()
    await settled(kube.statefulsets, "db", replicas=0)


@behaviour("statefulset.parallel", "Parallel makes all pods at once")
async def test_parallel_management(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_be_ready = lambda pod: False
    await kube.statefulsets.create(stateful_set("db", 3, podManagementPolicy="Parallel"))
    await settled(kube.statefulsets, "db", replicas=3)
    assert await names(kube.pods) == ["db-0", "db-1", "db-2"]


@behaviour("statefulset.same-name", "A pod that went comes back under its name, with a new uid")
async def test_stateful_pods_come_back(kube: Kube, kubelet: Kubelet) -> None:
    await kube.statefulsets.create(stateful_set("db", 1))
    await settled(kube.statefulsets, "db", readyReplicas=1)
    before = (await kube.pods.get("db-0"))["metadata"]["uid"]
    await kube.pods.delete("db-0")

    async def back() -> bool:
        found = [p["metadata"]["uid"] for p in await all_of(kube.pods)]
        return len(found) == 1 and found[0] != before

    await eventually(back)


@behaviour("statefulset.update", "A rolling update goes from the highest ordinal down")
async def test_stateful_updates(kube: Kube, kubelet: Kubelet) -> None:
    await kube.statefulsets.create(stateful_set("db", 2))
    await settled(kube.statefulsets, "db", readyReplicas=2)
    kubelet.may_be_ready = lambda pod: pod["spec"]["containers"][0]["image"] == "web:1"
    await kube.statefulsets.patch("db", image("web:2"))

    async def images() -> bool:
        found = {p["metadata"]["name"]: p for p in await all_of(kube.pods)}
        if set(found) != {"db-0", "db-1"}:
            return False
        of = {name: p["spec"]["containers"][0]["image"] for name, p in found.items()}
        return of == {"db-0": "web:1", "db-1": "web:2"}

    await eventually(images)
    kubelet.may_be_ready = lambda pod: True
    kubelet.look_again()
    now = await settled(kube.statefulsets, "db", updatedReplicas=2, readyReplicas=2)

    async def complete() -> bool:
        status = (await kube.statefulsets.get("db"))["status"]
        return bool(status["currentRevision"] == now["status"]["updateRevision"])

    await eventually(complete)


@behaviour("statefulset.partition", "A partition keeps lower ordinals at the old revision")
async def test_partitions(kube: Kube, kubelet: Kubelet) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    await kube.statefulsets.create(stateful_set("db", 2, updateStrategy=strategy))
    await settled(kube.statefulsets, "db", readyReplicas=2)
    await kube.statefulsets.patch("db", image("web:2"))
    await settled(kube.statefulsets, "db", updatedReplicas=1, readyReplicas=2)
    found = {p["metadata"]["name"]: p for p in await all_of(kube.pods)}
    assert found["db-0"]["spec"]["containers"][0]["image"] == "web:1"
    assert found["db-1"]["spec"]["containers"][0]["image"] == "web:2"


@behaviour("statefulset.revisions", "Revisions are kept as ControllerRevisions")
async def test_controller_revisions(kube: Kube, kubelet: Kubelet) -> None:
    await kube.statefulsets.create(stateful_set("db", 1))
    now = await settled(kube.statefulsets, "db", readyReplicas=1)
    (revision,) = await all_of(kube.of("apps/v1/controllerrevisions"))
    assert revision["metadata"]["name"] == now["status"]["updateRevision"]
    assert revision["revision"] == 1
    assert revision["metadata"]["ownerReferences"][0]["uid"] == now["metadata"]["uid"]


@behaviour(
    "eviction.budget",
    "An eviction that a budget forbids is 429, one that it allows is done",
    devcluster="Budgets are stored and not counted, and there are no evictions: a dev cluster is not drained"
    " with care.",
)
async def test_budgets_hold_evictions(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 2))
    await settled(kube.replicasets, "web", readyReplicas=2)
    budgets = kube.of("policy/v1/poddisruptionbudgets")
    spec = {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}
    await budgets.create({"metadata": {"name": "web"}, "spec": spec})
    if not kube.is_dev:
        await settled(budgets, "web", disruptionsAllowed=1, expectedPods=2, currentHealthy=2)
    kubelet.may_start = lambda pod: False
    first, second = await names(kube.pods)
    answers = [await evict(kube, name) for name in (first, second)]
    if kube.is_dev:
        assert [answer.status for answer in answers] == [404, 404]
        return
    assert [answer.status for answer in answers] == [201, 429]
    refusal = answers[1].json
    assert refusal["reason"] == "TooManyRequests"
    assert refusal["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert [cause["reason"] for cause in refusal["details"]["causes"]] == ["DisruptionBudget"]


async def evict(kube: Kube, name: str) -> Answer:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return await kube.send("POST", kube.path("v1/pods", name, "eviction"), body)


@behaviour("scheduler.binds", "A pod is bound to a node that fits, and says that it is scheduled")
async def test_pods_are_scheduled(kube: Kube, kubelet: Kubelet) -> None:
    await kube.pods.create(pod("p", nodeSelector={"kubernetes.io/hostname": "pretended"}))

    async def bound() -> bool:
        return (await kube.pods.get("p"))["spec"].get("nodeName") == "pretended"

    await eventually(bound)
    found = condition(await kube.pods.get("p"), "PodScheduled")
    assert found is not None
    assert found["status"] == "True"


@behaviour("scheduler.unschedulable", "A pod that fits nowhere waits and says why")
async def test_unschedulable_pods(kube: Kube, kubelet: Kubelet) -> None:
    await kube.pods.create(pod("p", nodeSelector={"no": "such"}))

    async def refused_by_all() -> JsonObject | None:
        return condition(await kube.pods.get("p"), "PodScheduled")

    found = await eventually(refused_by_all)
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    assert "node(s) didn't match Pod's node affinity/selector" in found["message"]
