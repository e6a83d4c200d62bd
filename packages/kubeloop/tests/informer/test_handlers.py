"""Handlers of all kinds: plain, async, blocking, filtering, splitting, failing, slow."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from tests.informer.support import (
    Recorder,
    RecordingMetrics,
    informing,
    make_informer,
    now,
    pod,
    settle,
)

from kubeloop.informer import Added, Deleted, State, Updated
from kubeloop.informer.handlers import filtered
from kubeloop.informer.listener import HIGH_WATER, ProcessorListener
from kubeloop.objects.meta import Key
from kubeloop.testing.fake_source import FakeSource
from kubeloop.testing.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


def name(obj) -> str:
    return obj["metadata"]["name"]


async def test_any_of_the_three_callables_may_be_missing():
    source = FakeSource[Any]()
    source.create("a")
    seen: list[Any] = []
    informer = make_informer(source)
    informer.add_handler(
        on_add=lambda obj: seen.append(("add", name(obj))),
        on_update=lambda old, new: seen.append(("update", old.get("n"), new.get("n"))),
        on_delete=lambda obj: seen.append(("delete", name(obj))),
    )
    informer.add_handler(on_delete=lambda obj: seen.append(("only delete", name(obj))))
    async with informer.running():
        await settle()
        source.update("a", n=1)
        source.delete("a")
        await settle()
    assert seen == [
        ("add", "a"),
        ("update", None, 1),
        ("delete", "a"),
        ("only delete", "a"),
    ]


async def test_a_handlers_awaitable_is_awaited_and_other_results_ignored():
    source = FakeSource[Any]()
    source.create("a")
    seen = []

    async def later(obj):
        await asyncio.sleep(3)
        seen.append(now())

    informer = make_informer(source)
    informer.add_handler(on_add=lambda obj: 42)
    informer.add_handler(on_add=functools.partial(later))
    informer.add_handler(on_add=lambda obj: later(obj))
    async with informer.running():
        await asyncio.sleep(10)
    assert seen == [3, 3]


async def test_one_call_at_a_time_for_async_handlers():
    source = FakeSource[Any]()
    for number in range(4):
        source.create(f"pod-{number}")
    running, most, order = 0, 0, []

    async def slow(obj):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        order.append(name(obj))
        running -= 1

    informer = make_informer(source)
    handle = informer.add_handler(on_add=slow)
    async with informer.running():
        assert await handle.wait_synced()
        assert now() == pytest.approx(4)
    assert most == 1
    assert order == [f"pod-{number}" for number in range(4)]


@pytest.mark.spec("I11")
async def test_a_blocking_handler_runs_serially_in_a_thread():
    source = FakeSource[Any]()
    for number in range(20):
        source.create(f"pod-{number}")
    loop_thread = threading.get_ident()
    threads, order = set(), []
    busy = threading.Lock()

    def block(obj):
        assert busy.acquire(blocking=False), "two calls at once"
        threads.add(threading.get_ident())
        order.append(name(obj))
        assert informer.store.get(f"default/{name(obj)}") is not None
        busy.release()

    informer = make_informer(source)
    handle = informer.add_handler(on_add=block, blocking=True)
    async with informer.running():
        assert await handle.wait_synced()
    assert loop_thread not in threads
    assert order == [f"pod-{number}" for number in range(20)]


@pytest.mark.spec("I10", "I11")
async def test_a_stuck_blocking_handler_holds_no_thread_that_others_need():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="asyncio_"))
    source = FakeSource[Any]()
    source.create("a")
    free, in_time, seen = threading.Event(), [], []
    informer = make_informer(source)
    informer.add_handler(on_add=lambda obj: in_time.append(free.wait(10)), blocking=True)
    other = informer.add_handler(on_add=lambda obj: seen.append(name(obj)), blocking=True)
    async with informer.running():
        assert await other.wait_synced()
        # Names of servers are resolved in the loop's own threads.
        await loop.run_in_executor(None, free.set)
    assert (seen, in_time) == (["a"], [True])


async def test_the_thread_of_a_blocking_handler_ends_with_it():
    source = FakeSource[Any]()
    source.create("a")
    threads: list[threading.Thread] = []
    informer = make_informer(source)
    handle = informer.add_handler(
        on_add=lambda obj: threads.append(threading.current_thread()), blocking=True
    )
    async with informer.running():
        assert await handle.wait_synced()
        await informer.remove_handler(handle)
        threads[0].join(10)
        assert not threads[0].is_alive()


def test_an_async_handler_cannot_be_blocking():
    async def handler(obj): ...

    informer = make_informer(FakeSource())
    with pytest.raises(ValueError, match="blocking=True is for plain functions"):
        informer.add_handler(on_add=handler, blocking=True)


@pytest.mark.parametrize("arguments", [{}, {"on_event": print, "on_add": print}])
def test_a_handler_needs_callables_of_one_kind(arguments):
    with pytest.raises(ValueError, match="give on_event alone"):
        make_informer(FakeSource()).add_handler(**arguments)


@pytest.mark.spec("I11")
async def test_plain_handler_that_holds_loop_is_named_in_warning(caplog):
    source = FakeSource[Any]()
    source.create("a")
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())

    def hog(obj):
        loop.advance(0.25)  # virtual time's way of being busy

    informer = make_informer(source)
    informer.add_handler(on_add=hog, name="the-hog")
    async with informer.running():
        await settle()
    assert "handler the-hog blocked the event loop for 250 ms" in caplog.text
    assert "blocking=True" in caplog.text


@pytest.mark.spec("I11")
async def test_a_runner_yields_by_time_and_by_count():
    loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
    turns = []

    def busy(note):
        loop.advance(0.002)
        turns.append(("handler", note.key))

    listener = ProcessorListener(name="busy", deliver=busy)
    listener.push([Added(Key(f"k{n}"), None) for n in range(9)])
    task = asyncio.create_task(listener.run())
    while len(turns) < 12:
        turns.append(("other", ""))
        await asyncio.sleep(0)
    listener.close(drain=False)
    await task
    # 5 ms are over after the third call of 2 ms.
    assert [who for who, _ in turns[:9]] == ["other"] + ["handler"] * 3 + ["other"] + [
        "handler"
    ] * 3 + ["other"]
    quick = ProcessorListener[Any](name="quick", deliver=lambda note: None)
    quick.push([Added(Key(f"k{n}"), None) for n in range(2500)])
    task = asyncio.create_task(quick.run())
    await asyncio.sleep(0)
    assert quick.pending == 1500
    quick.close(drain=False)
    await task


@pytest.mark.spec("I12")
async def test_failing_handler_loses_item_and_pauses_and_others_notice_nothing():
    source = FakeSource[Any]()
    for number in range(5):
        source.create(f"pod-{number}")
    failures, fine = [], []

    def failing(obj):
        failures.append((now(), name(obj)))
        raise ValueError("a defect in the handler")

    metrics = RecordingMetrics()
    informer = make_informer(source, metrics=metrics)
    informer.add_handler(on_add=failing, name="failing")
    informer.add_handler(on_add=lambda obj: fine.append(now()))
    async with informer.running():
        await asyncio.sleep(10)
    assert failures == [(float(n), f"pod-{n}") for n in range(5)]
    assert fine == [0.0] * 5
    assert metrics.values("handler_failed", "handler") == ["failing"] * 5


@pytest.mark.spec("I12")
async def test_a_handlers_internal_cancellation_is_a_failure():
    source = FakeSource[Any]()
    source.create("a")
    source.create("b")
    seen = []

    async def handler(obj):
        seen.append(name(obj))
        if name(obj) == "a":
            inner = asyncio.create_task(asyncio.sleep(100))
            inner.cancel()
            await inner

    informer = make_informer(source)
    informer.add_handler(on_add=handler)
    async with informer.running():
        await asyncio.sleep(5)
    assert seen == ["a", "b"]


@pytest.mark.spec("R12")
async def test_with_fail_fast_a_handlers_exception_comes_out_of_run():
    source = FakeSource[Any]()
    source.create("a")
    informer = make_informer(source, fail_fast=True)
    informer.add_handler(on_add=lambda obj: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await informer.run()
    assert informer.state is State.STOPPED
    assert source.open_streams == []


@pytest.mark.spec("I13", "I14")
async def test_a_failing_initial_add_does_not_block_sync():
    source = FakeSource[Any]()
    source.create("a")
    source.create("b")
    informer = make_informer(source)

    def handler(obj):
        if name(obj) == "b":
            raise ValueError("no")

    handle = informer.add_handler(on_add=handler)
    async with informer.running():
        assert await handle.wait_synced()
        assert now() < 1


K = Key("k")


def inside(obj) -> bool:
    return obj.get("inside", False)


@pytest.mark.spec("I18")
@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (Added(K, {"inside": True}, initial=True), Added(K, {"inside": True}, initial=True)),
        (Added(K, {}), None),
        (
            Updated(K, {"inside": True, "n": 1}, {"inside": True, "n": 2}),
            Updated(K, {"inside": True, "n": 1}, {"inside": True, "n": 2}),
        ),
        (Updated(K, {}, {"inside": True}), Added(K, {"inside": True}, initial=False)),
        (Updated(K, {"inside": True}, {}), Deleted(K, {"inside": True})),
        (Updated(K, {}, {}), None),
        (Deleted(K, {"inside": True}, stale=True), Deleted(K, {"inside": True}, stale=True)),
        (Deleted(K, {}), None),
    ],
)
def test_filter_turns_updates_across_border_into_adds_and_deletes(note, expected):
    seen: list[Any] = []
    filtered(seen.append, inside)(note)
    assert seen == ([] if expected is None else [expected])


@pytest.mark.spec("I18")
async def test_a_filtering_handler_sees_its_part_of_the_world():
    source = FakeSource[Any]()
    source.create("a", inside=True)
    source.create("b")
    recorder = Recorder()
    informer = make_informer(source)
    informer.add_handler(on_event=recorder, filter=inside)
    async with informer.running():
        await settle()
        source.update("b", inside=True)
        source.update("a", inside=False)
        source.update("a", n=1)
        source.delete("a")
        source.delete("b")
        await settle()
    assert [entry[:2] for entry in recorder.brief] == [
        ("initial", "a"),
        ("add", "b"),
        ("delete", "a"),
        ("delete", "b"),
    ]


@pytest.mark.spec("I19")
async def test_new_uid_is_update_or_optionally_delete_and_add():
    source = FakeSource[Any]()
    source.create("web", uid="uid1")
    plain: list[Any] = []
    split: list[Any] = []
    late: list[Any] = []
    informer = make_informer(source)
    informer.add_handler(on_event=plain.append)
    informer.add_handler(on_event=split.append, split_on_uid_change=True)

    async def slow(note):
        await asyncio.sleep(1)
        late.append(note)

    informer.add_handler(on_event=slow, split_on_uid_change=True)
    async with informer.running():
        await settle()
        source.drop_watches(lose_pending=True)
        source.delete("web")
        source.create("web", uid="uid2")
        source.compact()
        await asyncio.sleep(5)
    assert [type(note) for note in plain] == [Added, Updated]
    assert plain[1].old["metadata"]["uid"] == "uid1"
    assert plain[1].new["metadata"]["uid"] == "uid2"
    assert [type(note) for note in split] == [Added, Deleted, Added]
    assert split[1].obj["metadata"]["uid"] == "uid1"
    assert split[1].stale
    assert not split[2].initial
    assert [type(note) for note in late] == [Added, Deleted, Added]


@pytest.mark.spec("I10")
async def test_a_stalled_handler_delays_neither_the_store_nor_other_handlers():
    source = FakeSource[Any]()
    metrics = RecordingMetrics()
    stalled = []

    async def stall(note):
        stalled.append(note)
        await asyncio.sleep(1000)

    async with informing(source, metrics=metrics) as (informer, recorder):
        handle = informer.add_handler(on_event=stall, name="stalled")
        for number in range(100):
            source.create(f"pod-{number}")
        await settle()
        assert len(recorder.notes) == 100
        assert len(informer.store) == 100
        assert handle.pending == 99
        await informer.remove_handler(handle)
    assert len(stalled) == 1


@pytest.mark.spec("I10")
async def test_deep_buffer_is_warned_about_once_and_shown_as_metric(caplog):
    metrics = RecordingMetrics()
    listener = ProcessorListener[Any](name="slow", deliver=lambda note: None, metrics=metrics)
    notes = [Added(Key(f"k{n}"), None) for n in range(HIGH_WATER)]
    listener.push(notes)
    assert caplog.records == []
    listener.push(notes[:10])
    listener.push(notes[:10])
    assert len(caplog.records) == 1
    assert "handler slow is slow: 10010 notifications wait" in caplog.text
    task = asyncio.create_task(listener.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert metrics.values("pending", "notifications")[0] == 2 * 10 + HIGH_WATER - 1000
    listener.close(drain=False)
    await task


async def test_handler_is_named_after_callable_unless_it_has_name():
    informer = make_informer(FakeSource())

    def my_handler(obj): ...

    assert informer.add_handler(on_delete=my_handler).name.endswith("my_handler")
    assert informer.add_handler(on_add=my_handler, name="mine").name == "mine"
    assert informer.add_handler(on_add=functools.partial(my_handler)).name == "handler"
    assert "mine" in repr(informer.add_handler(on_add=my_handler, name="mine"))


async def test_metrics_of_a_handler_count_its_notifications():
    source = FakeSource[Any]()
    for number in range(3):
        source.put(pod(f"pod-{number}"))
    metrics = RecordingMetrics()
    async with informing(source, metrics=metrics):
        pass
    assert sum(metrics.values("handled", "notifications")) == 3
    assert metrics.values("listed", "items") == [3]
    assert metrics.values("stored", "objects")[-1] == 3
    assert ("watch_opened", {}) in metrics.calls
