from __future__ import annotations

from typing import Any

import pytest
from tests.controller.fake_informer import added, deleted, obj, owned, reference, updated

from kubeloop.controller.reconcile import Request
from kubeloop.controller.sources import Mapping, for_object, for_owner, map_func
from kubeloop.objects.gvk import GroupVersionKind

DEPLOYMENT = GroupVersionKind.of("apps/v1", "Deployment")


def requests(mapping: Mapping[Any], event: Any) -> list[str]:
    return [str(request) for request in mapping(event)]


@pytest.mark.spec("C1", "C8")
def test_for_object_names_the_object_and_nothing_of_the_event():
    web = obj("web")
    events: list[Any] = [
        added(web),
        updated(web, obj("web", version="2")),
        deleted(web),
        deleted(web, stale=True),
    ]
    assert [list(for_object()(event)) for event in events] == [[Request("default", "web")]] * 4
    assert Request._fields == ("namespace", "name")


@pytest.mark.spec("C8")
def test_for_object_of_a_cluster_scoped_object_has_no_namespace():
    assert list(for_object()(added(obj("node-1", namespace="")))) == [Request("", "node-1")]


@pytest.mark.spec("C8")
@pytest.mark.parametrize(
    ("owner", "matches"),
    [
        (reference("web"), True),
        (reference("web", api="apps/v1beta1"), True),
        (reference("web", api="extensions/v1"), False),
        (reference("web", kind="ReplicaSet"), False),
        (reference("web", api="a/b/c"), False),
    ],
)
def test_for_owner_matches_group_and_kind_in_any_version(owner, matches):
    assert requests(for_owner(DEPLOYMENT), added(owned("pod", owner))) == (
        ["default/web"] if matches else []
    )


@pytest.mark.spec("C8")
def test_for_owner_names_all_owners_or_only_the_controller():
    pod = owned(
        "pod", reference("a"), reference("b", controller=True), reference("c", controller=False)
    )
    assert requests(for_owner(DEPLOYMENT), added(pod)) == ["default/a", "default/b", "default/c"]
    assert requests(for_owner(DEPLOYMENT, controller_only=True), added(pod)) == ["default/b"]


@pytest.mark.spec("C8")
def test_for_owner_drops_the_namespace_of_a_cluster_scoped_owner():
    mapping = for_owner(DEPLOYMENT, namespaced=False)
    assert list(mapping(added(owned("pod", reference("web"))))) == [Request("", "web")]


@pytest.mark.spec("C8", "X6")
def test_update_names_old_and_new_owner_each_once():
    mapping = for_owner(DEPLOYMENT)
    old = owned("pod", reference("a"), reference("b"), uid="1")
    new = owned("pod", reference("b"), reference("c"), uid="2")
    assert requests(mapping, updated(old, new)) == ["default/a", "default/b", "default/c"]


@pytest.mark.spec("C8")
def test_map_func_maps_both_objects_of_an_update():
    def targets(thing: dict[str, Any]) -> list[Request]:
        return [Request("ns", name) for name in thing["targets"]]

    mapping = map_func(targets)
    old, new = {**obj("x"), "targets": "aab"}, {**obj("x"), "targets": "bc"}
    assert requests(mapping, updated(old, new)) == ["ns/a", "ns/b", "ns/c"]
    assert requests(mapping, added(old)) == ["ns/a", "ns/b"]
    assert requests(mapping, deleted(new, stale=True)) == ["ns/b", "ns/c"]


@pytest.mark.spec("C8")
def test_a_malformed_owner_reference_is_logged(caplog):
    requests(for_owner(DEPLOYMENT), added(owned("pod", reference("web", api="a/b/c"))))
    assert "'a/b/c' is malformed" in caplog.text
