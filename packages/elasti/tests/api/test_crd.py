from __future__ import annotations

import datetime as dt
import random
import re
from typing import Any

from cronsim import CronSim, CronSimError

from elasti.api.crd import CRON, custom_resource_definition


def schema() -> dict[str, Any]:
    (version,) = custom_resource_definition()["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def walk(node: dict[str, Any], path: str = ""):
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")


def test_every_node_is_structural():
    for path, node in walk(schema()):
        untyped = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
        assert "type" in node or any(node.get(name) for name in untyped), path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title"} & node.keys(), path


def test_every_field_has_a_sentence():
    def fields(node: dict[str, Any], path: str = ""):
        for name, child in node.get("properties", {}).items():
            yield f"{path}.{name}", child
            yield from fields(child, f"{path}.{name}")
        if "items" in node:
            yield from fields(node["items"], f"{path}[]")

    for path, node in fields(schema()):
        if path == ".metadata":
            continue  # a server refuses one
        assert node.get("description", "").endswith((".", "!")), path


def test_columns_say_state_why_since_and_held():
    (version,) = custom_resource_definition()["spec"]["versions"]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert list(columns)[:4] == ["State", "Why", "Since", "Held"]
    assert columns["Since"]["type"] == "date"
    assert columns["State"]["jsonPath"] == ".status.phase"


def test_every_field_of_kubeelasti_is_there():
    spec = schema()["properties"]["spec"]["properties"]
    assert {
        "scaleTargetRef",
        "service",
        "minTargetReplicas",
        "cooldownPeriod",
        "triggers",
        "autoscaler",
        "enabledPeriod",
        "probeResponse",
    } <= spec.keys()
    assert spec["minTargetReplicas"]["default"] == 1
    nested = {
        "scaleTargetRef": {"apiVersion", "kind", "name"},
        "autoscaler": {"name", "type"},
        "enabledPeriod": {"duration", "schedule"},
    }
    for name, fields in nested.items():
        assert fields <= spec[name]["properties"].keys()
    assert {"metadata", "type"} <= spec["triggers"]["items"]["properties"].keys()
    answers = spec["probeResponse"]["items"]["properties"]
    assert {"method", "path", "response", "headers", "queryParams"} <= answers.keys()
    status = schema()["properties"]["status"]["properties"]
    assert {"lastReconciledTime", "lastScaledUpTime", "mode"} <= status.keys()


def test_conditions_merge_by_type():
    conditions = schema()["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_the_rule_for_cron_refuses_nothing_that_can_be_used():
    parts = (
        "* 0 5 07 59 23 31 12 L LW MON sun jan 5L mon#2 1-5 */5 1/5 0-10/2 1,2 MON,WED jan-mar ?"
    )
    chosen, used = random.Random(1), 0
    for _ in range(30_000):
        text = " ".join(chosen.choices(parts.split(), k=5))
        try:
            CronSim(text, dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
        except CronSimError:
            continue
        used += 1
        assert re.fullmatch(CRON, text), text
    assert used > 100
