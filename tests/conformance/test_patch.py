"""Patches: JSON, merge, strategic."""

from __future__ import annotations

import pytest

from kubeloop.client import NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch, MergePatch, StrategicMergePatch
from tests.conformance import raw
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import shared_widgets
from tests.conformance.kube import Kube, refused
from tests.conformance.manifests import config_map, deployment, pod, service, widget


def containers(obj):
    return obj["spec"]["template"]["spec"]["containers"]


@behaviour("patch.json", "JSON patch operations are applied in order")
async def test_json_patches(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1", "y": "2"}))
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "one"},
        {"op": "remove", "path": "/data/y"},
        {"op": "add", "path": "/data/z", "value": "3"},
        {"op": "copy", "from": "/data/x", "path": "/data/copy"},
        {"op": "move", "from": "/data/z", "path": "/data/moved"},
    ]
    patched = await kube.maps.patch("a", JsonPatch(operations))
    assert patched["data"] == {"x": "one", "copy": "one", "moved": "3"}


@behaviour("patch.json-test", "A failed test operation is 422 and nothing is changed")
async def test_a_failed_test_refuses_the_whole_patch(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}))
    operations = [
        {"op": "add", "path": "/data/y", "value": "2"},
        {"op": "test", "path": "/data/x", "value": "no"},
    ]
    error = await refused(kube.maps.patch("a", JsonPatch(operations)), 422, "Invalid")
    assert "the server rejected our request due to an error in our request" in str(error)
    assert (await kube.maps.get("a"))["data"] == {"x": "1"}


@behaviour("patch.json-missing", "Removing what is not there is 422, replacing it adds it")
async def test_what_is_removed_must_exist(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}))
    operation = {"op": "remove", "path": "/data/none"}
    await refused(kube.maps.patch("a", JsonPatch([operation])), 422, "Invalid")
    operation = {"op": "replace", "path": "/data/none", "value": "1"}
    patched = await kube.maps.patch("a", JsonPatch([operation]))
    assert patched["data"] == {"x": "1", "none": "1"}


@behaviour("patch.empty-map", "A map that loses its last key is gone")
async def test_empty_maps_are_dropped(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}, labels={"l": "1"}))
    patch = MergePatch({"data": {"x": None}, "metadata": {"labels": {"l": None}}})
    patched = await kube.maps.patch("a", patch)
    assert "data" not in patched
    assert "labels" not in patched["metadata"]


@behaviour("patch.json-escape", "Pointers escape ~ and / as ~0 and ~1")
async def test_pointers_escape(kube: Kube) -> None:
    await kube.maps.create(config_map("a", annotations={"example.com/x": "1"}))
    path = "/metadata/annotations/example.com~1x"
    patched = await kube.maps.patch("a", JsonPatch([{"op": "remove", "path": path}]))
    assert "annotations" not in patched["metadata"]


@behaviour("patch.json-list", "JSON patches reach list elements by index, and append with -")
async def test_lists_are_indexed(kube: Kube) -> None:
    await kube.services.create(service())
    port = {"name": "other", "port": 81, "protocol": "TCP", "targetPort": 81}
    operations: list[JsonObject] = [
        {"op": "add", "path": "/spec/ports/-", "value": port},
        {"op": "replace", "path": "/spec/ports/0/port", "value": 90},
    ]
    patched = await kube.services.patch("web", JsonPatch(operations))
    assert [item["port"] for item in patched["spec"]["ports"]] == [90, 81]


@behaviour("patch.json-malformed", "A malformed JSON patch is 400")
async def test_a_malformed_patch_is_refused(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    path = kube.path("v1/configmaps", "a")
    answer = await kube.send("PATCH", path, {"op": "add"}, kind=raw.JSON_PATCH)
    assert answer.status == 400, answer


@behaviour("patch.merge", "A merge patch sets fields, null removes them, lists are replaced whole")
async def test_merge_patches(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    await kube.deployments.patch(
        "web", MergePatch({"metadata": {"annotations": {"a": "1", "b": "2"}}})
    )
    template = {"spec": {"containers": [{"name": "new", "image": "new:1"}]}}
    patched = await kube.deployments.patch(
        "web",
        MergePatch({"metadata": {"annotations": {"a": None}}, "spec": {"template": template}}),
    )
    assert "a" not in patched["metadata"]["annotations"]
    assert patched["metadata"]["annotations"]["b"] == "2"
    assert [item["name"] for item in containers(patched)] == ["new"]


@behaviour("patch.strategic-merge-key", "A strategic patch merges lists by their merge key")
async def test_strategic_patches_merge_by_key(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    added = {"name": "second", "image": "second:1"}
    changed = {"name": "main", "env": [{"name": "A", "value": "1"}]}
    template = {"spec": {"containers": [added, changed]}}
    patched = await kube.deployments.patch(
        "web", StrategicMergePatch({"spec": {"template": template}})
    )
    found = {item["name"]: item for item in containers(patched)}
    assert set(found) == {"main", "second"}
    assert found["main"]["image"] == "web:1"
    assert found["main"]["env"] == [{"name": "A", "value": "1"}]


@behaviour("patch.strategic-delete", "$patch: delete removes a list element by its merge key")
async def test_elements_are_deleted_by_directive(kube: Kube) -> None:
    made = deployment()
    containers(made).append({"name": "second", "image": "second:1"})
    await kube.deployments.create(made)
    template = {"spec": {"containers": [{"name": "main", "$patch": "delete"}]}}
    patched = await kube.deployments.patch(
        "web", StrategicMergePatch({"spec": {"template": template}})
    )
    assert [item["name"] for item in containers(patched)] == ["second"]


@behaviour("patch.strategic-replace", "$patch: replace replaces a whole map or list")
async def test_maps_are_replaced_by_directive(kube: Kube) -> None:
    await kube.services.create(service(selector={"app": "web", "tier": "front"}))
    patch = {"spec": {"selector": {"$patch": "replace", "only": "this"}}}
    patched = await kube.services.patch("web", StrategicMergePatch(patch))
    assert patched["spec"]["selector"] == {"only": "this"}
    ports = [{"$patch": "replace"}, {"name": "b", "port": 82}]
    patched = await kube.services.patch("web", StrategicMergePatch({"spec": {"ports": ports}}))
    assert [item["port"] for item in patched["spec"]["ports"]] == [82]


@behaviour("patch.strategic-order", "$setElementOrder puts list elements in order")
async def test_elements_are_ordered_by_directive(kube: Kube) -> None:
    made = deployment()
    containers(made).append({"name": "second", "image": "second:1"})
    await kube.deployments.create(made)
    order = {
        "$setElementOrder/containers": [{"name": "second"}, {"name": "main"}],
        "containers": [{"name": "main", "image": "web:2"}],
    }
    patched = await kube.deployments.patch(
        "web", StrategicMergePatch({"spec": {"template": {"spec": order}}})
    )
    assert [item["name"] for item in containers(patched)] == ["second", "main"]


@behaviour("patch.strategic-primitive-delete", "$deleteFromPrimitiveList takes values from a list")
async def test_primitives_are_deleted_by_directive(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=["example.com/a", "example.com/b"]))
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    patched = await kube.maps.patch("a", StrategicMergePatch(patch))
    assert patched["metadata"]["finalizers"] == ["example.com/b"]


@behaviour("patch.strategic-retain", "$retainKeys drops every other key of a union")
async def test_keys_are_retained_by_directive(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    strategy = {"$retainKeys": ["type"], "type": "Recreate"}
    patched = await kube.deployments.patch(
        "web", StrategicMergePatch({"spec": {"strategy": strategy}})
    )
    assert patched["spec"]["strategy"] == {"type": "Recreate"}


@behaviour("patch.strategic-finalizers", "Finalizers are a set to a strategic patch")
async def test_finalizers_are_merged(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=["example.com/a"]))
    patch = {"metadata": {"finalizers": ["example.com/b"]}}
    patched = await kube.maps.patch("a", StrategicMergePatch(patch))
    assert set(patched["metadata"]["finalizers"]) == {"example.com/a", "example.com/b"}


@behaviour("patch.media-type", "A PATCH of another media type is 415")
async def test_other_media_types_are_refused(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    answer = await kube.send("PATCH", kube.path("v1/configmaps", "a"), {}, kind="application/json")
    assert (answer.status, answer.json["reason"]) == (415, "UnsupportedMediaType")
    assert answer.json["message"] == "415: Unsupported Media Type"


@behaviour("patch.strategic-custom", "Custom resources take no strategic patches: 415")
async def test_custom_resources_take_no_strategic_patches(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    await widgets.create(widget(widgets.gvr.group))
    path = kube.path(str(widgets.gvr), "w")
    answer = await kube.send("PATCH", path, {"spec": {}}, kind=raw.STRATEGIC)
    assert answer.status == 415


@behaviour("patch.missing", "A patch of a missing object is 404, but an apply creates it")
async def test_a_patch_creates_nothing(kube: Kube) -> None:
    for patch in (MergePatch({}), JsonPatch([]), StrategicMergePatch({})):
        with pytest.raises(NotFound):
            await kube.maps.patch("a", patch)


@behaviour("patch.resource-version", "A patch that names a stale resourceVersion is 409")
async def test_a_patch_can_be_conditional(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    version = made["metadata"]["resourceVersion"]
    patch = MergePatch({"metadata": {"resourceVersion": version}, "data": {"x": "1"}})
    await kube.maps.patch("a", patch)
    patch = MergePatch({"metadata": {"resourceVersion": version}, "data": {"x": "2"}})
    await refused(kube.maps.patch("a", patch), 409, "Conflict")


@behaviour("patch.uid", "A patch that names another uid is refused")
async def test_a_patch_can_be_for_one_incarnation(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    other = kube.maps.patch("a", MergePatch({"metadata": {"uid": "other"}}))
    error = await refused(other, 422, "Invalid")
    assert 'metadata.uid: Invalid value: "other": field is immutable' in str(error)


@behaviour("patch.no-op", "A patch that changes nothing leaves the resourceVersion")
async def test_a_patch_without_a_change_writes_nothing(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", {"x": "1"}))
    again = await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


@behaviour("patch.invalid-result", "What a patch makes is validated as an update is")
async def test_the_result_is_validated(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    patch = MergePatch({"spec": {"replicas": -1}})
    error = await refused(kube.deployments.patch("web", patch), 422, "Invalid")
    assert "spec.replicas: Invalid value: -1: must be greater than or equal to 0" in str(error)


@behaviour("patch.rename", "A patch cannot change the name or the namespace")
async def test_a_patch_cannot_rename(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    await refused(kube.maps.patch("a", MergePatch({"metadata": {"name": "b"}})), 400)
    await refused(kube.maps.patch("a", MergePatch({"metadata": {"namespace": "b"}})), 400)


@behaviour("patch.status", "A patch of status changes status only")
async def test_status_is_patched_alone(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    patch = {"status": {"message": "hi"}, "spec": {"hostname": "x"}}
    patched = await kube.pods.subresource("status").patch("p", MergePatch(patch))
    assert patched["status"]["message"] == "hi"
    assert "hostname" not in patched["spec"]


@behaviour("patch.status-conditions", "A strategic patch merges conditions by their type")
async def test_conditions_are_merged_by_type(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    status = kube.pods.subresource("status")
    for kind in ("Ready", "Initialized"):
        condition = {"type": kind, "status": "True"}
        await status.patch("p", StrategicMergePatch({"status": {"conditions": [condition]}}))
    now = await kube.pods.get("p")
    assert {c["type"] for c in now["status"]["conditions"]} >= {"Ready", "Initialized"}


@behaviour("patch.strict", "Strict field validation holds for patches too")
async def test_unknown_fields_in_patches(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    patch = MergePatch({"spec": {"colour": "red"}})
    error = await refused(kube.deployments.patch("web", patch, field_validation="Strict"), 422)
    assert 'unknown field "spec.colour"' in str(error)


@behaviour("patch.dry-run", "A dry run of a patch stores nothing")
async def test_a_dry_run_patches_nothing(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    patched = await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}), dry_run=True)
    assert patched["data"] == {"x": "1"}
    assert "data" not in await kube.maps.get("a")
