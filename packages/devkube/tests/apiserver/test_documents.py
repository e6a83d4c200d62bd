"""Discovery, OpenAPI, health, tables and projections."""

from __future__ import annotations

import pytest
from tests.apiserver.harness import CONFIG_MAPS, DEPLOYMENTS, config_map, deployment, pod

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
PODS = "/api/v1/namespaces/default/pods"


async def test_openapi_has_a_document_for_every_group_version(widgets):
    index = await widgets.get("/openapi/v3")
    assert {"api/v1", "apis/apps/v1", "apis/example.com/v1"} <= set(index["paths"])
    apps = await widgets.get(index["paths"]["apis/apps/v1"]["serverRelativeURL"])
    schemas = apps["components"]["schemas"]
    template = schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["template"]
    assert template == {"$ref": "#/components/schemas/io.k8s.api.core.v1.PodTemplateSpec"}
    assert "io.k8s.api.core.v1.Container" in schemas
    path = apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]
    assert "fieldValidation" in [item["name"] for item in path["patch"]["parameters"]]
    custom = await widgets.get("/openapi/v3/apis/example.com/v1")
    schema = custom["components"]["schemas"]["com.example.v1.Widget"]
    assert schema["x-kubernetes-group-version-kind"][0]["kind"] == "Widget"
    assert (await widgets.get("/openapi/v3/apis/none/v1")).code == 404


async def test_references_in_openapi_all_resolve(widgets):
    def references(value):
        if isinstance(value, dict):
            for key, child in value.items():
                if key == "$ref" and isinstance(child, str):
                    yield child
                else:
                    yield from references(child)
        elif isinstance(value, list):
            for child in value:
                yield from references(child)

    for path in (await widgets.get("/openapi/v3"))["paths"]:
        document = (await widgets.get(f"/openapi/v3/{path}")).body
        known = document["components"]["schemas"]
        missing = {
            r for r in references(document) if r.removeprefix("#/components/schemas/") not in known
        }
        assert not missing, path


async def test_tables_have_kubectl_s_columns(kube):
    await kube.create(DEPLOYMENTS, deployment())
    table = await kube.send("GET", DEPLOYMENTS, accept=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "Ready",
        "Up-to-date",
        "Available",
        "Age",
        "Containers",
        "Images",
        "Selector",
    ]
    row = table["rows"][0]
    assert row["cells"][:4] == ["web", "0/2", 0, 0]
    assert row["cells"][5:] == ["web", "nginx:1", "app=web"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    one = await kube.send("GET", f"{DEPLOYMENTS}/web", accept=TABLE, includeObject="Object")
    assert one["rows"][0]["object"]["kind"] == "Deployment"


@pytest.mark.parametrize(
    ("status", "deleted", "word"),
    [
        ({"phase": "Pending"}, False, "Pending"),
        (
            {"phase": "Running", "containerStatuses": [{"state": {"running": {}}, "ready": True}]},
            False,
            "Running",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
            },
            False,
            "CrashLoopBackOff",
        ),
        (
            {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]},
            False,
            "ExitCode:3",
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]},
            False,
            "Init:0/1",
        ),
        ({"phase": "Running"}, True, "Terminating"),
    ],
)
async def test_the_status_column_of_pods(kube, status, deleted, word):
    made = pod("a", nodeName="n", initContainers=[{"name": "init", "image": "i"}])
    await kube.create(PODS, made)
    await kube.merge(f"{PODS}/a/status", {"status": status})
    if deleted:
        await kube.delete(f"{PODS}/a")
    table = await kube.send("GET", PODS, accept=TABLE)
    assert table["rows"][0]["cells"][2] == word


async def test_autoscalers_and_events_live_in_two_versions(kube):
    autoscalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 3,
        "targetCPUUtilizationPercentage": 50,
    }
    old = autoscalers.replace("v2", "v1")
    made = await kube.create(old, {"metadata": {"name": "h"}, "spec": spec})
    assert made["spec"]["targetCPUUtilizationPercentage"] == 50
    new = await kube.get(f"{autoscalers}/h")
    assert new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 50
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "message": "hello",
        "type": "Normal",
    }
    await kube.create("/api/v1/namespaces/default/events", event)
    shown = await kube.get("/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (shown["note"], shown["regarding"]["name"]) == ("hello", "p")
    selected = await kube.get("/api/v1/events", fieldSelector="involvedObject.name=p")
    assert len(selected["items"]) == 1


async def test_the_server_is_a_service_of_its_own_cluster(kube):
    service = await kube.get("/api/v1/namespaces/default/services/kubernetes")
    assert service["spec"]["clusterIP"] == "127.96.0.1"
    found = await kube.get(
        "/apis/discovery.k8s.io/v1/endpointslices",
        labelSelector="kubernetes.io/service-name=kubernetes",
    )
    (only,) = found["items"]
    assert only["endpoints"][0]["addresses"] == ["127.0.0.1"]
    assert only["ports"][0]["port"] == kube.server.port


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_tables_and_projections_come_in_the_version_that_was_asked_for(kube, version):
    await kube.create(CONFIG_MAPS, config_map("one"))
    meta = f"meta.k8s.io/{version}"
    table = await kube.send("GET", CONFIG_MAPS, accept=TABLE.replace("v=v1", f"v={version}"))
    assert (table["kind"], table["apiVersion"]) == ("Table", meta)
    assert table["rows"][0]["object"]["apiVersion"] == meta
    partial = PARTIAL_LIST.replace("v=v1", f"v={version}")
    metadata = await kube.send("GET", CONFIG_MAPS, accept=partial)
    assert (metadata["kind"], metadata["apiVersion"]) == ("PartialObjectMetadataList", meta)
    assert metadata["items"][0]["apiVersion"] == meta
