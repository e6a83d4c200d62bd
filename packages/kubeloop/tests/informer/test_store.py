"""The store and its indices."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.informer.support import informing, make_informer, pod

from kubeloop.informer.shared_informer import InformerStopped
from kubeloop.informer.store import NAMESPACE, Store, StoreView, UnknownIndex
from kubeloop.testing.fake_source import FakeSource


def by_labels(obj):
    return obj["metadata"].get("labels", {}).values()


def make(indexers=None):
    store = Store(indexers)
    return store, StoreView(store)


def put(store, name, version=1, **metadata):
    obj = pod(name, version, metadata=metadata)
    store.put(f"default/{name}", obj)
    return obj


@pytest.mark.spec("S1")
def test_objects_are_added_updated_read_listed_and_deleted():
    store, view = make()
    a = put(store, "a")
    assert view.get("default/a") is a
    assert view.get("default/none") is None
    newer = pod("a", 2)
    assert store.put("default/a", newer) is a
    b = put(store, "b")
    assert view.list() == [newer, b]
    assert view.keys() == ["default/a", "default/b"]
    assert view.items() == [("default/a", newer), ("default/b", b)]
    assert store.delete("default/a") is newer
    assert store.delete("default/a") is None
    assert len(view) == 1
    assert "default/a" not in view


@pytest.mark.spec("S1")
def test_a_replace_swaps_objects_and_indices_in_one_step():
    store, view = make({"labels": by_labels})
    put(store, "a", labels={"app": "old"})
    staging = store.stage()
    staging.put("default/b", pod("b", 5, metadata={"labels": {"app": "new"}}))
    assert view.keys() == ["default/a"]
    assert view.index_values("labels") == ["old"]
    old = store.swap(staging, "5")
    assert list(old) == ["default/a"]
    assert view.keys() == ["default/b"]
    assert view.index_values("labels") == ["new"]
    assert view.by_index("labels", "old") == []
    assert view.version == "5"


@pytest.mark.spec("S1", "S6")
def test_index_added_while_list_is_staged_has_staged_objects():
    store, view = make()
    staging = store.stage()
    staging.put("default/a", pod("a", 1, metadata={"labels": {"app": "web"}}))
    store.add_indexers({"labels": by_labels})
    store.swap(staging, "1")
    assert view.index_keys("labels", "web") == ["default/a"]


@pytest.mark.spec("S2")
def test_what_a_query_returned_does_not_change_afterwards():
    store, view = make({"labels": by_labels})
    put(store, "a", labels={"app": "web"})
    results = [
        view.list(),
        view.keys(),
        view.items(),
        view.by_index("labels", "web"),
        view.index_keys("labels", "web"),
        view.index_values("labels"),
    ]
    before = [list(result) for result in results]
    put(store, "b", labels={"app": "web"})
    store.delete("default/a")
    store.swap(store.stage(), "9")
    assert [list(result) for result in results] == before
    results[0].clear()
    put(store, "c")
    assert len(view.list()) == 1


@pytest.mark.spec("S2")
def test_readers_in_other_threads_never_see_half_a_change():
    store, view = make({"labels": by_labels})
    torn = []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            for value in ("odd", "even"):
                try:
                    found = view.by_index("labels", value)
                except KeyError as error:
                    torn.append(error)
                    return
                torn.extend(obj for obj in found if value not in by_labels(obj))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(5000):
            with store.lock:
                parity = ("even", "odd")[number % 2]
                put(store, f"pod-{number % 7}", number, labels={"parity": parity})
                if number % 5 == 0:
                    store.delete(f"default/pod-{number % 7}")
    finally:
        stop.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert torn == []


@pytest.mark.spec("S4")
def test_an_update_removes_stale_index_values():
    store, view = make({"labels": by_labels})
    put(store, "a", labels={"x": "1", "y": "2"})
    put(store, "b", labels={"x": "1"})
    assert view.index_keys("labels", "1") == ["default/a", "default/b"]
    assert view.index_keys("labels", "2") == ["default/a"]
    put(store, "a", 2, labels={"x": "3", "y": "2"})
    assert view.index_keys("labels", "1") == ["default/b"]
    assert view.index_keys("labels", "2") == ["default/a"]
    assert sorted(view.index_values("labels")) == ["1", "2", "3"]
    put(store, "b", 2)
    assert view.by_index("labels", "1") == []


@pytest.mark.spec("S4")
def test_an_update_that_keeps_its_values_keeps_its_place():
    store, view = make({"labels": by_labels})
    put(store, "a", labels={"x": "1"})
    put(store, "b", labels={"x": "1"})
    put(store, "a", 2, labels={"x": "1"})
    assert view.index_keys("labels", "1") == ["default/a", "default/b"]
    assert [obj["metadata"]["resourceVersion"] for obj in view.by_index("labels", "1")] == [
        "2",
        "1",
    ]


@pytest.mark.spec("S5")
def test_empty_index_entries_disappear_and_others_stay():
    store, view = make({"labels": by_labels})
    for number in range(100):
        put(store, "churn", number, labels={"hash": str(number)})
    assert view.index_values("labels") == ["99"]
    put(store, "other", labels={"hash": "99"})
    store.delete("default/churn")
    assert view.index_values("labels") == ["99"]
    store.delete("default/other")
    assert view.index_values("labels") == []
    assert view.index_values(NAMESPACE) == []


@pytest.mark.spec("S6")
@pytest.mark.virtual_time
async def test_indexers_may_be_added_until_the_stop():
    source = FakeSource[Any]()
    source.create("a", labels={"app": "web"})
    informer = make_informer(source, indexers={"early": by_labels})
    informer.add_indexers({"before": by_labels})
    async with informer.running():
        await informer.wait_synced()
        informer.add_indexers({"after": by_labels})
        for name in ("early", "before", "after"):
            assert informer.store.index_keys(name, "web") == ["default/a"]
        with pytest.raises(ValueError, match="after"):
            informer.add_indexers({"after": by_labels})
        source.create("b", labels={"app": "web"})
        await asyncio.sleep(1)
        assert informer.store.index_keys("after", "web") == ["default/a", "default/b"]
    with pytest.raises(InformerStopped):
        informer.add_indexers({"late": by_labels})


@pytest.mark.spec("S6")
def test_unknown_index_name_is_error_that_names_known_ones():
    _, view = make({"labels": by_labels})
    for query in (lambda: view.by_index("nope", "x"), lambda: view.index_values("nope")):
        with pytest.raises(UnknownIndex, match="labels, namespace"):
            query()


@pytest.mark.spec("S7")
def test_an_index_function_that_raises_leaves_objects_and_indices_consistent(caplog):
    def fussy(obj):
        if obj["metadata"].get("poison"):
            raise ValueError("cannot index this")
        return by_labels(obj)

    store, view = make({"fussy": fussy, "labels": by_labels})
    put(store, "a", labels={"app": "web"})
    put(store, "a", 2, labels={"app": "web"}, poison=True)
    assert view.index_keys("fussy", "web") == []
    assert view.index_keys("labels", "web") == ["default/a"]
    put(store, "b", labels={"app": "web"}, poison=True)
    put(store, "b", 2, labels={"app": "web"})
    assert view.index_keys("fussy", "web") == ["default/b"]
    store.delete("default/a")
    store.delete("default/b")
    assert view.index_values("fussy") == []
    assert len(view) == 0
    assert "cannot index this" in caplog.text


def test_index_function_that_returns_string_is_reported_to_return_list(caplog):
    store, view = make({"name": lambda obj: obj["metadata"]["name"]})
    put(store, "web")
    assert view.index_values("name") == []
    assert "it returned 'web'; return a list" in caplog.text


@pytest.mark.spec("S8")
def test_namespace_index_is_standard_and_leaves_out_cluster_scoped_objects():
    store, view = make()
    put(store, "a")
    store.put("other/b", pod("b"))
    store.put("node", {"metadata": {"name": "node"}})
    assert view.index_keys(NAMESPACE, "default") == ["default/a"]
    assert sorted(view.index_values(NAMESPACE)) == ["default", "other"]
    put(store, "a", 2)
    store.delete("other/b")
    assert view.index_values(NAMESPACE) == ["default"]


@pytest.mark.spec("S9")
@pytest.mark.virtual_time
async def test_the_store_version_differs_from_the_reflectors():
    source = FakeSource[Any](version=40)
    source.create("a")
    async with informing(source) as (informer, _):
        assert informer.store.version == informer.last_version == "41"
        source.update("a", spec=1)
        await asyncio.sleep(1)
        assert informer.store.version == "42"
        source.bump(10)
        source.send_bookmark()
        await asyncio.sleep(1)
        assert informer.store.version == "52"


@pytest.mark.spec("S9")
@pytest.mark.virtual_time
async def test_metadata_less_objects_leave_the_stores_version():
    source = FakeSource[Any]()
    source.create("a")
    async with informing(source, transform=lambda obj: {"only": obj["kind"]}) as (informer, _):
        assert informer.store.version == "1"
        source.create("b")
        await asyncio.sleep(1)
        assert informer.store.keys() == ["default/a", "default/b"]
        assert informer.store.version == "1"
        assert informer.last_version == "2"


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "swap", "index"]),
        st.sampled_from("abcd"),
        st.lists(st.sampled_from("xyz"), max_size=3),
    ),
    max_size=40,
)


@pytest.mark.spec("S4", "S5", "S6")
@given(OPERATIONS)
def test_indices_always_equal_a_scan(operations):
    store, view = make({"values": lambda obj: obj["values"]})
    late = 0
    for what, name, values in operations:
        obj = {"metadata": {"name": name, "namespace": "ns"}, "values": values}
        match what:
            case "put":
                store.put(f"ns/{name}", obj)
            case "delete":
                store.delete(f"ns/{name}")
            case "swap":
                staging = store.stage()
                staging.put(f"ns/{name}", obj)
                store.swap(staging, "1")
            case "index":
                late += 1
                store.add_indexers({f"late-{late}": lambda obj: obj["values"]})
    expected: dict[Any, Any] = {}
    for key, obj in view.items():
        for value in obj["values"]:
            expected.setdefault(value, set()).add(key)
    for index in ["values", *(f"late-{n}" for n in range(1, late + 1))]:
        found = {value: set(view.index_keys(index, value)) for value in view.index_values(index)}
        assert found == expected
