"""Targets of other kinds than Kubernetes' own, on both servers."""

from __future__ import annotations

import pytest
from tests.controllers.support import eventually, template
from tests.operator import kinds
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import allow, define, everywhere_fast, forbid

from elasti.operator.handover import plan
from kubeloop.client import Client, Resource
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]

FARM = {"apiVersion": "example.com/v1alpha1", "kind": "Farm", "name": "web"}
FARM_RULES: list[JsonObject] = [
    {"apiGroups": ["example.com"], "resources": ["farms"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["example.com"],
        "resources": ["farms/scale"],
        "verbs": ["get", "update", "patch"],
    },
]


async def test_an_argo_rollout_sleeps_and_wakes(rig: Rig, prometheus: FakePrometheus):
    """Nobody plays Argo here, so its pods are a ReplicaSet's that the test scales with it."""
    await define(rig.client, kinds.rollout())
    rollouts = rig.client.resource("argoproj.io/v1alpha1/rollouts", namespace=rig.namespace)
    labels = {"app": "web"}
    await rollouts.create(
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": template(labels),
            },
        }
    )
    sets = rig.cluster.replicasets
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(labels)}
    await sets.create({"metadata": {"name": "web-1"}, "spec": spec})
    await rig.service()
    target = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web"}
    await rig.elastiservice(scaleTargetRef=target, triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        assert (await rollouts.get("web"))["spec"]["replicas"] == 0
        await sets.patch("web-1", MergePatch({"spec": {"replicas": 0}}))
        prometheus.value = 9.0
        assert (await rig.wake(operator, "web"))[0] == 202
        assert (await rollouts.get("web"))["spec"]["replicas"] == 1
        await sets.patch("web-1", MergePatch({"spec": {"replicas": 1}}))
        await rig.becomes("Serve")


async def test_a_preview_service_of_the_same_rollout_is_reported(rig: Rig):
    """Argo adds the revision's hash to the selector, which no pod template has."""
    await rig.web(suspend=True)
    async with rig.operator():
        await rig.becomes("Serve")
        selector = {"app": "web", "rollouts-pod-template-hash": "5b8d7f"}
        await rig.service("web-preview", selector=selector)
        await rig.says("Ready", "(web-preview)")


async def test_any_kind_with_a_scale_subresource_may_sleep_once_it_may_be_touched(rig: Rig):
    """The condition prints the rules to add; with exactly these it works, without a restart."""
    await define(rig.client, kinds.farm())
    await forbid(rig.client, "farms")
    farms = await _farm(rig)
    await rig.service()
    await rig.elastiservice(scaleTargetRef=FARM, minTargetReplicas=2)
    async with rig.operator() as operator:
        told = await rig.tells("TargetFound", "NotFound")
        assert "elasti.truefoundry.com/aggregate-to-operator" in told["message"]
        for rule in FARM_RULES:
            assert f"resources: [{rule['resources'][0]}]" in told["message"]
            assert f"verbs: [{', '.join(rule['verbs'])}]" in told["message"]
        await allow(rig.client, "farms", FARM_RULES)
        await rig.becomes("Proxy")
        code, _ = await rig.wake(operator, "web")
        assert code == 202
        assert (await farms.get("web"))["spec"]["size"] == 2
        await rig.becomes("Waking")
        await farms.patch("web", MergePatch({"spec": {"size": 0}}))
        await rig.becomes("Proxy")


async def _farm(rig: Rig):
    farms = rig.client.resource("example.com/v1alpha1/farms", namespace=rig.namespace)
    await farms.create(
        {
            "apiVersion": "example.com/v1alpha1",
            "kind": "Farm",
            "metadata": {"name": "web"},
            "spec": {"size": 0},
        }
    )
    return farms


async def test_a_kind_that_is_installed_later_is_found(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "_LONGEST_KIND_PAUSE", 0.5)
    await _undefine(rig.client, kinds.cattle(scalable=False))
    await rig.service()
    target = {"apiVersion": "example.com/v1alpha1", "kind": "Cow", "name": "web"}
    await rig.elastiservice(scaleTargetRef=target)
    rules = [
        {"apiGroups": ["example.com"], "resources": ["cattle"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["example.com"], "resources": ["cattle/scale"], "verbs": ["get", "update"]},
    ]
    await allow(rig.client, "cattle", rules)
    async with rig.operator() as operator:
        operator.wake_requests.waker.client.mapper._seconds_between = 0.1
        told = await rig.tells("TargetFound", "NotFound")
        assert "kind Cow in example.com/v1alpha1" in told["message"]
        await define(rig.client, kinds.cattle(scalable=False))
        cattle = rig.client.resource("example.com/v1alpha1/cattle", namespace=rig.namespace)
        await cattle.create(
            {
                "apiVersion": "example.com/v1alpha1",
                "kind": "Cow",
                "metadata": {"name": "web"},
                "spec": {"replicas": 0},
            }
        )
        await rig.says("TargetFound", "subresources.scale")
        whole = kinds.cattle(scalable=True)
        found = await _definitions(rig.client).get(whole["metadata"]["name"])
        await _definitions(rig.client).replace({**found, "spec": whole["spec"]})
        await rig.becomes("Proxy")


def _definitions(client: Client) -> Resource[JsonObject]:
    return client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")


async def _undefine(client: Client, definition: JsonObject) -> None:
    crds = _definitions(client)
    name = definition["metadata"]["name"]
    if name in {crd["metadata"]["name"] async for crd in crds.items()}:
        await crds.delete(name)

        async def gone() -> bool:
            return name not in {crd["metadata"]["name"] async for crd in crds.items()}

        await eventually(gone)


async def test_a_kind_without_scale_is_reported_with_a_remedy(rig: Rig):
    target = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "web"}
    await rig.service()
    await rig.elastiservice(scaleTargetRef=target)
    async with rig.operator() as operator:
        told = await rig.tells("TargetFound", "NotFound")
        assert "coordination.k8s.io/v1 Lease " in told["message"]
        assert "subresources.scale" in told["message"]
        assert (await rig.wake(operator, "web"))[0] == 503
        await rig.web(replicas=0, name="other")
        await rig.becomes("Proxy", "other")
