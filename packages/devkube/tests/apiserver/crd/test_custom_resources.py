"""Custom resources: definitions, schemas, defaults, pruning, versions, printer columns."""

from __future__ import annotations

import pytest
from tests.apiserver.harness import DEFINITIONS, WIDGETS, definition, widget

NAME = f"{DEFINITIONS}/widgets.example.com"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def test_objects_are_defaulted_and_pruned(widgets):
    made = await widgets.create(WIDGETS, widget(foo=1, extra={"any": {"thing": 1}}, port="http"))
    assert made["spec"] == {
        "size": "small",
        "extra": {"any": {"thing": 1}},
        "port": "http",
        "replicas": 1,
        "nested": {"mode": "auto"},
    }
    assert made.headers["Warning"] == '299 - "unknown field \\"spec.foo\\""'
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        (
            {"size": "huge"},
            "spec.size",
            'Unsupported value: "huge": supported values: "small", "large"',
        ),
        (
            {"replicas": -1},
            "spec.replicas",
            "Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        ),
        (
            {"replicas": "x"},
            "spec.replicas",
            'Invalid value: "string": spec.replicas in body must be of type integer: "string"',
        ),
        ({"note": "toolong"}, "spec.note", "Too long: may not be more than 5 bytes"),
        ({"items": [{"value": "x"}]}, "spec.items[0].name", "Required value"),
        (
            {"items": [{"name": "a"}, {"name": "a"}]},
            "spec.items[1]",
            'Duplicate value: {"name":"a"}',
        ),
        ({"tags": ["x", "x"]}, "spec.tags[1]", 'Duplicate value: "x"'),
        (
            {"port": {}},
            "spec.port",
            'Invalid value: "object": spec.port in body must be of type integer,string: "object"',
        ),
    ],
)
async def test_violations_are_named_by_field(widgets, spec, field, message):
    reply = await widgets.create(WIDGETS, widget(**spec))
    assert (reply.code, reply["reason"]) == (422, "Invalid")
    assert {"field": field, "message": message} == {
        key: reply["details"]["causes"][0][key] for key in ("field", "message")
    }


async def test_null_is_kept_if_allowed_and_defaulted_if_not(widgets):
    made = await widgets.create(WIDGETS, widget(note=None, replicas=None))
    assert made["spec"]["note"] is None
    assert made["spec"]["replicas"] == 1


async def test_null_that_is_not_allowed_is_as_if_absent(widgets):
    reply = await widgets.create(WIDGETS, widget(size=None))
    assert reply["details"]["causes"] == [
        {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.size"}
    ]


async def test_an_update_needs_a_version_and_strategic_patches_are_refused(widgets):
    await widgets.create(WIDGETS, widget())
    assert (await widgets.update(f"{WIDGETS}/w", widget())).code == 422
    strategic = "application/strategic-merge-patch+json"
    assert (await widgets.send("PATCH", f"{WIDGETS}/w", {}, kind=strategic)).code == 415


async def test_a_changed_schema_counts_from_the_next_write(widgets):
    await widgets.create(WIDGETS, widget())
    patch = [
        {
            "op": "add",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color",
            "value": {"type": "string", "default": "red"},
        }
    ]
    reply = await widgets.send("PATCH", NAME, patch, kind="application/json-patch+json")
    assert reply.code == 200, reply
    made = await widgets.create(WIDGETS, widget("x"))
    assert made["spec"]["color"] == "red"


def broken(change):
    body = definition()
    change(body["spec"], body["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return body


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (broken(lambda spec, schema: spec.update(group="other.com")), "metadata.name"),
        (broken(lambda spec, schema: spec.update(scope="World")), "spec.scope"),
        (
            broken(lambda spec, schema: spec.update(conversion={"strategy": "Webhook"})),
            "spec.conversion.strategy",
        ),
        (broken(lambda spec, schema: spec["versions"][0].update(storage=False)), "spec.versions"),
        (
            broken(lambda spec, schema: schema["properties"]["spec"].pop("type")),
            "spec.validation.openAPIV3Schema.properties[spec].type",
        ),
        (
            broken(
                lambda spec, schema: schema["properties"]["spec"]["properties"]["size"].update(
                    pattern="("
                )
            ),
            "spec.validation.openAPIV3Schema",
        ),
        (
            broken(
                lambda spec, schema: spec["versions"][0]["additionalPrinterColumns"][0].update(
                    jsonPath="a["
                )
            ),
            "spec.additionalPrinterColumns[0].JSONPath",
        ),
    ],
)
async def test_definitions_that_cannot_be_served_are_refused(kube, body, field):
    reply = await kube.create(DEFINITIONS, body)
    assert reply.code == 422, reply
    assert reply["details"]["causes"][0]["field"] == field


async def test_a_definition_s_identity_is_fixed(widgets):
    reply = await widgets.merge(NAME, {"spec": {"scope": "Cluster"}})
    assert reply.code == 422
    assert "spec.scope: Invalid value" in reply["message"]
