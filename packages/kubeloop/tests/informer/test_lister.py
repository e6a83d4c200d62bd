"""Listers: selectors, namespaces, names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.informer.support import pod

from kubeloop.client.errors import NotFound
from kubeloop.informer.lister import Lister
from kubeloop.informer.store import Store, StoreView
from kubeloop.objects.lazy import parse_lazy
from kubeloop.objects.meta import DICT_ACCESS, STRUCT_ACCESS, Key, LabeledMeta, SlimMeta
from kubeloop.objects.selectors import LabelSelector


class NoScan(StoreView[Any]):
    """A view on which listing everything is a mistake."""

    def list(self):
        raise AssertionError("the whole store was scanned")


def filled(view=StoreView, **options):
    store = Store(**options)
    for namespace, name, labels in (
        ("default", "web-1", {"app": "web", "tier": "a"}),
        ("default", "web-2", {"app": "web"}),
        ("default", "db", {"app": "db"}),
        ("other", "web-1", {"app": "web"}),
        ("other", "bare", None),
    ):
        obj = pod(name, metadata={"namespace": namespace, "labels": labels}, spec={"node": name})
        store.put(DICT_ACCESS.key(obj), obj)
    return Lister(view(store), DICT_ACCESS, resource="v1/pods")


def keys(objects):
    return sorted(DICT_ACCESS.key(obj) for obj in objects)


@pytest.mark.spec("S8")
def test_a_lister_selects_by_labels_over_all_namespaces():
    lister = filled()
    assert len(lister.list()) == 5
    assert keys(lister.list("app=web")) == ["default/web-1", "default/web-2", "other/web-1"]
    assert keys(lister.list("app in (db), !tier")) == ["default/db"]
    assert keys(lister.list({"app": "web", "tier": "a"})) == ["default/web-1"]
    assert keys(
        lister.list({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})
    ) == ["other/bare"]


@pytest.mark.spec("S8")
def test_a_namespace_lister_uses_the_index():
    lister = filled(NoScan)
    assert keys(lister.namespace("other").list()) == ["other/bare", "other/web-1"]
    assert keys(lister.namespace("default").list("app=web")) == ["default/web-1", "default/web-2"]
    assert lister.namespace("empty").list() == []
    assert keys(lister.list(field_selector="metadata.namespace=other")) == [
        "other/bare",
        "other/web-1",
    ]


@pytest.mark.spec("S8")
def test_without_the_index_a_namespace_is_found_by_a_scan():
    lister = filled(by_namespace=False)
    assert keys(lister.namespace("other").list("app=web")) == ["other/web-1"]


@pytest.mark.spec("S8")
def test_the_empty_namespace_is_all_of_them():
    assert len(filled().namespace("").list()) == 5


@pytest.mark.spec("S8")
def test_a_selector_for_nothing_scans_nothing():
    assert filled(NoScan).list(LabelSelector.nothing()) == []


@pytest.mark.spec("S8")
def test_miss_is_typed_not_found_with_resource_and_name():
    lister = filled()
    assert DICT_ACCESS.name(lister.get("default", "db")) == "db"
    assert DICT_ACCESS.name(lister.namespace("default").get("db")) == "db"
    for miss in (lambda: lister.get("x", "nope"), lambda: lister.namespace("x").get("nope")):
        with pytest.raises(NotFound, match='v1/pods "x/nope" not found') as caught:
            miss()
        assert caught.value.code == 404
        assert caught.value.status.details is not None
        assert caught.value.status.details.name == "nope"
    assert lister.find("default", "nope") is None
    assert lister.namespace("default").find("db") is not None


def test_name_without_namespace_is_mistake_not_miss():
    lister = filled()
    for incomplete in (lister.find, lister.get):
        with pytest.raises(TypeError, match="'name'"):
            incomplete("web-1")


@pytest.mark.spec("S8")
def test_cluster_scoped_objects_are_found_by_name():
    store = Store[Any]()
    store.put(Key("node-1"), {"metadata": {"name": "node-1"}})
    lister = Lister(StoreView(store), DICT_ACCESS, resource="v1/nodes")
    assert lister.get("", "node-1")["metadata"]["name"] == "node-1"


def test_field_selectors_read_names_and_any_path_of_dictionaries():
    lister = filled()
    assert keys(lister.list(field_selector="metadata.name=web-1")) == [
        "default/web-1",
        "other/web-1",
    ]
    assert keys(lister.list(field_selector="spec.node=db")) == ["default/db"]
    assert keys(lister.list("app=web", field_selector="metadata.name!=web-1")) == ["default/web-2"]


def test_field_selectors_refuse_fields_a_struct_lacks():
    class Slim(msgspec.Struct):
        metadata: SlimMeta

    store = Store[Any]()
    store.put(
        Key("ns/a"), parse_lazy(b'{"metadata":{"name":"a","namespace":"ns"},"spec":{"node":"n1"}}')
    )
    lazy = Lister(StoreView(store), STRUCT_ACCESS, resource="v1/pods")
    assert len(lazy.list(field_selector="spec.node=n1")) == 1
    assert lazy.list(field_selector="spec.node=n2") == []
    slim_store = Store[Any]()
    slim_store.put(Key("ns/a"), Slim(SlimMeta(name="a", namespace="ns")))
    slim = Lister(StoreView(slim_store), STRUCT_ACCESS, resource="v1/pods")
    assert len(slim.list(field_selector="metadata.name=a")) == 1
    with pytest.raises(TypeError, match=r"spec\.node.*Slim is not a dictionary"):
        slim.list(field_selector="spec.node=n1")


def test_labels_of_structs_are_selected():
    class Labeled(msgspec.Struct):
        metadata: LabeledMeta

    store = Store[Any]()
    store.put(Key("a"), Labeled(LabeledMeta(name="a", labels={"app": "web"})))
    store.put(Key("b"), Labeled(LabeledMeta(name="b")))
    lister = Lister(StoreView(store), STRUCT_ACCESS, resource="v1/nodes")
    assert [obj.metadata.name for obj in lister.list("app=web")] == ["a"]
