from __future__ import annotations

import copy
import gc
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.lazy import LazyObject, parse_lazy
from kubeloop.objects.list_watch import ItemType
from kubeloop.objects.meta import STRUCT_ACCESS, ObjectMeta, access_for

POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "u1",
        "resourceVersion": "7",
        "labels": {"app": "web"},
        "finalizers": ["example.com/hold"],
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u0"}
        ],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:spec": {'k:{"name":"x"}': {}}}}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "args": ["}", "\\", '"]']}]},
}


def encode(obj: object) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()


def trimmed(obj: dict[str, Any]) -> dict[str, Any]:
    obj = copy.deepcopy(obj)
    obj.get("metadata", {}).pop("managedFields", None)
    return obj


def test_metadata_is_decoded_at_once_and_the_rest_on_demand() -> None:
    pod = parse_lazy(encode(POD))

    assert (pod.api_version, pod.kind) == ("v1", "Pod")
    assert isinstance(pod.metadata, ObjectMeta)
    assert pod.metadata.name == "web"
    assert pod.metadata.owner_references is not None
    assert pod.metadata.owner_references[0].name == "r"
    assert pod.to_dict() == trimmed(POD)
    assert list(pod.to_dict()) == list(POD)


def test_struct_access_reads_it_like_any_struct() -> None:
    pod = parse_lazy(encode(POD))

    assert access_for(LazyObject) is STRUCT_ACCESS
    assert STRUCT_ACCESS.key(pod) == "shop/web"
    assert STRUCT_ACCESS.version(pod) == "7"
    assert STRUCT_ACCESS.labels(pod) == {"app": "web"}
    assert STRUCT_ACCESS.finalizers(pod) == ["example.com/hold"]
    assert [owner.kind for owner in STRUCT_ACCESS.owners(pod)] == ["ReplicaSet"]
    with pytest.raises(KeyError):
        STRUCT_ACCESS.key(parse_lazy(b"{}"))


def test_managed_fields_are_cut_out_of_the_bytes() -> None:
    pod = parse_lazy(encode(POD))

    assert b"kubelet" not in pod.raw
    assert len(pod.raw) < len(encode(POD))
    assert "managedFields" not in pod.to_dict()["metadata"]


class Template(msgspec.Struct):
    spec: dict[str, object]


def test_decode_reads_a_struct_from_the_same_bytes() -> None:
    assert parse_lazy(encode(POD)).decode(Template).spec["nodeName"] == "n1"

    class Wrong(msgspec.Struct):
        spec: int

    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec"):
        parse_lazy(encode(POD)).decode(Wrong)


@pytest.mark.parametrize(
    "obj",
    [
        {"metadata": {"name": "a", "managedFields": []}, "spec": {"managedFields": [1, 2]}},
        {"spec": {"managedFields": [1, 2]}, "metadata": {"name": "a", "managedFields": [3]}},
        {"spec": {"managedFields": [3]}, "metadata": {"name": "a"}},
        {"a": {'\\"managedFields': [1]}, "metadata": {"name": "a", "managedFields": [1]}},
        {"metadata": {"name": "a", "labels": {"managedFields": "x"}, "managedFields": [1]}},
        {
            "metadata": {
                "name": "a",
                "annotations": {"x": '"managedFields":[1]'},
                "managedFields": [1],
            }
        },
        {"metadata": {"name": "a", "managedFields": None}},
        {"metadata": {"name": "a", "managedFields": [{"managedFields": {}}]}},
        {"metadata": {"name": "a"}},
        {},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
def test_only_the_metadatas_own_managed_fields_go(
    obj: dict[str, Any], separators: tuple[str, str]
) -> None:
    data = json.dumps(obj, separators=separators).encode()

    assert parse_lazy(data).to_dict() == trimmed(obj)


keys = st.sampled_from(["managedFields", "metadata", "spec", 'x"managedFields', "\\managedFields"])
values = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(['"managedFields":[1]', "}", "]", "\\", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    before=st.dictionaries(keys.filter(lambda key: key != "metadata"), values, max_size=2),
    managed=values,
    has_managed=st.booleans(),
    ascii_only=st.booleans(),
)
def test_any_object_round_trips_except_for_managed_fields(
    before: dict[str, Any], managed: object, has_managed: bool, ascii_only: bool
) -> None:
    metadata: dict[str, Any] = {"name": "a"} | ({"managedFields": managed} if has_managed else {})
    obj = {**before, "metadata": metadata, "after": before}

    data = json.dumps(obj, separators=(",", ":"), ensure_ascii=ascii_only).encode()

    assert parse_lazy(data).to_dict() == trimmed(obj)


@pytest.mark.spec("R14")
def test_it_pins_no_more_than_its_own_bytes() -> None:
    data = encode(POD)
    pod = parse_lazy(data)

    assert all(referent is not data for referent in gc.get_referents(pod))
    assert {type(referent) for referent in gc.get_referents(pod.metadata)} <= {
        str, int, dict, list, tuple, type(None), type(msgspec.UNSET), type(pod.metadata)
    }  # fmt: skip


def test_the_collector_does_not_see_it() -> None:
    assert not gc.is_tracked(parse_lazy(encode(POD)))


def test_type_that_list_gives_is_part_of_object() -> None:
    plain = {"metadata": {"name": "a"}}

    pod = parse_lazy(encode(plain), ItemType("v1", "Pod"))

    assert pod.to_dict() == {**plain, "apiVersion": "v1", "kind": "Pod"}
    assert pod == parse_lazy(encode({"kind": "Pod", "apiVersion": "v1", **plain}))


def test_equality_is_about_what_the_objects_say() -> None:
    other_order = {"apiVersion": "v1", **POD}
    without = trimmed(POD)

    assert parse_lazy(encode(POD)) == parse_lazy(encode(other_order))
    assert parse_lazy(encode(POD)) == parse_lazy(encode(without))
    assert parse_lazy(encode(POD)) != parse_lazy(encode({**POD, "kind": "Node"}))
    assert parse_lazy(encode(POD)) != parse_lazy(encode({**POD, "spec": {}}))
    assert parse_lazy(encode(POD)) != POD
    with pytest.raises(TypeError):
        hash(parse_lazy(encode(POD)))


def test_repr_names_the_object() -> None:
    text = repr(parse_lazy(encode(POD)))

    assert text.startswith("<LazyObject v1 Pod shop/web version=7 bytes=")


def test_copies_are_equal() -> None:
    pod = parse_lazy(encode(POD))

    assert copy.deepcopy(pod) == pod


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b'{"metadata":{"name":5}}', b'{"metadata":{}']
)
def test_anything_but_an_object_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        parse_lazy(data)


def test_what_is_not_decoded_is_refused_with_way_to_it():
    pod: Any = parse_lazy(encode(POD))
    with pytest.raises(AttributeError, match=r"no 'spec'.*to_dict\(\)"):
        _ = pod.spec
    with pytest.raises(TypeError, match=r"not a dictionary.*to_dict\(\)"):
        pod["spec"]
    assert not hasattr(pod, "status")
