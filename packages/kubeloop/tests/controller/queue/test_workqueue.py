from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest
from tests.controller.queue.queue_probe import RecordedMetrics, now, settle, take, take_all

from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.queue.workqueue import QueueShutDown, WorkQueue

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=[WorkQueue, PriorityQueue], ids=["plain", "priority"])
def queue(request) -> WorkQueue[str]:
    made: WorkQueue[str] = request.param()
    return made


async def drain_in_background(queue: WorkQueue[str]) -> asyncio.Task[None]:
    task = asyncio.create_task(queue.shutdown_with_drain())
    await settle()
    return task


@pytest.mark.spec("W1", "W2")
async def test_items_are_handed_out_in_order_to_one_worker(queue):
    busy: set[str] = set()
    served: list[str] = []

    async def work() -> None:
        with contextlib.suppress(QueueShutDown):
            while True:
                item = await queue.get()
                assert item not in busy
                busy.add(item)
                await asyncio.sleep(3)
                busy.remove(item)
                served.append(item)
                queue.done(item)

    async def produce() -> None:
        for _ in range(50):
            for item in "abcdefg":
                queue.add(item)
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(work())
        await produce()
        queue.shutdown()
    assert set(served) == set("abcdefg")
    assert len(served) > 7


@pytest.mark.spec("W1")
async def test_ready_items_leave_first_in_first_out(queue):
    for item in "cab":
        queue.add(item)
    assert await take_all(queue) == ["c", "a", "b"]


@pytest.mark.spec("W1", "W2")
async def test_adds_while_ready_collapse_into_one(queue):
    for _ in range(5):
        queue.add("a")
    assert len(queue) == 1
    assert await take(queue) == "a"
    assert len(queue) == 0


@pytest.mark.spec("W1", "W2")
async def test_adds_while_processing_give_exactly_one_more_run_after_done(queue):
    queue.add("a")
    assert await queue.get() == "a"
    for _ in range(5):
        queue.add("a")
    assert len(queue) == 0, "it must not be ready while a worker has it"
    queue.done("a")
    assert len(queue) == 1
    assert await take(queue) == "a"
    assert len(queue) == 0


@pytest.mark.spec("W1")
async def test_an_item_added_while_processing_is_requeued_when_done(queue):
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("b")
    queue.done("a")
    assert await take_all(queue) == ["b", "a"]


@pytest.mark.spec("W1")
async def test_an_item_can_be_reinserted_after_done(queue):
    queue.add("a")
    await take(queue)
    queue.add("a")
    assert await take(queue) == "a"


@pytest.mark.spec("W3")
async def test_the_length_counts_only_what_waits_for_a_worker(queue):
    queue.add("a")
    queue.add("b")
    assert len(queue) == 2
    await queue.get()
    assert len(queue) == 1
    queue.add("a")
    assert len(queue) == 1


@pytest.mark.spec("W3")
async def test_nothing_of_a_finished_item_is_kept():
    class Item:
        pass

    queue: WorkQueue[Item] = WorkQueue()
    item = Item()
    kept = weakref.ref(item)
    queue.add(item)
    queue.done(await queue.get())
    del item
    gc.collect()
    assert kept() is None


@pytest.mark.spec("W4")
async def test_a_shutdown_ignores_adds_and_drains_ready_items(queue):
    queue.add("a")
    queue.add("b")
    queue.shutdown()
    queue.add("c")
    assert queue.shutting_down
    assert [await take(queue), await take(queue)] == ["a", "b"]
    with pytest.raises(QueueShutDown):
        await queue.get()


@pytest.mark.spec("W4", "W26")
async def test_a_shutdown_releases_every_waiting_getter(queue):
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    queue.shutdown()
    results = await asyncio.gather(*getters, return_exceptions=True)
    assert all(isinstance(result, QueueShutDown) for result in results)


@pytest.mark.spec("W26")
async def test_a_shutdown_during_hand_out_loses_no_item(queue):
    getters = [asyncio.create_task(queue.get()) for _ in range(2)]
    await settle()
    queue.add("a")
    queue.shutdown()
    results = await asyncio.gather(*getters, return_exceptions=True)
    assert results[0] == "a"
    assert isinstance(results[1], QueueShutDown)


@pytest.mark.spec("W4")
async def test_a_plain_shutdown_does_not_wait_for_running_items(queue):
    queue.add("a")
    await queue.get()
    queue.shutdown()
    with pytest.raises(QueueShutDown):
        await queue.get()
    queue.done("a")


@pytest.mark.spec("W5", "W26")
async def test_a_drain_waits_until_the_running_items_are_done(queue):
    queue.add("a")
    queue.add("b")
    await queue.get()
    await queue.get()
    draining = await drain_in_background(queue)
    queue.done("a")
    await settle()
    assert not draining.done()
    queue.done("b")
    await draining


@pytest.mark.spec("W5", "W26")
async def test_drain_waits_for_items_that_were_added_while_they_ran(queue):
    queue.add("a")
    await queue.get()
    queue.add("a")
    draining = await drain_in_background(queue)
    queue.done("a")
    await settle()
    assert not draining.done()
    assert await queue.get() == "a"
    queue.done("a")
    await draining
    with pytest.raises(QueueShutDown):
        await queue.get()


@pytest.mark.spec("W5", "W26")
async def test_a_plain_shutdown_ends_the_wait_of_a_drain(queue):
    queue.add("a")
    await queue.get()
    draining = await drain_in_background(queue)
    assert not draining.done()
    queue.shutdown()
    await draining
    queue.done("a")
    with pytest.raises(QueueShutDown):
        await queue.get()


@pytest.mark.spec("W5")
async def test_a_drain_of_an_idle_queue_returns_at_once(queue):
    await queue.shutdown_with_drain()
    assert queue.shutting_down


async def test_a_cancelled_drain_leaves_the_queue_shut_and_usable(queue):
    queue.add("a")
    await queue.get()
    draining = await drain_in_background(queue)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    queue.done("a")
    with pytest.raises(QueueShutDown):
        await queue.get()


@pytest.mark.spec("W13")
async def test_getter_cancelled_while_waiting_leaves_item_for_next(queue):
    getter = asyncio.create_task(queue.get())
    await settle()
    getter.cancel()
    queue.add("a")
    with pytest.raises(asyncio.CancelledError):
        await getter
    assert await queue.get() == "a"


@pytest.mark.spec("W13")
async def test_a_getter_cancelled_after_it_was_woken_wakes_the_next(queue):
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await settle()
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"
    assert first.cancelled()


@pytest.mark.spec("W13")
@pytest.mark.parametrize("steps", range(6))
async def test_no_item_is_lost_wherever_its_getter_is_cancelled(queue, steps):
    got: list[str] = []

    async def work() -> None:
        got.append(await queue.get())

    worker = asyncio.create_task(work())
    await asyncio.sleep(0)
    queue.add("a")
    for _ in range(steps):
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert got == ["a"] or await asyncio.wait_for(queue.get(), 1) == "a"


async def test_done_of_an_item_no_client_has_is_refused(queue):
    with pytest.raises(ValueError, match="not being processed"):
        queue.done("a")


async def test_the_representation_tells_the_state(queue):
    queue.add("a")
    queue.add("b")
    await queue.get()
    queue.add("a")
    assert "[open: 1 ready, 1 processing, 1 dirty" in repr(queue)
    queue.shutdown()
    assert "[shut down:" in repr(queue)


@pytest.mark.spec("W11")
@pytest.mark.parametrize("kind", [WorkQueue, PriorityQueue])
async def test_metrics_follow_an_item_through_the_queue(kind):
    metrics = RecordedMetrics()
    queue = kind(metrics=metrics)
    queue.add("a")
    queue.add("a")
    assert (metrics.adds, metrics.depths[-1]) == (1, 1)
    await asyncio.sleep(2)
    await queue.get()
    assert (metrics.waits, metrics.depths[-1]) == ([2], 0)
    await asyncio.sleep(3)
    queue.add("a")
    assert (metrics.adds, metrics.depths[-1]) == (2, 0)
    await asyncio.sleep(1)
    queue.done("a")
    assert (metrics.works, metrics.depths[-1]) == ([4], 1)
    await take(queue)
    assert metrics.waits == [2, 1]
    assert metrics.works == [4, 0]


@pytest.mark.spec("W11")
async def test_running_items_are_measured_every_half_second():
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(metrics=metrics)
    queue.add("a")
    queue.add("b")
    await queue.get()
    await asyncio.sleep(0.75)
    await queue.get()
    await asyncio.sleep(0.5)
    queue.done("a")
    await asyncio.sleep(0.5)
    queue.done("b")
    assert metrics.runnings == [
        (0.5, 0.5, 0.5),
        (1.0, 1.25, 1.0),
        (1.5, 0.75, 0.75),
        (1.75, 0, 0),
    ]
    await asyncio.sleep(60)
    assert len(metrics.runnings) == 4, "an idle queue refreshes nothing"


@pytest.mark.spec("W11")
async def test_the_refresher_stops_at_shutdown_even_with_items_running():
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(metrics=metrics)
    queue.add("a")
    queue.add("b")
    await queue.get()
    await asyncio.sleep(0.75)
    queue.shutdown()
    await queue.get()
    await asyncio.sleep(60)
    assert [time for time, *_ in metrics.runnings] == [0.5, 0.75]
    assert now() == 60.75
