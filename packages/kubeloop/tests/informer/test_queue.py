"""The ordered queue, alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import pytest
from tests.informer.support import now, pod, settle

from kubeloop.informer.queue import (
    BATCH,
    Bookmark,
    Changes,
    DeltaQueue,
    QueueClosed,
    ReplacedAll,
    SyncAll,
)
from kubeloop.informer.reflector.events import Delta, ObjectPreparer, Rejected
from kubeloop.objects.meta import DICT_ACCESS, Key, split_key

pytestmark = pytest.mark.virtual_time

INTAKE = ObjectPreparer[Any](DICT_ACCESS)


def put(name: str, version: int) -> Delta[Any]:
    return INTAKE.add(pod(name, version))


def delete(name: str, version: int) -> Delta[Any]:
    return INTAKE.delete(pod(name, version))


@pytest.mark.spec("Q1")
async def test_entries_leave_in_order_unmerged():
    queue = DeltaQueue[Any]()
    changes = [put("a", 1), put("a", 2), delete("a", 3)]
    queue.put(changes)
    queue.put([put("b", 4)])
    queue.resync()
    queue.put([put("a", 5)])
    queue.bookmark("6")
    queue.replace({Key("default/a"): pod("a", 7)}, "7")
    entries = [await queue.pop() for _ in range(6)]
    assert entries[0] == Changes(changes)
    kinds = [Changes, Changes, SyncAll, Changes, Bookmark, ReplacedAll]
    assert [type(entry) for entry in entries] == kinds


@pytest.mark.spec("Q2")
async def test_an_object_without_a_key_is_refused_on_entry():
    nameless = {"metadata": {"resourceVersion": "3"}}
    for refuse in (INTAKE.add, INTAKE.delete):
        with pytest.raises(Rejected) as caught:
            refuse(nameless)
        assert caught.value.reason == "key"
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.__cause__.args == (nameless,)


@pytest.mark.spec("Q2")
async def test_a_key_is_namespace_and_name_or_the_name_alone():
    assert put("a", 1).key == "default/a"
    assert INTAKE.add({"metadata": {"name": "node"}}).key == "node"
    assert split_key("default/a") == ("default", "a")
    assert split_key("node") == ("", "node")
    with pytest.raises(ValueError, match="a/b/c"):
        split_key("a/b/c")


@pytest.mark.spec("Q8", "S11")
async def test_transform_runs_once_on_entry_for_adds_updates_and_deletes():
    calls = []

    def transform(obj):
        calls.append(obj)
        return {**obj, "seen": len(calls)}

    preparer = ObjectPreparer[Any](DICT_ACCESS, transform)
    first, last = preparer.add(pod("a", 1)), preparer.delete(pod("a", 2))
    assert (first.obj["seen"], last.obj["seen"]) == (1, 2)
    assert len(calls) == 2


@pytest.mark.spec("Q8")
@pytest.mark.parametrize("broken", [lambda _obj: 1 / 0, lambda _obj: None])
async def test_a_failing_transform_refuses_the_object(broken):
    with pytest.raises(Rejected) as caught:
        ObjectPreparer[Any](DICT_ACCESS, broken).add(pod("a", 1))
    assert caught.value.reason == "transform"


@pytest.mark.spec("S11")
async def test_a_renaming_transform_changes_the_key():
    def rename(obj):
        obj["metadata"]["name"] = "renamed"
        return obj

    assert ObjectPreparer[Any](DICT_ACCESS, rename).add(pod("a", 1)).key == "default/renamed"
    bare = ObjectPreparer[Any](DICT_ACCESS, lambda obj: {"size": len(obj)}).add(pod("a", 1))
    assert bare.key == "default/a"
    assert bare.obj == {"size": 3}
    assert bare.version == ""


@pytest.mark.spec("Q9")
async def test_a_queue_is_not_synced_before_anything_happened():
    assert not DeltaQueue().has_synced


@pytest.mark.spec("Q9")
async def test_a_change_before_any_list_makes_it_synced_at_once():
    queue = DeltaQueue[Any]()
    queue.put([put("a", 1)])
    assert queue.has_synced


@pytest.mark.spec("Q9")
@pytest.mark.parametrize("items", [{}, {"default/a": pod("a", 1)}])
async def test_synced_means_the_first_list_was_processed(items):
    queue = DeltaQueue[Any]()
    queue.replace(items, "1")
    assert not queue.has_synced
    entry = await queue.pop()
    assert not queue.has_synced
    queue.done(entry)
    assert queue.has_synced
    queue.replace({}, "2")
    assert queue.has_synced, "later lists never take it back"


@pytest.mark.spec("Q9")
async def test_changes_behind_the_first_list_do_not_make_it_synced():
    queue = DeltaQueue[Any]()
    queue.replace({}, "1")
    queue.put([delete("a", 2)])
    assert not queue.has_synced
    queue.done(await queue.pop())
    assert queue.has_synced


@pytest.mark.spec("Q9")
async def test_entries_before_the_first_list_do_not_count_as_sync():
    queue = DeltaQueue[Any]()
    queue.resync()
    queue.replace({}, "1")
    queue.done(await queue.pop())
    assert not queue.has_synced
    queue.done(await queue.pop())
    assert queue.has_synced


@pytest.mark.spec("Q15")
async def test_a_failed_first_list_stays_unsynced_until_the_next():
    queue = DeltaQueue[Any]()
    queue.replace({}, "1")
    queue.failed(await queue.pop())
    assert not queue.has_synced
    queue.replace({}, "2")
    assert not queue.has_synced
    queue.done(await queue.pop())
    assert queue.has_synced


@pytest.mark.spec("Q12")
async def test_a_producer_waits_while_two_batches_are_queued():
    queue = DeltaQueue[Any]()
    queue.put([put("a", n) for n in range(1, BATCH + 1)])
    await asyncio.wait_for(queue.wait_for_room(), 1)
    queue.put([put("b", n) for n in range(1, BATCH + 1)])
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(10)
    assert not waiting.done()
    await queue.pop()
    await settle()
    assert waiting.done()


@pytest.mark.spec("Q13")
async def test_closing_wakes_the_consumer_and_keeps_queued_entries():
    queue = DeltaQueue[Any]()
    waiting = asyncio.create_task(queue.pop())
    await settle()
    queue.close()
    with pytest.raises(QueueClosed):
        await waiting
    other = DeltaQueue[Any]()
    other.put([put("a", 1)])
    other.close()
    other.put([put("b", 2)])
    assert cast("Changes[Any]", await other.pop()).items == [put("a", 1)]
    with pytest.raises(QueueClosed):
        await other.pop()


@pytest.mark.spec("Q14")
async def test_taken_entries_are_released():
    class Tracked(dict[str, Any]):
        """An object that can be referred to weakly."""

    queue = DeltaQueue[Any]()
    obj = Tracked(pod("a", 1))
    alive = weakref.ref(obj)
    queue.put([INTAKE.add(obj)])
    queue.put([put("b", 2)])
    entry = await queue.pop()
    del obj, entry
    gc.collect()
    assert alive() is None
    assert len(queue) == 1


async def test_a_cancelled_pop_loses_nothing():
    queue = DeltaQueue[Any]()
    waiting = asyncio.create_task(queue.pop())
    await settle()
    queue.put([put("a", 1)])
    waiting.cancel()
    await asyncio.wait({waiting})
    assert cast("Changes[Any]", await queue.pop()).items == [put("a", 1)]
    assert now() < 1


async def test_the_queue_repr_shows_its_state():
    queue = DeltaQueue[Any]()
    assert repr(queue) == "<DeltaQueue not synced: 0 entries, 0 changes>"
    queue.put([put("a", 1), put("b", 1)])
    assert repr(queue) == "<DeltaQueue synced: 1 entries, 2 changes>"
