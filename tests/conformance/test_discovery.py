"""What a server says of itself: version, health, groups, resources, schemas."""

from __future__ import annotations

import re

import pytest

from kubeloop.client import NoMatch
from kubeloop.client.client import Client
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import own_widgets
from tests.conformance.kube import Kube
from tests.conformance.raw import raw_for, tls_of_kubeconfig

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@behaviour("discovery.version", "/version tells the version of the API server")
async def test_the_version(kube: Kube) -> None:
    found = (await kube.raw.get("/version")).json
    assert re.match(r"v1\.\d+\.\d+", found["gitVersion"])
    assert found["major"] == "1"
    assert set(found) >= {"gitCommit", "gitTreeState", "buildDate", "goVersion", "platform"}
    assert await kube.client.server_version() == found["gitVersion"]


@behaviour("discovery.health", "/healthz, /livez and /readyz say ok")
@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health(kube: Kube, path: str) -> None:
    answer = await kube.raw.get(path, accept="*/*")
    assert (answer.status, answer.body) == (200, b"ok")


@behaviour("discovery.health-verbose", "With verbose every check is listed")
async def test_verbose_health(kube: Kube) -> None:
    answer = await kube.send("GET", "/readyz", accept="*/*", query={"verbose": ""})
    assert "[+]ping ok" in answer.body.decode()
    assert "readyz check passed" in answer.body.decode()


@behaviour("discovery.root", "/api and /apis list the versions and groups")
async def test_roots(kube: Kube) -> None:
    core = (await kube.raw.get("/api")).json
    assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
    groups = (await kube.raw.get("/apis")).json
    assert groups["kind"] == "APIGroupList"
    found = {group["name"]: group for group in groups["groups"]}
    assert set(found) >= {
        "apps",
        "apiextensions.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "networking.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
    }
    assert found["apps"]["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}


@behaviour("discovery.group", "A group's own path lists its versions")
async def test_a_group(kube: Kube) -> None:
    found = (await kube.raw.get("/apis/apps")).json
    assert (found["kind"], found["name"]) == ("APIGroup", "apps")
    assert found["versions"] == [{"groupVersion": "apps/v1", "version": "v1"}]


RESOURCES: dict[str, dict[str, tuple[str, bool, list[str] | None]]] = {
    "/api/v1": {
        "configmaps": ("ConfigMap", True, ["cm"]),
        "pods": ("Pod", True, ["po"]),
        "services": ("Service", True, ["svc"]),
        "serviceaccounts": ("ServiceAccount", True, ["sa"]),
        "nodes": ("Node", False, ["no"]),
        "namespaces": ("Namespace", False, ["ns"]),
        "endpoints": ("Endpoints", True, ["ep"]),
        "events": ("Event", True, ["ev"]),
        "secrets": ("Secret", True, None),
    },
    "/apis/apps/v1": {
        "deployments": ("Deployment", True, ["deploy"]),
        "replicasets": ("ReplicaSet", True, ["rs"]),
        "statefulsets": ("StatefulSet", True, ["sts"]),
        "daemonsets": ("DaemonSet", True, ["ds"]),
        "controllerrevisions": ("ControllerRevision", True, None),
    },
    "/apis/policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True, ["pdb"])},
    "/apis/autoscaling/v2": {
        "horizontalpodautoscalers": ("HorizontalPodAutoscaler", True, ["hpa"])
    },
}


@behaviour("discovery.resources", "Each version lists its resources: kind, scope, short names")
@pytest.mark.parametrize("path", RESOURCES)
async def test_resources(kube: Kube, path: str) -> None:
    document = (await kube.raw.get(path)).json
    assert document["kind"] == "APIResourceList"
    listed = {resource["name"]: resource for resource in document["resources"]}
    found = {
        name: (listed[name]["kind"], listed[name]["namespaced"], listed[name].get("shortNames"))
        for name in RESOURCES[path]
    }
    assert found == RESOURCES[path]


@behaviour("discovery.verbs", "Resources list their verbs, subresources beside them")
async def test_verbs(kube: Kube) -> None:
    document = (await kube.raw.get("/apis/apps/v1")).json
    listed = {resource["name"]: resource for resource in document["resources"]}
    assert set(listed["deployments"]["verbs"]) == {
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    }
    assert set(listed["deployments/status"]["verbs"]) == {"get", "patch", "update"}
    scale = listed["deployments/scale"]
    assert (scale["group"], scale["version"], scale["kind"]) == ("autoscaling", "v1", "Scale")
    assert "all" in listed["deployments"]["categories"]


@behaviour("discovery.unknown-group", "A group that is not served is 404")
async def test_unknown_groups(kube: Kube) -> None:
    assert (await kube.raw.get("/apis/nonsense.example.com")).status == 404
    assert (await kube.raw.get("/apis/apps/v9")).status == 404


@behaviour("discovery.aggregated", "Everything can be had in one document")
async def test_aggregated_discovery(kube: Kube) -> None:
    answer = await kube.raw.get("/apis", accept=f"{AGGREGATED},application/json")
    document = answer.json
    assert (document["kind"], document["apiVersion"]) == (
        "APIGroupDiscoveryList",
        "apidiscovery.k8s.io/v2",
    )
    apps = next(item for item in document["items"] if item["metadata"]["name"] == "apps")
    (found,) = apps["versions"]
    listed = {resource["resource"]: resource for resource in found["resources"]}
    deployments = listed["deployments"]
    assert deployments["scope"] == "Namespaced"
    # Nothing but the kind, where group and version are those of the resource itself.
    assert deployments["responseKind"] == {"group": "", "version": "", "kind": "Deployment"}
    assert {part["subresource"] for part in deployments["subresources"]} == {"scale", "status"}


@behaviour("discovery.mapper", "The mapper finds kinds by name, plural and short name")
async def test_the_mapper(kube: Kube) -> None:
    mapper = kube.client.mapper
    info = await mapper.by_kind("apps/v1", "Deployment")
    assert (str(info.gvr), info.namespaced) == ("apps/v1/deployments", True)
    for name in ("deploy", "deployments", "deployment", "deployments.apps"):
        assert str((await mapper.resolve(name)).gvr) == "apps/v1/deployments"
    assert not (await mapper.resolve("ns")).namespaced
    with pytest.raises(NoMatch):
        await mapper.resolve("nonsense")


@behaviour("discovery.mapper-custom", "The mapper finds a kind that was defined a moment ago")
async def test_the_mapper_finds_new_kinds(kube: Kube) -> None:
    await kube.client.mapper.resolve("pods")
    widgets = await own_widgets(kube)
    async with Client.from_kubeconfig(kube.server.kubeconfig) as fresh:
        found = await fresh.resource_for(f"{widgets.gvr.group}/v1", "Widget")
    assert found.gvr == widgets.gvr


@behaviour(
    "discovery.openapi-v3", "/openapi/v3 lists documents, each with the schemas of a version"
)
async def test_openapi_v3(kube: Kube) -> None:
    index = (await kube.raw.get("/openapi/v3")).json
    assert {"api/v1", "apis/apps/v1"} <= set(index["paths"])
    url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
    document = (await kube.send("GET", url)).json
    assert document["openapi"].startswith("3.")
    deployment = document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"]
    assert deployment["x-kubernetes-group-version-kind"] == [
        {"group": "apps", "version": "v1", "kind": "Deployment"}
    ]
    assert "/apis/apps/v1/namespaces/{namespace}/deployments" in document["paths"]


@behaviour(
    "discovery.openapi-v2",
    "/openapi/v2 has the definitions with merge keys",
    devcluster="It is empty: kubectl reads /openapi/v3, which has them, and asks here for unknown kinds only.",
)
async def test_openapi_v2(kube: Kube) -> None:
    answer = await kube.raw.get("/openapi/v2")
    if kube.is_dev:
        assert (answer.status, b"definitions" in answer.body) == (200, False)
        return
    document = answer.json
    assert document["swagger"] == "2.0"
    pod = document["definitions"]["io.k8s.api.core.v1.PodSpec"]
    assert pod["properties"]["containers"]["x-kubernetes-patch-merge-key"] == "name"


@behaviour("discovery.anonymous", "Without credentials, only version and health can be read")
async def test_anonymous_discovery(kube: Kube) -> None:
    tls = tls_of_kubeconfig(kube.server.kubeconfig, certificate=False)
    async with raw_for(kube.server.url, tls) as nobody:
        assert (await nobody.get("/version")).status == 200
        assert (await nobody.get("/readyz", accept="*/*")).status == 200
        answer = await nobody.get(kube.path("v1/configmaps"))
    assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
    assert 'User "system:anonymous" cannot list resource "configmaps"' in answer.json["message"]
