"""Scale, bindings, Service addresses."""

from __future__ import annotations

from tests.apiserver.harness import (
    DEPLOYMENTS,
    JSON_PATCH,
    STRATEGIC,
    connected,
    deployment,
    pod,
    running,
)

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"


def service(name: str = "web", **spec):
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}], **spec},
    }


async def test_scale_is_written_with_a_version_and_in_every_patch_format(kube):
    made = await kube.create(DEPLOYMENTS, deployment())
    scale = (await kube.get(f"{DEPLOYMENTS}/web/scale")).body
    put = await kube.update(f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": 0}})
    assert put["spec"]["replicas"] == 0
    stale = await kube.update(f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": 9}})
    assert (stale.code, stale["reason"]) == (409, "Conflict")
    for kind, body in (
        (STRATEGIC, {"spec": {"replicas": 3}}),
        (JSON_PATCH, [{"op": "replace", "path": "/spec/replicas", "value": 4}]),
    ):
        reply = await kube.send("PATCH", f"{DEPLOYMENTS}/web/scale", body, kind=kind)
        assert reply.code == 200, reply
    found = await kube.get(f"{DEPLOYMENTS}/web")
    assert found["spec"]["replicas"] == 4
    assert found["metadata"]["generation"] == made["metadata"]["generation"] + 3
    assert (await kube.merge(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": -1}})).code == 422
    assert (await kube.get(f"{DEPLOYMENTS}/none/scale")).code == 404
    assert (await kube.get("/api/v1/namespaces/default/configmaps/x/scale")).code == 404


async def test_certificates_authenticate_and_others_are_refused():
    async with running() as kube:
        async with connected(kube.server, user="") as anonymous:
            assert (await anonymous.get("/api/v1/namespaces")).code == 403
            assert (await anonymous.get("/apis")).code == 403
            assert (await anonymous.send("GET", "/api/v1/namespaces", token="wrong")).code == 401
        async with connected(kube.server, user="mallory", groups=()) as mallory:
            reply = await mallory.get("/api/v1/namespaces/default/pods")
            assert (reply.code, reply["message"]) == (
                403,
                (
                    'pods is forbidden: User "mallory" cannot list resource "pods" in API group ""'
                    ' in the namespace "default"'
                ),
            )


async def test_service_account_tokens_wait_for_an_issuer(kube):
    path = "/api/v1/namespaces/default/serviceaccounts"
    await kube.create(path, {"metadata": {"name": "robot"}})
    assert (await kube.create(f"{path}/robot/token", {})).code == 501


async def test_resources_of_real_clusters_only_are_refused_with_a_workaround(kube):
    await kube.create(PODS, pod("web"))
    for path in (f"{PODS}/web/exec", f"{PODS}/web/portforward", f"{SERVICES}/web/proxy"):
        reply = await kube.get(path)
        assert (reply.code, reply["reason"]) == (404, "NotFound")
        assert "a development cluster does not serve" in reply["message"]
    assert "could not find" in (await kube.get(f"{PODS}/web/nothing"))["message"]
