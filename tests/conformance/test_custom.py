"""Custom resource definitions and the resources that they define."""

from __future__ import annotations

import copy

import pytest

from kubeloop.client import NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import DEFINITIONS, condition, install, own_widgets, shared_widgets
from tests.conformance.kube import Kube, eventually, fields_of, gone, names, refused
from tests.conformance.manifests import WIDGET_SCHEMA, definition, new_group, version, widget

STATUS: JsonObject = {"status": {}}


@behaviour(
    "custom.established", "A new definition is accepted, established, and stores its version"
)
async def test_definitions_are_established(kube: Kube) -> None:
    now = await install(kube, definition(new_group(), shortNames=["wd"]))
    for kind in ("NamesAccepted", "Established"):
        found = condition(now, kind)
        assert found is not None
        assert found["status"] == "True"
    assert now["status"]["storedVersions"] == ["v1"]
    assert now["status"]["acceptedNames"]["shortNames"] == ["wd"]
    assert now["spec"]["conversion"] == {"strategy": "None"}


@behaviour(
    "custom.discovery", "A definition's resources are discovered, with short names and categories"
)
async def test_definitions_are_discovered(kube: Kube) -> None:
    group = new_group()
    made = definition(group, version(subresources=STATUS), shortNames=["wd"], categories=["toys"])
    await install(kube, made)

    async def listed():
        answer = await kube.raw.get(f"/apis/{group}/v1")
        return answer.status == 200 and {r["name"]: r for r in answer.json["resources"]}

    resources = await eventually(listed)
    assert set(resources) == {"widgets", "widgets/status"}
    found = resources["widgets"]
    assert (found["kind"], found["singularName"], found["namespaced"]) == ("Widget", "widget", True)
    assert (found["shortNames"], found["categories"]) == (["wd"], ["toys"])
    assert set(found["verbs"]) == {
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    }


@behaviour("custom.name", "A definition's name must be plural.group")
async def test_definition_names(kube: Kube) -> None:
    made = definition(new_group())
    made["metadata"]["name"] = "wrong.example.com"
    error = await refused(kube.cluster(DEFINITIONS).create(made), 422, "Invalid")
    assert 'must be spec.names.plural+"."+spec.group' in str(error)


@behaviour("custom.schema-required", "Every version needs a structural schema")
async def test_definitions_need_a_schema(kube: Kube) -> None:
    made = definition(new_group())
    del made["spec"]["versions"][0]["schema"]
    error = await refused(kube.cluster(DEFINITIONS).create(made), 422, "Invalid")
    assert "spec.versions[0].schema.openAPIV3Schema: Required value" in str(error)


@behaviour("custom.schema-structural", "A schema that is not structural is refused, field by field")
async def test_schemas_are_structural(kube: Kube) -> None:
    made = copy.deepcopy(definition(new_group()))
    properties = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"]["properties"]["bad"] = {"properties": {"x": {"type": "string"}}}
    error = await refused(kube.cluster(DEFINITIONS).create(made), 422, "Invalid")
    assert "properties[spec].properties[bad].type: Required value" in str(error)


@behaviour("custom.one-storage", "Exactly one version is the stored one")
async def test_one_version_is_stored(kube: Kube) -> None:
    made = definition(new_group(), version("v1"), version("v2"))
    error = await refused(kube.cluster(DEFINITIONS).create(made), 422, "Invalid")
    assert "must have exactly one version marked as storage version" in str(error)


@behaviour("custom.preserve-flag", "spec.preserveUnknownFields must be false")
async def test_definitions_prune(kube: Kube) -> None:
    made = definition(new_group())
    made["spec"]["preserveUnknownFields"] = True
    error = await refused(kube.cluster(DEFINITIONS).create(made), 422, "Invalid")
    assert "preserveUnknownFields" in str(error)
    assert "must be false" in str(error)


INVALID: dict[str, tuple[JsonObject, str, str]] = {
    "enum": ({"size": "huge"}, "spec.size", 'Unsupported value: "huge"'),
    "type": ({"replicas": "three"}, "spec.replicas", "must be of type integer"),
    "maximum": ({"replicas": 11}, "spec.replicas", "should be less than or equal to 10"),
    "minimum": ({"replicas": -1}, "spec.replicas", "should be greater than or equal to 0"),
    "maxLength": ({"note": "abcdefghij"}, "spec.note", "Too long: may not be more than 8 bytes"),
    "pattern": ({"note": "ABC"}, "spec.note", "should match '^[a-z]*$'"),
    "required": ({"parts": [{"count": 1}]}, "spec.parts[0].name", "Required value"),
    "set": ({"tags": ["a", "a"]}, "spec.tags[1]", "Duplicate value"),
    "map": ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]", "Duplicate value"),
}


@behaviour("custom.validation", "Objects are validated by the schema; the causes name the fields")
@pytest.mark.parametrize("rule", INVALID)
async def test_objects_are_validated(kube: Kube, rule: str) -> None:
    spec, field, message = INVALID[rule]
    widgets = await shared_widgets(kube)
    error = await refused(widgets.create(widget(widgets.gvr.group, **spec)), 422, "Invalid")
    assert fields_of(error) == {field}
    assert message in str(error)
    assert str(error).startswith(f'Widget.{widgets.gvr.group} "w" is invalid: {field}: ')


@behaviour("custom.many-errors", "All errors of an object are reported at once")
async def test_all_errors_are_reported(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    wrong = widget(widgets.gvr.group, size="huge", replicas=99)
    error = await refused(widgets.create(wrong), 422, "Invalid")
    assert fields_of(error) == {"spec.size", "spec.replicas"}


@behaviour("custom.int-or-string", "int-or-string takes either, and nothing else")
async def test_int_or_string(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    for name, port in (("a", 80), ("b", "http")):
        made = await widgets.create(widget(widgets.gvr.group, name, port=port))
        assert made["spec"]["port"] == port
    await refused(widgets.create(widget(widgets.gvr.group, port=1.5)), 422, "Invalid")


@behaviour(
    "custom.nullable", "null stays in a nullable field and is dropped from one with a default"
)
async def test_nulls(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    made = await widgets.create(widget(widgets.gvr.group, note=None, size=None))
    assert made["spec"]["note"] is None
    assert made["spec"]["size"] == "small"


@behaviour("custom.defaults", "Defaults are filled in, also inside lists")
async def test_defaults(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    made = await widgets.create(widget(widgets.gvr.group, parts=[{"name": "a"}]))
    assert made["spec"] == {"size": "small", "parts": [{"name": "a", "mode": "auto"}]}


@behaviour(
    "custom.defaults-read", "A default that came later shows in objects that were stored before"
)
async def test_defaults_on_read(kube: Kube) -> None:
    group = new_group()
    made = copy.deepcopy(definition(group))
    await install(kube, made)
    widgets = kube.of(f"{group}/v1/widgets")
    await widgets.create(widget(group, replicas=1))
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/added"
    operation = {"op": "add", "path": path, "value": {"type": "string", "default": "here"}}
    await kube.cluster(DEFINITIONS).patch(f"widgets.{group}", JsonPatch([operation]))

    async def defaulted() -> bool:
        return (await widgets.get("w"))["spec"].get("added") == "here"

    await eventually(defaulted)


@behaviour("custom.pruning", "Unknown fields are dropped with a warning, unless they are allowed")
async def test_pruning(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    obj = widget(widgets.gvr.group, wrong=1, free={"anything": {"goes": [1, "two"]}})
    answer = await kube.send("POST", kube.path(str(widgets.gvr)), obj)
    assert answer.status == 201
    assert answer.json["spec"] == {"size": "small", "free": {"anything": {"goes": [1, "two"]}}}
    assert answer.warnings == ['299 - "unknown field \\"spec.wrong\\""']


@behaviour("custom.strict", "Strict field validation refuses unknown fields of custom resources")
async def test_strict(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    wrong = widgets.create(widget(widgets.gvr.group, wrong=1), field_validation="Strict")
    error = await refused(wrong, 400, "BadRequest")
    assert 'unknown field "spec.wrong"' in str(error)


@behaviour("custom.status", "With the status subresource, status and spec are written apart")
async def test_status_is_apart(kube: Kube) -> None:
    widgets = await own_widgets(kube, version(subresources=STATUS))
    made = await widgets.create(widget(widgets.gvr.group) | {"status": {"phase": "early"}})
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    made["status"] = {"phase": "later"}
    made["spec"]["replicas"] = 9
    stated = await widgets.subresource("status").replace(made)
    assert stated["status"] == {"phase": "later"}
    assert "replicas" not in stated["spec"]
    assert stated["metadata"]["generation"] == 1
    stated["status"] = {"phase": "wrong"}
    stated["spec"]["replicas"] = 2
    changed = await widgets.replace(stated)
    assert changed["status"] == {"phase": "later"}
    assert changed["metadata"]["generation"] == 2


@behaviour("custom.no-status", "Without the status subresource status is a field like others")
async def test_status_is_a_field(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    made = await widgets.create(widget(widgets.gvr.group) | {"status": {"phase": "early"}})
    assert made["status"] == {"phase": "early"}
    with pytest.raises(NotFound):
        await widgets.subresource("status").get("w")
    made["status"]["phase"] = "late"
    assert (await widgets.replace(made))["metadata"]["generation"] == 2


@behaviour("custom.versions", "Objects are served in every version, by changing apiVersion only")
async def test_versions(kube: Kube) -> None:
    group = new_group()
    await install(kube, definition(group, version("v1"), version("v2", storage=False)))
    await kube.of(f"{group}/v1/widgets").create(widget(group, replicas=4))
    found = await kube.of(f"{group}/v2/widgets").get("w")
    assert found["apiVersion"] == f"{group}/v2"
    assert found["spec"]["replicas"] == 4


@behaviour("custom.unserved", "A version that is not served has no path")
async def test_unserved_versions(kube: Kube) -> None:
    group = new_group()
    old = version("v1beta1", storage=False) | {"served": False}
    await install(kube, definition(group, version("v1"), old))
    answer = await kube.raw.get(f"/apis/{group}/v1beta1/widgets")
    assert answer.status == 404


@behaviour(
    "custom.deprecated", "A deprecated version answers with a warning that names a better one"
)
async def test_deprecated_versions(kube: Kube) -> None:
    group = new_group()
    old = version("v1beta1", storage=False, deprecated=True)
    await install(kube, definition(group, version("v1"), old))
    answer = await kube.raw.get(kube.path(f"{group}/v1beta1/widgets"))
    said = f"{group}/v1beta1 Widget is deprecated; use {group}/v1 Widget"
    assert answer.warnings == [f'299 - "{said}"']


@behaviour("custom.cluster-scope", "A definition may be for objects without a namespace")
async def test_cluster_scope(kube: Kube) -> None:
    group = new_group()
    made = definition(group)
    made["spec"]["scope"] = "Cluster"
    await install(kube, made)
    widgets = kube.cluster(f"{group}/v1/widgets")
    found = await widgets.create(widget(group))
    assert "namespace" not in found["metadata"]
    answer = await kube.send("GET", kube.path(f"{group}/v1/widgets"))
    assert answer.status == 404


@behaviour("custom.deletion", "Deleting a definition deletes its objects and then its paths")
async def test_deletion_of_a_definition(kube: Kube) -> None:
    group = new_group()
    await install(kube, definition(group))
    widgets = kube.of(f"{group}/v1/widgets")
    await widgets.create(widget(group))
    definitions = kube.cluster(DEFINITIONS)
    await definitions.delete(f"widgets.{group}")
    await gone(definitions, f"widgets.{group}")

    async def unserved() -> bool:
        return (await kube.raw.get(f"/apis/{group}/v1/widgets")).status == 404

    await eventually(unserved)
    await install(kube, definition(group))
    with pytest.raises(NotFound):
        await widgets.get("w")


@behaviour("custom.deletion-finalizer", "A definition goes only when its last object is gone")
async def test_deletion_waits_for_objects(kube: Kube) -> None:
    group = new_group()
    await install(kube, definition(group))
    widgets = kube.of(f"{group}/v1/widgets")
    held = widget(group)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await widgets.create(held)
    definitions = kube.cluster(DEFINITIONS)
    await definitions.delete(f"widgets.{group}")

    async def terminating() -> bool:
        found = condition(await definitions.get(f"widgets.{group}"), "Terminating")
        return found is not None and found["status"] == "True"

    await eventually(terminating)
    error = await refused(widgets.create(widget(group, "new")), 403, "Forbidden")
    assert "create not allowed while custom resource definition is terminating" in str(error)
    await widgets.patch("w", MergePatch({"metadata": {"finalizers": None}}))
    await gone(definitions, f"widgets.{group}")


@behaviour(
    "custom.ratcheting",
    "An update that leaves an invalid field as it was is let through",
    devcluster="422: an object that a stricter schema refuses is changed with all that it refuses.",
)
async def test_ratcheting(kube: Kube) -> None:
    group = new_group()
    await install(kube, definition(group))
    widgets = kube.of(f"{group}/v1/widgets")
    await widgets.create(widget(group, replicas=7))
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/maximum"
    operation = {"op": "replace", "path": path, "value": 5}
    await kube.cluster(DEFINITIONS).patch(f"widgets.{group}", JsonPatch([operation]))

    async def tightened() -> bool:
        answer = await kube.send(
            "POST",
            kube.path(f"{group}/v1/widgets"),
            widget(group, "probe", replicas=6),
            query={"dryRun": "All"},
        )
        return answer.status == 422

    await eventually(tightened)
    change = widgets.patch("w", MergePatch({"spec": {"note": "abc"}}))
    if kube.is_dev:
        await refused(change, 422)
        return
    kept = await change
    assert kept["spec"]["replicas"] == 7
    await refused(widgets.patch("w", MergePatch({"spec": {"replicas": 8}})), 422)


@behaviour(
    "custom.cel",
    "x-kubernetes-validations are evaluated",
    devcluster="expressions (CEL) are stored but not evaluated: there is no interpreter in the package",
)
async def test_expressions(kube: Kube) -> None:
    schema = copy.deepcopy(WIDGET_SCHEMA)
    rule = {"rule": "self.replicas <= 3", "message": "three at most"}
    schema["properties"]["spec"]["x-kubernetes-validations"] = [rule]
    widgets = await own_widgets(kube, version(schema={"openAPIV3Schema": schema}))
    creation = widgets.create(widget(widgets.gvr.group, replicas=4))
    if kube.is_dev:
        await creation
        return
    error = await refused(creation, 422, "Invalid")
    assert "spec: Invalid value: three at most" in str(error)
    await widgets.create(widget(widgets.gvr.group, replicas=3))


@behaviour("custom.selectable", "Fields that a definition makes selectable can be selected")
async def test_selectable_fields(kube: Kube) -> None:
    widgets = await own_widgets(kube, version(selectableFields=[{"jsonPath": ".spec.size"}]))
    await widgets.create(widget(widgets.gvr.group, "a", size="large"))
    await widgets.create(widget(widgets.gvr.group, "b"))
    assert await names(widgets, field_selector="spec.size=large") == ["a"]


@behaviour("custom.openapi", "The schema of a definition is published")
async def test_schemas_are_published(kube: Kube) -> None:
    group = new_group()
    await install(kube, definition(group))

    async def published():
        answer = await kube.raw.get(f"/openapi/v3/apis/{group}/v1")
        return answer.status == 200 and answer.json["components"]["schemas"]

    schemas = await eventually(published)
    (found,) = [schema for name, schema in schemas.items() if name.endswith(".v1.Widget")]
    assert found["properties"]["spec"]["properties"]["replicas"]["maximum"] == 10
    kinds = found["x-kubernetes-group-version-kind"]
    assert kinds == [{"group": group, "version": "v1", "kind": "Widget"}]
