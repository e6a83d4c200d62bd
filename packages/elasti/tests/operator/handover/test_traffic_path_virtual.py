"""Readers of slices beside nodes, in virtual time: Istio ambient, TargetGroupBindings, missing rights."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.operator.environment import (
    NAMESPACE,
    TARGET_GROUP_BINDINGS,
    Environment,
    FakeTrigger,
)

from elasti.operator.model.children import slice_names
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

AMBIENT = {"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}}
SLICE = slice_names("web")["IPv4"]
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


@pytest.fixture
async def env() -> Environment:
    return Environment()


def bind(env: Environment, kind: str = "ip", *ports: JsonObject) -> None:
    env.server.put(TARGET_GROUP_BINDINGS)
    spec = {"serviceRef": {"name": "web"}, "targetType": kind}
    rules = [{"ports": list(ports or ({"protocol": "TCP", "port": 8080},))}]
    env.put("targetgroupbindings", {"spec": spec | {"networking": {"ingress": rules}}}, "k8s-web")


def path(env: Environment) -> str:
    found = {one["type"]: one for one in env.status.get("conditions", ())}.get("TrafficPath", {})
    return f"{found.get('status')} {found.get('reason')}"


def names_pods(env: Environment) -> set[bool]:
    return {"targetRef" in endpoint for endpoint in env.get("endpointslices", SLICE)["endpoints"]}


async def test_an_ordinary_service_has_a_clear_path(env: Environment):
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        assert path(env) == "True Clear"
        assert names_pods(env) == {True}


@pytest.mark.parametrize("wanted", ["Auto", "None", "Pod"])
async def test_a_namespace_that_joins_a_mesh_changes_the_slice_in_place(wanted: str):
    env = Environment(target_ref=wanted)
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        before = env.get("endpointslices", SLICE)["metadata"]["uid"]
        assert names_pods(env) == {wanted != "None"}
        env.put("namespaces", AMBIENT, NAMESPACE)
        await asyncio.sleep(PATIENCE)
        assert names_pods(env) == {wanted == "Pod"}
        assert path(env) == ("False MeshPort" if wanted == "Pod" else "True Clear")
        assert env.state == "Proxy", "a warning wakes nothing"
        env.put("namespaces", {}, NAMESPACE)
        await asyncio.sleep(PATIENCE)
        assert names_pods(env) == {wanted != "None"}
        assert path(env) == "True Clear"
        assert env.get("endpointslices", SLICE)["metadata"]["uid"] == before
        assert env.dark == []


async def test_pods_in_a_mesh_count_without_their_namespace(env: Environment):
    env.web()
    labels = {"app": "web", "istio.io/dataplane-mode": "ambient"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}}
    env.change("deployments", spec={"template": template})
    async with env.operator():
        await env.becomes("Proxy")
        assert names_pods(env) == {False}


async def test_a_leader_before_it_left_a_slice_without_pods(env: Environment):
    """An upgrade, or a rollback, finds a slice of the other kind, and writes it in place."""
    env.web()
    env.put("namespaces", AMBIENT, NAMESPACE)
    async with env.operator():
        await env.becomes("Proxy")
        assert names_pods(env) == {False}
    env.put("namespaces", {}, NAMESPACE)
    async with env.operator() as later:
        await eventually(lambda: names_pods(env) == {True}, timeout=PATIENCE, every=0.05)
        assert not [write for write in later.client.writes if write.startswith("DELETE")]
    assert env.dark == []


@pytest.mark.parametrize(
    ("bound", "spec", "least", "most"),
    [
        (False, {}, 15, 60),
        (True, {}, 90, 135),
        (False, {"handover": {"engageSettle": 45}}, 45, 90),
        (False, {"handover": {"engageSettle": 1}}, 15, 60),  # the installation's is the shortest
        (True, {"handover": {"engageSettle": 45}}, 45, 90),
    ],
)
async def test_a_load_balancer_has_time_to_register_the_resolver(
    env: Environment, bound: bool, spec: dict[str, Any], least: float, most: float
):
    env.web(**spec)
    if bound:
        bind(env)
    async with env.operator():
        await env.engages()
        assert least <= await env.becomes("Proxy") <= most
        assert path(env) == ("False CloudFirewall" if bound else "True Clear")


async def test_a_cluster_with_bindings_is_looked_at_every_half_minute_and_read_for_nothing_else(
    env: Environment,
):
    env.web()
    bind(env)
    async with env.operator() as operator:
        await env.becomes("Proxy")
        await asyncio.sleep(30)
        operator.client.requests.clear()
        await asyncio.sleep(240)
        sent = [one for one in operator.client.requests if ("watch", "true") not in one.query]
        looks = Counter(one.path for one in sent)
        assert set(looks) == {
            "/api/v1/namespaces",
            "/apis/elbv2.k8s.aws/v1beta1/targetgroupbindings",
        }
        assert set(looks.values()) <= {7, 8, 9}


async def test_targets_of_two_services_wait_for_the_longer_settle(env: Environment):
    env.web()
    body = env.get("services")
    env.put("services", {"spec": body["spec"]}, "other")
    spec = {**env.get("elastiservices")["spec"], "service": "other"}
    env.put("elastiservices", {"spec": spec | {"handover": {"engageSettle": 80}}}, "other")
    async with env.operator():
        await env.engages()
        assert await env.becomes("Proxy") >= 80


async def test_the_condition_follows_the_binding(env: Environment):
    env.web()
    bind(env)
    async with env.operator():
        await env.becomes("Proxy")
        assert path(env) == "False CloudFirewall"
        bind(env, "ip", {"protocol": "TCP"})
        await asyncio.sleep(PATIENCE)
        assert path(env) == "True Clear"
        bind(env, "instance")
        await asyncio.sleep(PATIENCE)
        assert path(env) == "True Clear"
        bind(env)
        await asyncio.sleep(PATIENCE)
        assert path(env) == "False CloudFirewall"
        env.delete("targetgroupbindings", "k8s-web")
        await asyncio.sleep(PATIENCE)
        assert path(env) == "True Clear"
        assert env.state == "Proxy"
