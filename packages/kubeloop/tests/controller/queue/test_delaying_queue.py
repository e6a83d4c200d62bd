from __future__ import annotations

import asyncio

import pytest
from tests.controller.queue.queue_probe import RecordedMetrics, now, settle, take, take_all

from kubeloop.controller.queue.priority_queue import DelayingQueue, PriorityQueue, RateLimitedQueue
from kubeloop.controller.queue.ratelimiters import ExponentialLimiter

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=[DelayingQueue, PriorityQueue], ids=["plain", "priority"])
def queue(request) -> DelayingQueue[str]:
    made: DelayingQueue[str] = request.param()
    return made


async def take_for(queue: DelayingQueue[str], seconds: float) -> list[tuple[float, str]]:
    """Everything that is handed out in the next seconds, with the time."""
    taken: list[tuple[float, str]] = []

    async def work() -> None:
        while True:
            taken.append((now(), await take(queue)))
            taken[-1] = (now(), taken[-1][1])

    worker = asyncio.create_task(work())
    await asyncio.sleep(seconds)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    return taken


@pytest.mark.spec("W6")
async def test_delayed_item_is_ready_at_deadline_and_not_before(queue):
    queue.add_after("a", 50)
    await asyncio.sleep(49)
    assert len(queue) == 0
    await asyncio.sleep(1)
    assert len(queue) == 1


@pytest.mark.spec("W6")
async def test_getter_that_waits_gets_delayed_item_at_deadline(queue):
    queue.add_after("a", 50)
    assert await queue.get() == "a"
    assert now() == 50


@pytest.mark.spec("W6")
@pytest.mark.parametrize("delay", [0, -5])
async def test_no_delay_or_a_negative_one_adds_at_once(queue, delay):
    queue.add_after("a", delay)
    assert len(queue) == 1


@pytest.mark.spec("W6")
@pytest.mark.parametrize("delays", [(50, 70), (70, 50), (50, 50)])
async def test_while_item_waits_earlier_deadline_wins_and_fires_once(queue, delays):
    for delay in delays:
        queue.add_after("a", delay)
    assert await take_for(queue, 200) == [(50, "a")]


@pytest.mark.spec("W6")
async def test_a_fired_item_can_wait_again(queue):
    queue.add_after("a", 50)
    await take(queue)
    queue.add_after("a", 30)
    assert await take_for(queue, 200) == [(80, "a")]


@pytest.mark.spec("W6")
async def test_items_fire_in_the_order_of_their_deadlines(queue):
    for item, delay in [("c", 3), ("a", 1), ("d", 4), ("b", 2), ("b2", 2)]:
        queue.add_after(item, delay)
    await asyncio.sleep(10)
    assert await take_all(queue) == ["a", "b", "b2", "c", "d"]


@pytest.mark.spec("W6")
async def test_after_shutdown_delayed_adds_are_ignored_and_waiting_items_dropped(queue):
    queue.add_after("a", 50)
    queue.shutdown()
    queue.add_after("b", 1)
    queue.add_after("c", 0)
    await asyncio.sleep(100)
    assert len(queue) == 0


@pytest.mark.spec("W7")
async def test_plain_waiting_and_ready_items_are_independent():
    queue: DelayingQueue[str] = DelayingQueue()
    queue.add_after("a", 50)
    queue.add("a")
    assert await take_for(queue, 200) == [(0, "a"), (50, "a")]


@pytest.mark.spec("W7", "W20")
async def test_priority_add_merges_with_the_waiting_item():
    queue: PriorityQueue[str] = PriorityQueue()
    queue.add_after("a", 50)
    queue.add("a")
    assert await take_for(queue, 200) == [(0, "a")]


async def test_item_that_fires_while_it_is_processed_runs_once_more(queue):
    queue.add("a")
    await queue.get()
    queue.add_after("a", 5)
    await asyncio.sleep(10)
    assert len(queue) == 0
    queue.done("a")
    assert await take(queue) == "a"


async def test_an_unused_timer_leaves_nothing_behind_after_shutdown(queue):
    queue.add_after("a", 1000)
    queue.shutdown()
    await settle()
    assert not [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]  # no public way to see timers


async def test_many_changed_deadlines_do_not_pile_up():
    queue: PriorityQueue[str] = PriorityQueue()
    for _ in range(10_000):
        queue.add_after("a", 1000)
        queue.add("a")
        await take(queue)
    assert len(queue._timers._waiting._heap) < 100


@pytest.mark.spec("W6")
async def test_a_delayed_item_keeps_the_higher_of_its_priorities(queue):
    queue.add_after("a", 5, priority=3)
    queue.add_after("a", 5, priority=1)
    assert await queue.get_with_priority() == ("a", 3)


@pytest.mark.spec("W8")
@pytest.mark.parametrize("kind", [RateLimitedQueue, PriorityQueue])
async def test_rate_limited_adds_wait_per_item(kind):
    queue = kind(rate_limiter=ExponentialLimiter(base=1, cap=60))
    queue.add_rate_limited("a")
    await queue.get()
    assert now() == 1
    queue.done("a")
    queue.add_rate_limited("a")
    queue.add_rate_limited("b")
    assert await take_for(queue, 10) == [(2, "b"), (3, "a")]
    assert (queue.retries("a"), queue.retries("b")) == (2, 1)


@pytest.mark.spec("W8")
@pytest.mark.parametrize("kind", [RateLimitedQueue, PriorityQueue])
async def test_forget_clears_only_the_limiter_and_done_is_still_needed(kind):
    queue = kind(rate_limiter=ExponentialLimiter(base=1, cap=60))
    for _ in range(3):
        queue.add_rate_limited("a")
        item = await queue.get()
        queue.done(item)
    queue.add("a")
    await queue.get()
    queue.forget("a")
    queue.add("a")
    assert len(queue) == 0, "still processing"
    queue.done("a")
    await take(queue)
    before = now()
    queue.add_rate_limited("a")
    await queue.get()
    assert now() - before == 1


async def test_after_a_shutdown_a_rate_limited_add_counts_no_failure():
    queue: RateLimitedQueue[str] = RateLimitedQueue()
    queue.shutdown()
    queue.add_rate_limited("a")
    assert queue.retries("a") == 0


@pytest.mark.spec("W11")
@pytest.mark.parametrize("kind", [RateLimitedQueue, PriorityQueue])
async def test_delayed_and_rate_limited_adds_count_as_retries(kind):
    metrics = RecordedMetrics()
    queue = kind(metrics=metrics)
    queue.add("a")
    queue.add_after("b", 5)
    queue.add_rate_limited("c")
    assert metrics.retries == 2
    assert metrics.depths == [1]
