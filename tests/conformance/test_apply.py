"""Server-side apply: which manager owns a field, and what happens to fields without an owner."""

from __future__ import annotations

import copy
from typing import Any

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import ApplyPatch, MergePatch
from tests.conformance import raw
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import shared_widgets
from tests.conformance.kube import Kube, fields_of, refused
from tests.conformance.manifests import config_map, deployment, pod, service, widget


def entries(obj: JsonObject) -> list[tuple[str, str, str]]:
    """Manager, operation and subresource of every entry of managedFields."""
    return [
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in obj["metadata"].get("managedFields", [])
    ]


def owned(obj: JsonObject, manager: str, operation: str = "Apply") -> Any:
    """The fields that a manager owns."""
    for entry in obj["metadata"].get("managedFields", []):
        if (entry["manager"], entry["operation"]) == (manager, operation):
            return entry["fieldsV1"]
    return None


@behaviour("apply.create", "An apply creates a missing object, with 201, and owns what it set")
async def test_apply_creates(kube: Kube) -> None:
    answer = await kube.send(
        "PATCH",
        kube.path("v1/configmaps", "a"),
        config_map("a", {"x": "1"}),
        kind=raw.APPLY,
        query={"fieldManager": "one"},
    )
    assert answer.status == 201
    (entry,) = answer.json["metadata"]["managedFields"]
    assert entry == {
        "manager": "one",
        "operation": "Apply",
        "apiVersion": "v1",
        "time": entry["time"],
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:x": {}}},
    }


@behaviour("apply.yaml", "The body of an apply may be YAML")
async def test_apply_takes_yaml(kube: Kube) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '1'}\n"
    answer = await kube.send(
        "PATCH",
        kube.path("v1/configmaps", "a"),
        body,
        kind=raw.APPLY,
        query={"fieldManager": "one"},
    )
    assert answer.status == 201, answer


@behaviour("apply.manager-required", "An apply without a field manager is refused")
async def test_apply_needs_a_manager(kube: Kube) -> None:
    answer = await kube.send(
        "PATCH", kube.path("v1/configmaps", "a"), config_map("a"), kind=raw.APPLY
    )
    assert answer.status == 422, answer
    assert "fieldManager: Required value: is required for apply patch" in answer.json["message"]


@behaviour("apply.force-elsewhere", "force is refused on patches other than apply")
async def test_force_is_for_applies(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    error = await refused(kube.maps.patch("a", MergePatch({}), force=True), 422, "Invalid")
    assert "force: Forbidden: may not be specified for non-apply patch" in str(error)


@behaviour("apply.kind-required", "An applied object must name its apiVersion and kind")
async def test_apply_needs_a_type(kube: Kube) -> None:
    # The library's own `apply` would not send it.
    patch = ApplyPatch({"metadata": {"name": "a"}, "data": {}})
    await refused(kube.maps.patch("a", patch, field_manager="one"), 400, "BadRequest")


@behaviour("apply.no-op", "Applying the same again changes nothing")
async def test_applying_again_writes_nothing(kube: Kube) -> None:
    one = await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    two = await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    assert two == one


@behaviour(
    "apply.conflict", "Setting another manager's field is 409 and the causes say whose it is"
)
async def test_applies_conflict(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", {"x": "1", "y": "1"}), field_manager="one")
    two = kube.maps.apply(config_map("a", {"x": "2", "y": "2"}), field_manager="two")
    error = await refused(two, 409, "Conflict")
    assert (
        str(error) == 'Apply failed with 2 conflicts: conflicts with "one":\n- .data.x\n- .data.y'
    )
    assert [(c.reason, c.field, c.message) for c in error.causes] == [
        ("FieldManagerConflict", ".data.x", 'conflict with "one"'),
        ("FieldManagerConflict", ".data.y", 'conflict with "one"'),
    ]


@behaviour(
    "apply.conflict-update", "A field that an Update set conflicts too, with time and version"
)
async def test_applies_conflict_with_updates(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}), field_manager="hand")
    two = kube.maps.apply(config_map("a", {"x": "2"}), field_manager="two")
    error = await refused(two, 409, "Conflict")
    assert 'Apply failed with 1 conflict: conflict with "hand" using v1: .data.x' in str(error)


@behaviour("apply.force", "force takes the field from its owner")
async def test_force_takes_ownership(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", {"x": "1", "y": "1"}), field_manager="one")
    taken = await kube.maps.apply(config_map("a", {"x": "2"}), field_manager="two", force=True)
    assert taken["data"] == {"x": "2", "y": "1"}
    assert owned(taken, "one") == {"f:data": {"f:y": {}}}
    assert owned(taken, "two") == {"f:data": {"f:x": {}}}


@behaviour("apply.shared", "A field applied with the same value is owned by both")
async def test_same_values_are_shared(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    both = await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="two")
    assert owned(both, "one") == owned(both, "two") == {"f:data": {"f:x": {}}}
    left = await kube.maps.apply(config_map("a"), field_manager="one")
    assert left["data"] == {"x": "1"}, "it is still wanted by the other"


@behaviour("apply.removal", "A field that its only owner no longer applies is removed")
async def test_fields_are_removed(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", {"x": "1", "y": "2"}), field_manager="one")
    less = await kube.maps.apply(config_map("a", {"y": "2"}), field_manager="one")
    assert less["data"] == {"y": "2"}


@behaviour("apply.removal-kept", "Fields that were never applied stay")
async def test_unowned_fields_stay(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}), field_manager="hand")
    await kube.maps.apply(config_map("a", {"y": "2"}), field_manager="one")
    less = await kube.maps.apply(config_map("a"), field_manager="one")
    assert less["data"] == {"x": "1"}


@behaviour("apply.default-restored", "A default comes back when the field is given up")
async def test_defaults_come_back(kube: Kube) -> None:
    made = deployment()
    made["spec"]["revisionHistoryLimit"] = 3
    await kube.deployments.apply(made, field_manager="one")
    del made["spec"]["revisionHistoryLimit"]
    again = await kube.deployments.apply(made, field_manager="one")
    assert again["spec"]["revisionHistoryLimit"] == 10


@behaviour("apply.hand-over", "replicas given up by apply stay when a scaler has set them")
async def test_replicas_are_handed_over(kube: Kube) -> None:
    await kube.deployments.apply(deployment(replicas=0), field_manager="one")
    scale = kube.deployments.subresource("scale")
    await scale.patch("web", MergePatch({"spec": {"replicas": 0}}), field_manager="scaler")
    await kube.deployments.apply(
        deployment(replicas=0) | {"metadata": {"name": "web", "labels": {"a": "b"}}},
        field_manager="two",
    )
    less = deployment()
    del less["spec"]["replicas"]
    left = await kube.deployments.apply(less, field_manager="one")
    assert left["spec"]["replicas"] == 0


@behaviour("apply.containers", "Containers are merged by name: each manager has its own")
async def test_containers_are_keyed_by_name(kube: Kube) -> None:
    await kube.deployments.apply(deployment(), field_manager="one")
    sidecar: JsonObject = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}},
    }
    both = await kube.deployments.apply(sidecar, field_manager="two")
    names = [item["name"] for item in both["spec"]["template"]["spec"]["containers"]]
    assert names == ["main", "side"]
    fields = owned(both, "two")["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert fields == {'k:{"name":"side"}': {".": {}, "f:image": {}, "f:name": {}}}
    gone = copy.deepcopy(sidecar)
    gone["spec"]["template"]["spec"]["containers"] = []
    left = await kube.deployments.apply(gone, field_manager="two")
    assert [c["name"] for c in left["spec"]["template"]["spec"]["containers"]] == ["main"]


@behaviour("apply.ports", "A Service's ports are keyed by port and protocol")
async def test_ports_are_keyed(kube: Kube) -> None:
    await kube.services.apply(service(), field_manager="one")
    other = service(ports=[{"name": "dns", "port": 53, "protocol": "UDP"}])
    del other["spec"]["selector"]
    both = await kube.services.apply(other, field_manager="two")
    assert [p["name"] for p in both["spec"]["ports"]] == ["http", "dns"]
    assert list(owned(both, "two")["f:spec"]["f:ports"]) == ['k:{"port":53,"protocol":"UDP"}']
    assert list(owned(both, "one")["f:spec"]["f:ports"]) == ['k:{"port":80,"protocol":"TCP"}']


@behaviour("apply.set", "Finalizers are a set: each value has owners of its own")
async def test_sets_are_merged(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", finalizers=["e.com/a"]), field_manager="one")
    both = await kube.maps.apply(config_map("a", finalizers=["e.com/b"]), field_manager="two")
    assert both["metadata"]["finalizers"] == ["e.com/a", "e.com/b"]
    fields = owned(both, "two")["f:metadata"]["f:finalizers"]
    assert fields == {'v:"e.com/b"': {}}
    left = await kube.maps.apply(config_map("a"), field_manager="one")
    assert left["metadata"]["finalizers"] == ["e.com/b"]


@behaviour("apply.atomic-map", "An atomic map such as a selector is one field, owned whole")
async def test_atomic_maps_conflict_whole(kube: Kube) -> None:
    await kube.services.apply(service(), field_manager="one")
    other = service(selector={"other": "x"})
    error = await refused(kube.services.apply(other, field_manager="two"), 409, "Conflict")
    assert fields_of(error) == {".spec.selector"}
    forced = await kube.services.apply(other, field_manager="two", force=True)
    assert forced["spec"]["selector"] == {"other": "x"}


@behaviour("apply.atomic-list", "An atomic list such as a container's command is replaced whole")
async def test_atomic_lists_are_replaced(kube: Kube) -> None:
    made = deployment()
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["a", "b", "c"]
    await kube.deployments.apply(made, field_manager="one")
    container["command"] = ["d"]
    again = await kube.deployments.apply(made, field_manager="one")
    found = again["spec"]["template"]["spec"]["containers"][0]
    assert found["command"] == ["d"]
    fields = owned(again, "one")["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert fields['k:{"name":"main"}']["f:command"] == {}


@behaviour(
    "apply.duplicate-key",
    "Two elements with one key cannot be applied",
    devcluster="a malformed request is its sender's mistake: 400, where the real server says 500",
)
async def test_duplicate_keys_are_refused(kube: Kube) -> None:
    made = deployment()
    made["spec"]["template"]["spec"]["containers"] *= 2
    error = await refused(kube.deployments.apply(made, field_manager="one"), kube.malformed)
    assert "duplicate entries for key" in str(error)


@behaviour("apply.status", "An apply to status owns its fields there, apart from the object's")
async def test_status_is_applied_apart(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"), field_manager="hand")
    obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "status": {"message": "hi"},
    }
    status = kube.pods.subresource("status")
    stated = await status.patch("p", ApplyPatch(obj), field_manager="kubelet")
    assert stated["status"]["message"] == "hi"
    assert ("kubelet", "Apply", "status") in entries(stated)
    assert owned(stated, "kubelet") == {"f:status": {"f:message": {}}}


@behaviour(
    "apply.update-tracking", "An Update is tracked under its manager, by the fields it changed"
)
async def test_updates_are_tracked(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}), field_manager="creator")
    patch = MergePatch({"data": {"y": "2"}})
    changed = await kube.maps.patch("a", patch, field_manager="patcher")
    assert owned(changed, "creator", "Update") == {"f:data": {".": {}, "f:x": {}}}
    assert owned(changed, "patcher", "Update") == {"f:data": {"f:y": {}}}
    taken = await kube.maps.patch("a", MergePatch({"data": {"x": "3"}}), field_manager="patcher")
    assert owned(taken, "patcher", "Update") == {"f:data": {"f:x": {}, "f:y": {}}}


@behaviour("apply.user-agent", "Without a field manager the first word of the user agent is it")
async def test_the_user_agent_is_the_manager(kube: Kube) -> None:
    answer = await kube.send(
        "POST",
        kube.path("v1/configmaps"),
        config_map("a", {"x": "1"}),
        headers={"User-Agent": "some-program/1.2 (linux)"},
    )
    assert entries(answer.json) == [("some-program", "Update", "")]


@behaviour(
    "apply.status-tracking", "What is written through status is tracked with that subresource"
)
async def test_status_updates_are_tracked(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"), field_manager="hand")
    status = kube.pods.subresource("status")
    patch = MergePatch({"status": {"message": "hi"}})
    stated = await status.patch("p", patch, field_manager="kubelet")
    assert ("kubelet", "Update", "status") in entries(stated)


@behaviour("apply.managed-fields-given", "An applied object must not carry managedFields")
async def test_managed_fields_cannot_be_applied(kube: Kube) -> None:
    made = await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    error = await refused(kube.maps.apply(made, field_manager="one"), 400, "BadRequest")
    assert "metadata.managedFields must be nil" in str(error)


@behaviour("apply.resource-version", "An apply with a stale resourceVersion is 409")
async def test_an_apply_can_be_conditional(kube: Kube) -> None:
    made = await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    await kube.maps.patch("a", MergePatch({"data": {"y": "2"}}))
    stale = config_map("a", {"x": "3"}, resourceVersion=made["metadata"]["resourceVersion"])
    error = await refused(kube.maps.apply(stale, field_manager="one"), 409, "Conflict")
    assert "the object has been modified" in str(error)


@behaviour("apply.create-with-version", "An apply with a resourceVersion creates all the same")
async def test_a_conditional_apply_creates(kube: Kube) -> None:
    made = await kube.maps.apply(config_map("a", resourceVersion="5"), field_manager="one")
    assert made["metadata"]["resourceVersion"] != "5"


@behaviour("apply.reset", "managedFields of one empty entry resets the tracking")
async def test_tracking_can_be_reset(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    reset = await kube.maps.patch("a", MergePatch({"metadata": {"managedFields": [{}]}}))
    assert "managedFields" not in reset["metadata"]
    again = await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="two")
    assert ("two", "Apply", "") in entries(again)
    assert ("one", "Apply", "") not in entries(again)


@behaviour("apply.before-first", "The first apply finds what was there owned by before-first-apply")
async def test_the_state_before_the_first_apply_has_an_owner(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}))
    await kube.maps.patch("a", MergePatch({"metadata": {"managedFields": [{}]}}))
    applied = await kube.maps.apply(config_map("a", {"y": "2"}), field_manager="one")
    assert owned(applied, "before-first-apply", "Update") == {"f:data": {".": {}, "f:x": {}}}


@behaviour("apply.ignored-fields", "Metadata that the server owns is never anybody's")
async def test_system_metadata_is_not_owned(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", labels={"k": "v"}), field_manager="one")
    assert owned(made, "one", "Update") == {
        "f:metadata": {"f:labels": {".": {}, "f:k": {}}},
    }


@behaviour("apply.custom-list-map", "Lists of custom resources merge by the keys of their schema")
async def test_custom_lists_are_keyed(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    group = widgets.gvr.group
    await widgets.apply(widget(group, parts=[{"name": "a", "count": 1}]), field_manager="one")
    both = await widgets.apply(
        widget(group, parts=[{"name": "b", "count": 2}], tags=["t"]), field_manager="two"
    )
    assert [part["name"] for part in both["spec"]["parts"]] == ["a", "b"]
    fields = owned(both, "two")["f:spec"]
    assert fields["f:tags"] == {'v:"t"': {}}
    assert list(fields["f:parts"]) == ['k:{"name":"b"}']
    other = widget(group, parts=[{"name": "a", "count": 9}])
    error = await refused(widgets.apply(other, field_manager="three"), 409, "Conflict")
    assert fields_of(error) == {'.spec.parts[name="a"].count'}


@behaviour("apply.labels", "Labels and annotations are owned key by key")
async def test_labels_are_owned_apart(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", labels={"a": "1"}), field_manager="one")
    both = await kube.maps.apply(config_map("a", labels={"b": "2"}), field_manager="two")
    assert both["metadata"]["labels"] == {"a": "1", "b": "2"}
    left = await kube.maps.apply(config_map("a"), field_manager="one")
    assert left["metadata"]["labels"] == {"b": "2"}


@behaviour("apply.dry-run", "A dry run of an apply shows conflicts and stores nothing")
async def test_applies_can_be_tried(kube: Kube) -> None:
    await kube.maps.apply(config_map("a", {"x": "1"}), field_manager="one")
    two = config_map("a", {"x": "2"})
    await refused(kube.maps.apply(two, field_manager="two", dry_run=True), 409, "Conflict")
    tried = await kube.maps.apply(two, field_manager="two", dry_run=True, force=True)
    assert tried["data"] == {"x": "2"}
    assert (await kube.maps.get("a"))["data"] == {"x": "1"}


@behaviour(
    "apply.unknown-field",
    "Fields that the schema does not have cannot be applied",
    devcluster="a malformed request is its sender's mistake: 400, where the real server says 500",
)
async def test_unknown_fields_cannot_be_applied(kube: Kube) -> None:
    made = deployment()
    made["spec"]["colour"] = "red"
    error = await refused(kube.deployments.apply(made, field_manager="one"), kube.malformed)
    assert "field not declared in schema" in str(error)


@behaviour("apply.manager-invalid", "A field manager has at most 128 printable characters")
async def test_managers_are_validated(kube: Kube) -> None:
    path = kube.path("v1/configmaps", "a")
    wrong = {
        "x" * 129: "fieldManager: Too long: may not be more than 128 bytes",
        "a\nb": "fieldManager: Invalid value: ",
    }
    for manager, message in wrong.items():
        query = {"fieldManager": manager}
        answer = await kube.send("PATCH", path, config_map("a"), kind=raw.APPLY, query=query)
        assert answer.status == 422, answer
        assert message in answer.json["message"]
