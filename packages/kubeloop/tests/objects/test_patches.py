from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.patches import (
    ApplyPatch,
    JsonPatch,
    MergePatch,
    StrategicMergePatch,
    apply_merge_patch,
    create_json_patch,
    create_merge_patch,
    pointer,
    same_json,
)

_scalars = st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "b"])
_json = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=12,
)
_objects = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), _json, max_size=4)


@given(_objects, _objects)
def test_created_patch_makes_new_object_of_old_one(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    before = copy.deepcopy((old, new))
    result = apply_merge_patch(old, create_merge_patch(old, new))
    assert same_json(result, new)
    assert (old, new) == before


@given(_objects)
def test_nothing_to_change_is_an_empty_patch(obj: dict[str, Any]) -> None:
    assert create_merge_patch(obj, copy.deepcopy(obj)) == {}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the examples of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_apply_as_rfc_7386_says(target: Any, patch: Any, result: Any) -> None:
    assert apply_merge_patch(target, patch) == result


def test_a_patch_distinguishes_true_from_one() -> None:
    assert create_merge_patch({"a": 1}, {"a": True}) == {"a": True}
    assert create_merge_patch({"a": [0]}, {"a": [False]}) == {"a": [False]}


@pytest.mark.parametrize(
    ("patch", "content_type", "body"),
    [
        (JsonPatch([{"op": "remove", "path": "/a"}]), "application/json-patch+json",
         [{"op": "remove", "path": "/a"}]),
        (MergePatch({"a": None}), "application/merge-patch+json", {"a": None}),
        (StrategicMergePatch({"a": 1}), "application/strategic-merge-patch+json", {"a": 1}),
        (ApplyPatch({"kind": "X"}), "application/apply-patch+yaml", {"kind": "X"}),
    ],
)  # fmt: skip
def test_each_patch_knows_its_content_type_and_body(
    patch: JsonPatch | MergePatch, content_type: str, body: Any
) -> None:
    assert patch.content_type == content_type
    assert json.loads(patch.body) == body


def test_pointers_escape_slashes_and_tildes() -> None:
    assert pointer("metadata", "annotations", "a.b/c~d", 0) == "/metadata/annotations/a.b~1c~0d/0"


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab/~", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(NESTED, NESTED)
def test_a_json_patch_makes_the_new_of_the_old(old: Any, new: Any) -> None:
    operations = create_json_patch(old, new)
    made = jsonpatch.apply_patch(copy.deepcopy(old), operations)
    assert json.dumps(made, sort_keys=True) == json.dumps(new, sort_keys=True)
    assert create_json_patch(new, new) == []


def test_a_json_patch_is_small() -> None:
    old: dict[str, Any] = {
        "containers": [{"name": "a"}, {"name": "b", "image": "b:1"}, {"name": "c"}],
        "x": 1,
    }
    new = {"containers": [{"name": "a"}, {"name": "new"}, *old["containers"][1:]], "y": None}
    assert create_json_patch(old, new) == [
        {"op": "remove", "path": "/x"},
        {"op": "add", "path": "/containers/1", "value": {"name": "new"}},
        {"op": "add", "path": "/y", "value": None},
    ]
