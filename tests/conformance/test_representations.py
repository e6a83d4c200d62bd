"""The same objects in other forms: tables, metadata alone, YAML."""

from __future__ import annotations

import yaml

from tests.conformance.behaviours import behaviour
from tests.conformance.custom import own_widgets, shared_widgets
from tests.conformance.kube import Kube
from tests.conformance.manifests import config_map, deployment, pod, service, version, widget

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def columns(table) -> list[str]:
    return [column["name"] for column in table["columnDefinitions"]]


@behaviour("table.list", "A list as a Table has columns, a row for each object, and its metadata")
async def test_lists_as_tables(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1", "y": "2"}, labels={"mine": "yes"}))
    path = kube.path("v1/configmaps")
    table = (await kube.raw.get(path, accept=TABLE, labelSelector="mine=yes")).json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert columns(table) == ["Name", "Data", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:2] == ["a", 2]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"
    assert int(table["metadata"]["resourceVersion"]) > 0


@behaviour("table.single", "One object can be a Table too")
async def test_an_object_as_a_table(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    table = (await kube.raw.get(kube.path("v1/configmaps", "a"), accept=TABLE)).json
    assert table["kind"] == "Table"
    assert [row["cells"][0] for row in table["rows"]] == ["a"]


@behaviour(
    "table.include-object", "includeObject chooses what a row carries: nothing, or everything"
)
async def test_rows_carry_objects(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}))
    path = kube.path("v1/configmaps", "a")
    nothing = (await kube.raw.get(path, accept=TABLE, includeObject="None")).json
    assert "object" not in nothing["rows"][0] or nothing["rows"][0]["object"] is None
    everything = (await kube.raw.get(path, accept=TABLE, includeObject="Object")).json
    assert everything["rows"][0]["object"]["data"] == {"x": "1"}


@behaviour("table.columns", "Each kind has the columns that kubectl shows")
async def test_columns_of_kinds(kube: Kube) -> None:
    expected = {
        "v1/pods": [
            "Name",
            "Ready",
            "Status",
            "Restarts",
            "Age",
            "IP",
            "Node",
            "Nominated Node",
            "Readiness Gates",
        ],
        "v1/services": [
            "Name",
            "Type",
            "Cluster-IP",
            "External-IP",
            "Port(s)",
            "Age",
            "Selector",
        ],
        "apps/v1/deployments": [
            "Name",
            "Ready",
            "Up-to-date",
            "Available",
            "Age",
            "Containers",
            "Images",
            "Selector",
        ],
        "apps/v1/statefulsets": ["Name", "Ready", "Age", "Containers", "Images"],
        "discovery.k8s.io/v1/endpointslices": ["Name", "AddressType", "Ports", "Endpoints", "Age"],
        "coordination.k8s.io/v1/leases": ["Name", "Holder", "Age"],
        "v1/secrets": ["Name", "Type", "Data", "Age"],
    }
    found = {
        path: columns((await kube.raw.get(kube.path(path), accept=TABLE)).json) for path in expected
    }
    assert found == expected


@behaviour("table.cells", "The cells of pods, services and deployments read as kubectl prints them")
async def test_cells_of_kinds(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    table = (await kube.raw.get(kube.path("v1/pods", "p"), accept=TABLE)).json
    assert table["rows"][0]["cells"][:4] == ["p", "0/1", "Pending", "0"]
    made = await kube.services.create(service())
    table = (await kube.raw.get(kube.path("v1/services", "web"), accept=TABLE)).json
    cells = table["rows"][0]["cells"]
    assert cells[:5] == ["web", "ClusterIP", made["spec"]["clusterIP"], "<none>", "80/TCP"]
    await kube.deployments.create(deployment())
    table = (await kube.raw.get(kube.path("apps/v1/deployments", "web"), accept=TABLE)).json
    assert table["rows"][0]["cells"][:4] == ["web", "0/0", 0, 0]


@behaviour("table.watch", "A watch as Table has a row in every event, columns only in the first")
async def test_watches_as_tables(kube: Kube) -> None:
    version_now = await kube.version_now()
    async with kube.raw.lines(
        kube.path("v1/configmaps"),
        accept=TABLE,
        resourceVersion=version_now,
        labelSelector="mine",
        timeoutSeconds="10",
    ) as lines:
        for name in ("a", "b"):
            await kube.maps.create(config_map(name, labels={"mine": "yes"}))
        first, second = await anext(lines), await anext(lines)
    assert first["object"]["kind"] == second["object"]["kind"] == "Table"
    assert columns(first["object"]) == ["Name", "Data", "Age"]
    assert not second["object"]["columnDefinitions"]
    assert [event["object"]["rows"][0]["cells"][0] for event in (first, second)] == ["a", "b"]


@behaviour("table.custom", "Custom resources have the columns of their definition, or Name and Age")
async def test_columns_of_custom_resources(kube: Kube) -> None:
    printed = [
        {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
        {"name": "Count", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
    ]
    widgets = await own_widgets(kube, version(additionalPrinterColumns=printed))
    await widgets.create(widget(widgets.gvr.group, size="large", replicas=3))
    table = (await kube.raw.get(kube.path(str(widgets.gvr)), accept=TABLE)).json
    assert columns(table) == ["Name", "Size", "Count"]
    assert [c["priority"] for c in table["columnDefinitions"]] == [0, 0, 1]
    assert table["rows"][0]["cells"] == ["w", "large", 3]
    plain = await shared_widgets(kube)
    table = (await kube.raw.get(kube.path(str(plain.gvr)), accept=TABLE)).json
    assert columns(table) == ["Name", "Age"]


@behaviour("partial.get", "PartialObjectMetadata is the metadata alone")
async def test_metadata_alone(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", {"x": "1"}))
    partial = (await kube.raw.get(kube.path("v1/configmaps", "a"), accept=PARTIAL)).json
    assert (partial["kind"], partial["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert partial["metadata"] == made["metadata"]
    assert "data" not in partial


@behaviour("partial.list", "PartialObjectMetadataList is a list of metadata, in pages if asked")
async def test_lists_of_metadata(kube: Kube) -> None:
    for name in ("a", "b"):
        await kube.maps.create(config_map(name, {"x": "1"}, labels={"mine": "yes"}))
    path = kube.path("v1/configmaps")
    query = {"labelSelector": "mine=yes", "limit": "1"}
    listed = (await kube.raw.get(path, accept=PARTIAL_LIST, **query)).json
    assert listed["kind"] == "PartialObjectMetadataList"
    assert listed["metadata"]["continue"]
    (item,) = listed["items"]
    assert (item["kind"], item["metadata"]["name"]) == ("PartialObjectMetadata", "a")
    assert "data" not in item


@behaviour("partial.watch", "A watch can be of metadata alone")
async def test_watches_of_metadata(kube: Kube) -> None:
    version_now = await kube.version_now()
    async with kube.raw.lines(
        kube.path("v1/configmaps"),
        accept=PARTIAL,
        resourceVersion=version_now,
        labelSelector="mine",
        timeoutSeconds="10",
    ) as lines:
        await kube.maps.create(config_map("a", {"x": "1"}, labels={"mine": "yes"}))
        event = await anext(lines)
    assert event["type"] == "ADDED"
    assert event["object"]["kind"] == "PartialObjectMetadata"
    assert "data" not in event["object"]


@behaviour("accept.unacceptable", "A form that is not served is 406 NotAcceptable")
async def test_other_forms_are_not_acceptable(kube: Kube) -> None:
    path = kube.path("v1/configmaps")
    answer = await kube.raw.get(path, accept="text/html")
    assert (answer.status, answer.json["reason"]) == (406, "NotAcceptable")
    assert "application/json" in answer.json["message"]
    answer = await kube.raw.get(path, accept="application/json;as=Chair;v=v1;g=meta.k8s.io")
    assert answer.status == 406


@behaviour("accept.fallback", "The first of several forms that is served is taken")
async def test_forms_are_tried_in_order(kube: Kube) -> None:
    path = kube.path("v1/configmaps")
    accept = f"application/json;as=Table;v=v9;g=meta.k8s.io, {TABLE}, application/json"
    assert (await kube.raw.get(path, accept=accept)).json["kind"] == "Table"
    accept = "text/html, application/json"
    assert (await kube.raw.get(path, accept=accept)).json["kind"] == "ConfigMapList"
    assert (await kube.raw.get(path, accept="*/*")).json["kind"] == "ConfigMapList"


@behaviour(
    "accept.yaml",
    "Objects can be had as YAML",
    devcluster="406: answers are JSON, and `kubectl get -o yaml` makes YAML of it.",
)
async def test_yaml_is_served(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", {"x": "1"}))
    answer = await kube.raw.get(kube.path("v1/configmaps", "a"), accept="application/yaml")
    if kube.is_dev:
        assert answer.status == 406
        return
    assert answer.headers["Content-Type"] == "application/yaml"
    assert yaml.safe_load(answer.body)["data"] == made["data"]


@behaviour(
    "accept.pretty",
    "pretty=true breaks lines for people",
    devcluster="It is one line: `kubectl get --raw ... | jq` breaks it.",
)
async def test_pretty_json(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}))
    path = kube.path("v1/configmaps", "a")
    plain, pretty = await kube.raw.get(path), await kube.raw.get(path, pretty="true")
    assert plain.body.count(b"\n") <= 1
    assert (pretty.body.count(b"\n") > 5) is not kube.is_dev
    assert plain.json == pretty.json
