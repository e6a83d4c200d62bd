"""The store and its event log, without a server."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkube.apiserver.storage import FellBehind, HistoryWindow, ObjectStore, StoredObject


def obj(name: str, **extra):
    return {"metadata": {"name": name, **extra}}


def put(store, name, **extra):
    return store.put(store.collection("things"), name, obj(name, **extra))


def test_versions_grow_by_one_across_collections():
    store = ObjectStore()
    first = store.put(store.collection("a"), "x", obj("x"))
    second = store.put(store.collection("b"), "x", obj("x"))
    assert second.version == first.version + 1
    assert second.decode()["metadata"]["resourceVersion"] == str(second.version)


def test_a_scan_is_ordered_and_keeps_to_its_namespace():
    store = ObjectStore()
    things = store.collection("things")
    for key in ("b/2", "a/1", "a-b/1", "b/1"):
        store.put(things, key, obj(key))
    assert [record.key for record in things.scan()] == ["a-b/1", "a/1", "b/1", "b/2"]
    assert [record.key for record in things.scan("b")] == ["b/1", "b/2"]
    assert [record.name for record in things.scan("a")] == ["1"]


def test_a_decoded_record_is_the_caller_s_own():
    store = ObjectStore()
    record = put(store, "x")
    record.decode()["metadata"]["name"] = "changed"
    assert record.decode()["metadata"]["name"] == "x"


def test_a_cursor_reads_each_change_once_in_order():
    store = ObjectStore()
    things = store.collection("things")
    cursor = things.log.cursor(store.version)
    put(store, "a")
    put(store, "b")
    assert [change.record.key for change in cursor.take()] == ["a", "b"]
    assert cursor.take() == []
    store.delete(things, "a", obj("a"))
    (change,) = cursor.take()
    assert change.deleted
    assert change.previous is not None


def test_a_slow_cursor_falls_behind_with_an_error():
    store = ObjectStore(window=HistoryWindow(changes=4))
    cursor = store.collection("things").log.cursor(store.version)
    for number in range(6):
        put(store, f"n{number}")
    with pytest.raises(FellBehind):
        cursor.take()


def test_the_window_is_bounded_in_bytes():
    store = ObjectStore(window=HistoryWindow(octets=10_000))
    for number in range(50):
        put(store, f"n{number}", note="x" * 1000)
    log = store.collection("things").log
    assert len(log) <= 10
    with pytest.raises(FellBehind):
        log.cursor(1)


def test_compaction_ends_every_older_version():
    store = ObjectStore()
    record = put(store, "a")
    put(store, "b")
    store.compact()
    log = store.collection("things").log
    with pytest.raises(FellBehind):
        log.cursor(record.version)
    assert log.cursor(store.version).take() == []
    assert store.collection("later").log.compacted == store.version


async def test_a_waiting_reader_is_woken_by_a_write():
    store = ObjectStore()
    cursor = store.collection("things").log.cursor(store.version)
    waiting = asyncio.create_task(cursor.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    put(store, "a")
    await waiting
    assert len(cursor.take()) == 1


def test_an_event_is_encoded_once_for_all_who_want_the_same():
    store = ObjectStore()
    cursor = store.collection("things").log.cursor(store.version)
    put(store, "a")
    (change,) = cursor.take()
    calls = []

    def render(record):
        calls.append(record)
        return record.data

    assert change.line("ADDED", "json", render) is change.line("ADDED", "json", render)
    assert len(calls) == 1


names = st.sampled_from("abcd")
steps = st.lists(st.tuples(st.sampled_from(["put", "delete"]), names), max_size=40)


@given(steps)
def test_any_past_state_can_be_read_back(script):
    store = ObjectStore()
    things = store.collection("things")
    states: dict[int, dict[str, int]] = {store.version: {}}
    current: dict[str, int] = {}
    for action, name in script:
        if action == "put":
            current[name] = put(store, name).version
        elif name in current:
            store.delete(things, name, obj(name))
            del current[name]
        states[store.version] = dict(current)
    for version, expected in states.items():
        assert {key: record.version for key, record in things.at(version).items()} == expected


@given(steps)
def test_replaying_the_log_gives_the_state(script):
    store = ObjectStore()
    things = store.collection("things")
    cursor = things.log.cursor(store.version)
    alive: set[str] = set()
    for action, name in script:
        if action == "put":
            put(store, name)
            alive.add(name)
        elif name in alive:
            store.delete(things, name, obj(name))
            alive.discard(name)
    replayed: dict[str, StoredObject] = {}
    for change in cursor.take():
        if change.deleted:
            del replayed[change.record.key]
        else:
            replayed[change.record.key] = change.record
    assert replayed == {record.key: record for record in things.scan()}
