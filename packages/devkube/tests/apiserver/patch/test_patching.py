"""Strategic merge patches on their own."""

from __future__ import annotations

import pytest

from devkube.apiserver.patch.patching import json_patch, strategic_patch
from devkube.apiserver.schema.types import BuiltinTypes
from devkube.apiserver.status import StatusError

TYPES = BuiltinTypes()
POD = TYPES.type("io.k8s.api.core.v1.PodSpec")
DEPLOYMENT = TYPES.type("io.k8s.api.apps.v1.DeploymentSpec")
META = TYPES.type("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")


def pod(*containers):
    return {"containers": [{"name": name, "image": image} for name, image in containers]}


def names(spec):
    return [item["name"] for item in spec["containers"]]


def test_items_are_merged_by_their_key():
    patched = strategic_patch(
        pod(("a", "1"), ("b", "2")), {"containers": [{"name": "b", "image": "9"}]}, POD
    )
    assert patched["containers"] == [{"name": "a", "image": "1"}, {"name": "b", "image": "9"}]


def test_a_new_item_goes_before_those_it_cannot_be_compared_with():
    assert names(strategic_patch(pod(("a", "1")), {"containers": [{"name": "n"}]}, POD)) == [
        "n",
        "a",
    ]


def test_an_item_is_deleted_by_directive():
    patch = {"containers": [{"name": "a", "$patch": "delete"}]}
    assert names(strategic_patch(pod(("a", "1"), ("b", "2")), patch, POD)) == ["b"]


def test_a_list_is_replaced_by_directive():
    patch = {"containers": [{"name": "n", "image": "x"}, {"$patch": "replace"}]}
    assert names(strategic_patch(pod(("a", "1"), ("b", "2")), patch, POD)) == ["n"]


def test_the_order_is_set():
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "3"}],
    }
    assert names(strategic_patch(pod(("a", "1"), ("b", "2")), patch, POD)) == ["c", "a", "b"]


def test_a_map_is_replaced_or_emptied_by_directive():
    target = {"securityContext": {"runAsUser": 1, "runAsGroup": 2}}
    replace = {"securityContext": {"$patch": "replace", "runAsUser": 3}}
    assert strategic_patch(target, replace, POD) == {"securityContext": {"runAsUser": 3}}
    assert strategic_patch(target, {"securityContext": {"$patch": "delete"}}, POD) == {
        "securityContext": {}
    }


def test_only_the_retained_keys_stay():
    target = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}
    patch = {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    assert strategic_patch(target, patch, DEPLOYMENT) == {"strategy": {"type": "Recreate"}}


def test_primitive_lists_merge_and_lose_items():
    target = {"finalizers": ["a", "b"]}
    merged = strategic_patch(target, {"finalizers": ["c"]}, META)
    assert sorted(merged["finalizers"]) == ["a", "b", "c"]
    deleted = strategic_patch(target, {"$deleteFromPrimitiveList/finalizers": ["a"]}, META)
    assert deleted == {"finalizers": ["b"]}


def test_lists_without_keys_are_replaced_and_null_removes():
    target = {"tolerations": [{"key": "a"}], "nodeName": "n"}
    patch = {"tolerations": [{"key": "b"}], "nodeName": None}
    assert strategic_patch(target, patch, POD) == {"tolerations": [{"key": "b"}]}


def test_the_target_is_not_changed():
    target = pod(("a", "1"))
    strategic_patch(target, {"containers": [{"name": "a", "image": "2"}]}, POD)
    assert target == pod(("a", "1"))


@pytest.mark.parametrize(
    "patch",
    [
        {"containers": [{"image": "x"}]},
        {"containers": ["x"]},
        {"securityContext": {"$patch": "explode"}},
        {"$setElementOrder/containers": {}},
        {"securityContext": {"$retainKeys": 1}},
    ],
)
def test_malformed_directives_are_refused(patch):
    with pytest.raises(StatusError) as caught:
        strategic_patch({**pod(("a", "1"))}, patch, POD)
    assert caught.value.code == 400


def test_a_json_patch_that_fails_is_unprocessable():
    assert json_patch({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}]) == {"a": 2}
    for operations in (
        [{"op": "test", "path": "/a", "value": 9}],
        [{"op": "remove", "path": "/b"}],
        [{"op": "fly", "path": "/b"}],
        [{"nonsense": 1}],
        ["x"],
        [{"op": "replace", "path": "", "value": 1}],
    ):
        with pytest.raises(StatusError) as caught:
            json_patch({"a": 1}, operations)
        assert caught.value.code == 422
