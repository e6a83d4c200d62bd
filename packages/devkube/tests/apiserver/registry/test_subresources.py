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

from devkube.apiserver.auth import UserInfo

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"


def service(name: str = "web", **spec):
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}], **spec},
    }


async def test_scale_shows_replicas_and_selector(kube):
    await kube.create(DEPLOYMENTS, deployment())
    scale = await kube.get(f"{DEPLOYMENTS}/web/scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 2},
        {"replicas": 0, "selector": "app=web"},
    )


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


async def test_a_pod_is_bound_once(kube):
    await kube.create(PODS, pod("a"))
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
    assert (await kube.create(f"{PODS}/a/binding", binding)).code == 201
    bound = await kube.get(f"{PODS}/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    again = await kube.create(f"{PODS}/a/binding", binding)
    assert (again.code, again["reason"]) == (409, "Conflict")


async def test_services_get_addresses_of_their_own_and_keep_them(kube):
    first = await kube.create(SERVICES, service("a"))
    second = await kube.create(SERVICES, service("b"))
    addresses = {first["spec"]["clusterIP"], second["spec"]["clusterIP"]}
    assert len(addresses) == 2
    assert all(address.startswith("127.96.") for address in addresses)
    assert first["spec"]["clusterIPs"] == [first["spec"]["clusterIP"]]
    replaced = await kube.update(f"{SERVICES}/a", service("a", ports=[{"port": 81}]))
    assert replaced["spec"]["clusterIP"] == first["spec"]["clusterIP"]
    moved = await kube.merge(f"{SERVICES}/a", {"spec": {"clusterIP": "127.96.9.9"}})
    assert moved.code == 422
    taken = await kube.create(SERVICES, service("c", clusterIP=first["spec"]["clusterIP"]))
    assert "already allocated" in taken["message"]
    outside = await kube.create(SERVICES, service("c", clusterIP="10.0.0.1"))
    assert outside.code == 422
    await kube.delete(f"{SERVICES}/a")
    again = await kube.create(SERVICES, service("c", clusterIP=first["spec"]["clusterIP"]))
    assert again.code == 201


async def test_headless_and_node_port_services(kube):
    headless = await kube.create(SERVICES, service("h", clusterIP="None"))
    assert headless["spec"]["clusterIPs"] == ["None"]
    first = await kube.create(SERVICES, service("n", type="NodePort"))
    second = await kube.create(SERVICES, service("m", type="NodePort"))
    ports = [reply["spec"]["ports"][0]["nodePort"] for reply in (first, second)]
    assert len(set(ports)) == 2
    assert all(30000 <= port < 32768 for port in ports)


async def test_tokens_and_certificates_authenticate_and_others_are_refused():
    user = UserInfo(name="robot", groups=("system:masters",))
    async with running(tokens={"secret": user}) as kube:
        async with connected(kube.server, user="") as nobody:
            assert (await nobody.get("/api/v1/namespaces")).code == 403
            assert (await nobody.get("/apis")).code == 401
            assert (await nobody.get("/healthz")).code == 200
            assert (await nobody.send("GET", "/api/v1/namespaces", token="secret")).code == 200
            assert (await nobody.send("GET", "/api/v1/namespaces", token="wrong")).code == 401
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


async def test_what_a_real_cluster_has_and_this_one_has_not_is_said_with_the_way_around(kube):
    await kube.create(PODS, pod("web"))
    for path in (f"{PODS}/web/exec", f"{PODS}/web/portforward", f"{SERVICES}/web/proxy"):
        reply = await kube.get(path)
        assert (reply.code, reply["reason"]) == (404, "NotFound")
        assert "a development cluster does not serve" in reply["message"]
    assert "could not find" in (await kube.get(f"{PODS}/web/nothing"))["message"]
