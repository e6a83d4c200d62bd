"""Parts of objects under paths of their own: scale, binding, eviction, tokens."""

from __future__ import annotations

import base64
import json

import pytest

from kubeloop.client import NotFound
from kubeloop.objects.patches import JsonPatch, MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import own_widgets, shared_widgets
from tests.conformance.kube import Kube, refused
from tests.conformance.manifests import deployment, pod, replica_set, stateful_set, version, widget

MAKERS = {
    "apps/v1/deployments": deployment,
    "apps/v1/replicasets": replica_set,
    "apps/v1/statefulsets": stateful_set,
}


@behaviour("scale.get", "A workload's scale tells spec, status and the selector as text")
@pytest.mark.parametrize("resource", MAKERS)
async def test_scale_of_workloads(kube: Kube, resource: str) -> None:
    made = await kube.of(resource).create(MAKERS[resource]("web", 0))
    scale = await kube.of(resource).subresource("scale").get("web")
    assert (scale["apiVersion"], scale["kind"]) == ("autoscaling/v1", "Scale")
    assert scale["metadata"]["name"] == "web"
    assert scale["metadata"]["namespace"] == kube.namespace
    assert scale["metadata"]["uid"] == made["metadata"]["uid"]
    assert scale["spec"].get("replicas", 0) == 0
    assert scale["status"]["replicas"] == 0
    assert scale["status"]["selector"] == "app=web"


@behaviour("scale.put", "A PUT of scale sets the replicas and counts as a change of spec")
async def test_scale_can_be_put(kube: Kube) -> None:
    made = deployment()
    made["spec"]["paused"] = True
    await kube.deployments.create(made)
    scale = kube.deployments.subresource("scale")
    wanted = await scale.get("web")
    wanted["spec"]["replicas"] = 3
    del wanted["metadata"]["resourceVersion"]
    answer = await scale.replace(wanted)
    assert answer["spec"]["replicas"] == 3
    now = await kube.deployments.get("web")
    assert now["spec"]["replicas"] == 3
    assert now["metadata"]["generation"] == 2


@behaviour("scale.conflict", "A PUT of scale with a stale resourceVersion is 409")
async def test_scale_conflicts(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    scale = kube.deployments.subresource("scale")
    wanted = await scale.get("web")
    await kube.deployments.patch("web", MergePatch({"spec": {"minReadySeconds": 1}}))
    wanted["spec"]["replicas"] = 3
    await refused(scale.replace(wanted), 409, "Conflict")


@behaviour("scale.patch", "Scale can be patched, by merge and by JSON patch")
async def test_scale_can_be_patched(kube: Kube) -> None:
    await kube.statefulsets.create(stateful_set("db", 0, podManagementPolicy="OrderedReady"))
    scale = kube.statefulsets.subresource("scale")
    patched = await scale.patch("db", MergePatch({"spec": {"replicas": 2}}))
    assert patched["spec"]["replicas"] == 2
    operations = [
        {"op": "test", "path": "/spec/replicas", "value": 2},
        {"op": "replace", "path": "/spec/replicas", "value": 0},
    ]
    patched = await scale.patch("db", JsonPatch(operations))
    assert patched["spec"].get("replicas", 0) == 0
    assert (await kube.statefulsets.get("db"))["spec"]["replicas"] == 0


@behaviour("scale.negative", "Negative replicas are refused")
async def test_scale_is_validated(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    scale = kube.deployments.subresource("scale")
    error = await refused(scale.patch("web", MergePatch({"spec": {"replicas": -1}})), 422)
    assert "must be greater than or equal to 0" in str(error)


@behaviour("scale.missing", "The scale of a missing workload is 404")
async def test_scale_of_nothing(kube: Kube) -> None:
    with pytest.raises(NotFound, match=r'deployments\.apps "web" not found'):
        await kube.deployments.subresource("scale").get("web")


@behaviour("scale.managed", "A change through scale is tracked under its manager and subresource")
async def test_scale_is_tracked(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    scale = kube.deployments.subresource("scale")
    await scale.patch("web", MergePatch({"spec": {"replicas": 2}}), field_manager="scaler")
    fields = (await kube.deployments.get("web"))["metadata"]["managedFields"]
    (entry,) = [entry for entry in fields if entry["manager"] == "scaler"]
    assert entry["subresource"] == "scale"
    assert entry["fieldsV1"] == {"f:spec": {"f:replicas": {}}}


@behaviour("scale.custom", "A custom resource has the scale that its definition describes")
async def test_scale_of_custom_resources(kube: Kube) -> None:
    scaled = {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    widgets = await own_widgets(kube, version(subresources=scaled))
    await widgets.create(widget(widgets.gvr.group, replicas=2))
    await widgets.subresource("status").patch(
        "w", MergePatch({"status": {"replicas": 1, "selector": "app=w"}})
    )
    scale = widgets.subresource("scale")
    found = await scale.get("w")
    assert (found["apiVersion"], found["kind"]) == ("autoscaling/v1", "Scale")
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 1, "selector": "app=w"}
    found["spec"]["replicas"] = 5
    await scale.replace(found)
    now = await widgets.get("w")
    assert now["spec"]["replicas"] == 5
    assert now["metadata"]["generation"] == 2


@behaviour("scale.custom-absent", "A custom resource without replicas has a scale of 0")
async def test_scale_without_replicas(kube: Kube) -> None:
    scaled = {
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    }
    widgets = await own_widgets(kube, version(subresources=scaled))
    await widgets.create(widget(widgets.gvr.group))
    scale = widgets.subresource("scale")
    found = await scale.patch("w", MergePatch({"spec": {"replicas": 3}}))
    assert found["spec"]["replicas"] == 3


@behaviour("scale.custom-none", "A custom resource without a scale subresource has no such path")
async def test_custom_resources_without_scale(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    await widgets.create(widget(widgets.gvr.group))
    with pytest.raises(NotFound):
        await widgets.subresource("scale").get("w")


@behaviour("binding.create", "A binding sets a pod's node and says that it is scheduled")
async def test_pods_are_bound(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    target = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "ghost"},
    }
    answer = await kube.send("POST", kube.path("v1/pods", "p", "binding"), target)
    assert (answer.status, answer.json["status"]) == (201, "Success")
    now = await kube.pods.get("p")
    assert now["spec"]["nodeName"] == "ghost"
    (scheduled,) = [c for c in now["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert scheduled["status"] == "True"


@behaviour("binding.twice", "A pod that has a node is not bound again: 409")
async def test_pods_are_bound_once(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "ghost"}}
    path = kube.path("v1/pods", "p", "binding")
    await kube.send("POST", path, target)
    target["target"]["name"] = "other"
    answer = await kube.send("POST", path, target)
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert 'pod p is already assigned to node "ghost"' in answer.json["message"]


def eviction(name: str):
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


@behaviour(
    "eviction.plain",
    "An eviction deletes the pod",
    devcluster="There are no evictions: 404 says to delete the pod, which is what `kubectl drain` does.",
)
async def test_evictions_delete(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    path = kube.path("v1/pods", "p", "eviction")
    answer = await kube.send("POST", path, eviction("p"))
    if kube.is_dev:
        assert (answer.status, "delete the pod" in answer.json["message"]) == (404, True)
        return
    assert (answer.status, answer.json["status"]) == (201, "Success")
    with pytest.raises(NotFound):
        await kube.pods.get("p")


@behaviour("eviction.missing", "The eviction of a missing pod is 404")
async def test_evictions_need_a_pod(kube: Kube) -> None:
    answer = await kube.send("POST", kube.path("v1/pods", "p", "eviction"), eviction("p"))
    assert answer.status == 404


@behaviour(
    "token.request", "A ServiceAccount's token is a JWT that names the account and its expiry"
)
async def test_tokens_can_be_asked_for(kube: Kube) -> None:
    tokens = kube.of("v1/serviceaccounts").subresource("token")
    asked = {"spec": {"audiences": ["somebody"], "expirationSeconds": 1200}}
    answer = await tokens.create("default", asked)
    assert answer["kind"] == "TokenRequest"
    assert answer["status"]["expirationTimestamp"]
    head, body, _ = answer["status"]["token"].split(".")
    assert decoded(head)["alg"] in ("RS256", "ES256")
    claims = decoded(body)
    assert claims["sub"] == f"system:serviceaccount:{kube.namespace}:default"
    assert claims["aud"] == ["somebody"]
    assert claims["exp"] - claims["iat"] == 1200
    account = await kube.of("v1/serviceaccounts").get("default")
    assert claims["kubernetes.io"] == {
        "namespace": kube.namespace,
        "serviceaccount": {"name": "default", "uid": account["metadata"]["uid"]},
    }


def decoded(part: str):
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


@behaviour("token.expiry", "A token lives for ten minutes at least")
async def test_short_tokens_are_refused(kube: Kube) -> None:
    tokens = kube.of("v1/serviceaccounts").subresource("token")
    error = await refused(tokens.create("default", {"spec": {"expirationSeconds": 5}}), 422)
    assert "may not specify a duration less than 10 minutes" in str(error)


@behaviour("token.pod-bound", "A token can be bound to a pod, and says so")
async def test_tokens_are_bound_to_pods(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    tokens = kube.of("v1/serviceaccounts").subresource("token")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}
    answer = await tokens.create("default", {"spec": {"boundObjectRef": reference}})
    claims = decoded(answer["status"]["token"].split(".")[1])
    assert claims["kubernetes.io"]["pod"] == {"name": "p", "uid": made["metadata"]["uid"]}
    reference["uid"] = "other"
    await refused(tokens.create("default", {"spec": {"boundObjectRef": reference}}), 409)


@behaviour("namespace.finalize", "A namespace is finalized through its subresource")
async def test_namespaces_are_finalized(kube: Kube) -> None:
    namespaces = kube.cluster("v1/namespaces")
    made = await namespaces.create({"metadata": {"generateName": "fin-"}})
    name = made["metadata"]["name"]
    assert made["spec"]["finalizers"] == ["kubernetes"]
    answer = await kube.send(
        "PUT",
        f"/api/v1/namespaces/{name}/finalize",
        {"metadata": {"name": name}, "spec": {"finalizers": ["example.com/mine", "kubernetes"]}},
    )
    assert answer.status == 200, answer
    assert answer.json["spec"]["finalizers"] == ["example.com/mine", "kubernetes"]


@behaviour("ephemeral.path", "A subresource that a kind does not have is 404")
async def test_unknown_subresources(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    answer = await kube.send("GET", kube.path("apps/v1/deployments", "web", "nonsense"))
    assert answer.status == 404
