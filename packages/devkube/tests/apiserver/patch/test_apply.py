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


async def test_keyed_lists_keep_the_live_order_and_take_the_applied_one(kube):
    await kube.apply(WEB, with_env(("A", "1"), ("B", "2"), ("C", "3")), manager="one")
    changed = await kube.apply(WEB, with_env(("C", "3"), ("D", "4"), ("A", "9")), manager="one")
    assert env_of(changed) == [("C", "3"), ("D", "4"), ("A", "9")]


async def test_several_conflicts_are_listed_by_manager(kube):
    await kube.apply(WEB, with_env(("A", "1")), manager="one")
    other = with_env(("A", "2"))
    other["spec"]["replicas"] = 7
    reply = await kube.apply(WEB, other, manager="two")
    assert reply["message"] == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .spec.replicas\n'
        '- .spec.template.spec.containers[name="web"].env[name="A"].value'
    )


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
