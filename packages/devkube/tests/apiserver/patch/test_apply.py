"""Server-side apply: ownership, conflicts, force, removal, keyed lists, sets."""

from __future__ import annotations

import pytest
from tests.apiserver.harness import DEPLOYMENTS, WIDGETS, deployment, widget

WEB = f"{DEPLOYMENTS}/web"


def owners(reply):
    entries = reply["metadata"].get("managedFields", [])
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}


def partial(**spec):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": spec,
    }


def with_env(*pairs):
    body = deployment()
    env = [{"name": name, "value": value} for name, value in pairs]
    body["spec"]["template"]["spec"]["containers"][0]["env"] = env
    return body


def env_of(reply):
    container = reply["spec"]["template"]["spec"]["containers"][0]
    return [(item["name"], item["value"]) for item in container.get("env", [])]


async def test_apply_creates_and_owns_exactly_its_configuration(kube):
    made = await kube.apply(WEB, deployment(), manager="one")
    assert made.code == 201
    fields = owners(made)["one", "Apply"]["f:spec"]
    assert set(fields) == {"f:replicas", "f:selector", "f:template"}
    assert 'k:{"name":"web"}' in fields["f:template"]["f:spec"]["f:containers"]


async def test_applying_the_same_again_writes_nothing(kube):
    made = await kube.apply(WEB, deployment(), manager="one")
    again = await kube.apply(WEB, deployment(), manager="one")
    assert (again.code, again.body) == (200, made.body)


async def test_another_value_of_another_manager_s_field_conflicts(kube):
    await kube.create(DEPLOYMENTS, deployment(), fieldManager="creator")
    reply = await kube.apply(WEB, partial(replicas=5), manager="two")
    assert (reply.code, reply["reason"]) == (409, "Conflict")
    assert reply["message"] == (
        'Apply failed with 1 conflict: conflict with "creator" using apps/v1: .spec.replicas'
    )
    assert reply["details"]["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "creator" using apps/v1',
            "field": ".spec.replicas",
        }
    ]


async def test_force_takes_the_field(kube):
    await kube.apply(WEB, deployment(), manager="one")
    forced = await kube.apply(WEB, partial(replicas=5), manager="two", force="true")
    assert forced["spec"]["replicas"] == 5
    assert "f:replicas" not in owners(forced)["one", "Apply"]["f:spec"]
    assert owners(forced)["two", "Apply"]["f:spec"] == {"f:replicas": {}}


async def test_the_same_value_is_shared_and_survives_until_the_last_owner_drops_it(kube):
    await kube.apply(WEB, with_env(("A", "1"), ("B", "2")), manager="one")
    shared = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "web", "env": [{"name": "B", "value": "2"}]}]}
            }
        },
    }
    assert (await kube.apply(WEB, shared, manager="two")).code == 200
    dropped = await kube.apply(WEB, with_env(("A", "1")), manager="one")
    assert env_of(dropped) == [("A", "1"), ("B", "2")]
    gone = await kube.apply(WEB, partial(), manager="two")
    assert env_of(gone) == [("A", "1")]


async def test_fields_no_longer_applied_are_removed_and_defaults_come_back(kube):
    await kube.apply(WEB, deployment(replicas=5, minReadySeconds=9), manager="one")
    body = deployment()
    del body["spec"]["replicas"]
    dropped = await kube.apply(WEB, body, manager="one")
    assert "minReadySeconds" not in dropped["spec"]
    assert dropped["spec"]["replicas"] == 1


async def test_keyed_lists_keep_the_live_order_and_take_the_applied_one(kube):
    await kube.apply(WEB, with_env(("A", "1"), ("B", "2"), ("C", "3")), manager="one")
    changed = await kube.apply(WEB, with_env(("C", "3"), ("D", "4"), ("A", "9")), manager="one")
    assert env_of(changed) == [("C", "3"), ("D", "4"), ("A", "9")]


async def test_an_update_takes_ownership_of_what_it_changes(kube):
    await kube.apply(WEB, deployment(), manager="one")
    updated = await kube.merge(WEB, {"spec": {"replicas": 8}}, fieldManager="hand")
    assert owners(updated)["hand", "Update"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owners(updated)["one", "Apply"]["f:spec"]
    assert (await kube.apply(WEB, deployment(), manager="one")).code == 409


async def test_several_conflicts_are_listed_by_manager(kube):
    await kube.apply(WEB, with_env(("A", "1")), manager="one")
    other = with_env(("A", "2"))
    other["spec"]["replicas"] = 7
    reply = await kube.apply(WEB, other, manager="two")
    assert reply["message"] == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .spec.replicas\n'
        '- .spec.template.spec.containers[name="web"].env[name="A"].value'
    )


async def test_status_and_scale_writers_are_managers_of_their_own(kube):
    await kube.apply(WEB, deployment(), manager="one")
    await kube.merge(f"{WEB}/status", {"status": {"replicas": 1}}, fieldManager="st")
    scaled = await kube.merge(f"{WEB}/scale", {"spec": {"replicas": 6}}, fieldManager="sc")
    assert scaled["spec"]["replicas"] == 6
    entries = (await kube.get(WEB))["metadata"]["managedFields"]
    assert {(e["manager"], e.get("subresource")) for e in entries} == {
        ("one", None),
        ("st", "status"),
        ("sc", "scale"),
    }


async def test_an_object_without_owners_has_one_before_the_first_apply(kube):
    await kube.create(DEPLOYMENTS, deployment())
    reset = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
    cleared = await kube.send("PATCH", WEB, reset, kind="application/json-patch+json")
    assert "managedFields" not in cleared["metadata"]
    reply = await kube.apply(WEB, partial(replicas=9), manager="one")
    assert 'conflict with "before-first-apply" using apps/v1' in reply["message"]


@pytest.mark.parametrize(
    ("body", "manager", "code"),
    [
        (partial(replicas=1), "", 422),
        ({"spec": {}}, "one", 400),
        ({**partial(), "metadata": {"name": "web", "managedFields": []}}, "one", 400),
        (partial(colour="red"), "one", 400),
        (partial(replicas="x"), "one", 400),
        (partial(template={"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}), "one", 400),
    ],
)
async def test_configurations_that_cannot_be_applied_are_refused(kube, body, manager, code):
    await kube.create(DEPLOYMENTS, deployment())
    assert (await kube.apply(WEB, body, manager=manager)).code == code


async def test_custom_keyed_lists_sets_and_atomic_lists(widgets):
    path = f"{WIDGETS}/w"
    first = widget(items=[{"name": "a", "value": "1"}], tags=["x"])
    await widgets.apply(path, first, manager="one")
    second = widget(items=[{"name": "b", "value": "2"}], tags=["y"])
    both = await widgets.apply(path, second, manager="two")
    assert [item["name"] for item in both["spec"]["items"]] == ["a", "b"]
    assert both["spec"]["tags"] == ["x", "y"]
    dropped = await widgets.apply(path, widget(), manager="one")
    assert [item["name"] for item in dropped["spec"]["items"]] == ["b"]
    assert dropped["spec"]["tags"] == ["y"]
