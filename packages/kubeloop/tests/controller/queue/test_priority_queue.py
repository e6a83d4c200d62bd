from __future__ import annotations

import asyncio
import dataclasses
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.controller.queue.queue_probe import RecordedMetrics, now, settle, take, take_all

from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.queue.ratelimiters import ExponentialLimiter
from kubeloop.testing.virtual_time import VirtualTimeLoop


@pytest.fixture
def queue() -> PriorityQueue[str]:
    return PriorityQueue(rate_limiter=ExponentialLimiter(base=1, cap=60))


pytestmark = pytest.mark.virtual_time


@pytest.mark.spec("W20")
async def test_ready_items_leave_by_priority_then_fifo(queue):
    for item, priority in [("low", -100), ("a", 0), ("high", 5), ("b", 0)]:
        queue.add(item, priority=priority)
    assert await take_all(queue) == ["high", "a", "b", "low"]


@pytest.mark.spec("W20")
@pytest.mark.parametrize("priorities", [(1, 5), (5, 1)])
async def test_item_keeps_highest_priority_it_was_asked_for_with(queue, priorities):
    for priority in priorities:
        queue.add("a", priority=priority)
    assert await queue.get_with_priority() == ("a", 5)


@pytest.mark.spec("W20")
@pytest.mark.parametrize("delays", [(5, 9), (9, 5)])
async def test_item_keeps_shortest_delay_it_was_asked_for_with(queue, delays):
    for delay in delays:
        queue.add("a", after=delay)
    await take(queue)
    assert now() == 5


@pytest.mark.spec("W20")
async def test_an_immediate_add_readies_a_waiting_item_at_higher_priority(queue):
    queue.add("a", after=50, priority=7)
    queue.add("a")
    assert await queue.get_with_priority() == ("a", 7)
    queue.done("a")
    await asyncio.sleep(100)
    assert len(queue) == 0


@pytest.mark.spec("W20")
async def test_a_delayed_add_of_a_ready_item_only_raises_priority(queue):
    queue.add("a")
    queue.add("b")
    queue.add("b", after=50, priority=3)
    assert await take_all(queue) == ["b", "a"]
    await asyncio.sleep(100)
    assert len(queue) == 0


@pytest.mark.spec("W21")
async def test_raising_a_priority_puts_the_item_behind_its_new_equals(queue):
    queue.add("foo", priority=0)
    queue.add("bar", priority=1)
    queue.add("foo", priority=1)
    assert await take_all(queue) == ["bar", "foo"]


@pytest.mark.spec("W22")
async def test_items_that_become_ready_are_ordered_by_when_they_did(queue):
    queue.add("late", after=3)
    queue.add("early", after=1)
    await asyncio.sleep(2)
    queue.add("between")
    await asyncio.sleep(5)
    assert await take_all(queue) == ["early", "between", "late"]


@pytest.mark.spec("W22")
async def test_high_priority_item_that_became_ready_overtakes_low_one(queue):
    queue.add("high", after=1, priority=10)
    queue.add("low", priority=-10)
    await asyncio.sleep(1)
    assert await take_all(queue) == ["high", "low"]


@pytest.mark.spec("W23")
async def test_item_that_worker_holds_is_skipped_and_blocks_no_other(queue):
    queue.add("held", priority=10)
    assert await queue.get() == "held"
    queue.add("held", priority=10)
    queue.add("other")
    assert await take(queue) == "other"
    waiting = asyncio.create_task(queue.get())
    await settle()
    assert not waiting.done()
    queue.done("held")
    assert await waiting == "held"


@pytest.mark.spec("W24")
async def test_waiting_items_are_counted_only_once_they_are_ready():
    metrics = RecordedMetrics()
    queue: PriorityQueue[str] = PriorityQueue(metrics=metrics)
    queue.add("a", after=5)
    assert (len(queue), metrics.adds, metrics.depths) == (0, 0, [])
    await asyncio.sleep(5)
    assert (len(queue), metrics.adds, metrics.depths) == (1, 1, [1])


@pytest.mark.spec("W25")
@pytest.mark.parametrize(("after", "due"), [(0.5, 0.5), (30, 1)])
async def test_rate_limited_with_a_delay_takes_the_smaller(queue, after, due):
    queue.add("a", after=after, rate_limited=True)
    await take(queue)
    assert now() == due
    assert queue.retries("a") == 1


@pytest.mark.spec("W25")
async def test_rate_limited_items_added_together_do_not_affect_each_other(queue):
    queue.add_rate_limited("a")
    await take(queue)
    for item in "abc":
        queue.add_rate_limited(item)
    assert [(await take(queue), now()) for _ in range(3)] == [("b", 2), ("c", 2), ("a", 3)]


@pytest.mark.spec("W26")
async def test_shutdown_drops_waiting_items_and_ignores_every_kind_of_add(queue):
    queue.add("a", after=5)
    queue.shutdown()
    queue.add("b")
    queue.add("c", after=1)
    queue.add("d", rate_limited=True)
    assert repr(queue) == "<PriorityQueue [shut down: 0 ready, 0 processing, 0 dirty, 0 delayed]>"
    assert queue.retries("d") == 0


@dataclasses.dataclass(slots=True)
class Asked:
    """The model's one request for an item."""

    priority: int
    place: int
    deadline: float | None = None


class QueueModel(RuleBasedStateMachine):
    """The priority queue against a dictionary: one merged request per item."""

    items = st.sampled_from("abc")
    priorities = st.sampled_from([-100, 0, 1])

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.queue: PriorityQueue[str] = PriorityQueue()
        self.asked: dict[str, Asked] = {}
        self.held: set[str] = set()
        self.places = itertools.count()

    def teardown(self) -> None:
        self.queue.shutdown()
        self.loop.close()

    @rule(item=items, priority=priorities)
    def add_now(self, item: str, priority: int) -> None:
        self.add(item, priority, None)

    @rule(item=items, priority=priorities, after=st.integers(0, 4))
    def add_later(self, item: str, priority: int, after: int) -> None:
        self.add(item, priority, after)

    def add(self, item: str, priority: int, after: int | None) -> None:
        async def add() -> None:
            self.queue.add(item, priority=priority, after=after)

        self.loop.run_until_complete(add())
        deadline = self.loop.time() + after if after else None
        present = self.asked.get(item)
        if present is None:
            self.asked[item] = Asked(priority, next(self.places), deadline)
            return
        raised = priority > present.priority
        present.priority = max(present.priority, priority)
        if present.deadline is None:
            if raised and item not in self.held:
                present.place = next(self.places)
        elif deadline is None or deadline < present.deadline:
            present.deadline, present.place = deadline, next(self.places)

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        due = [
            a
            for a in self.asked.values()
            if a.deadline is not None and a.deadline <= self.loop.time()
        ]
        for asked in sorted(due, key=lambda asked: (asked.deadline, asked.place)):
            asked.deadline, asked.place = None, next(self.places)

    def ready(self) -> list[str]:
        names = [
            item
            for item, asked in self.asked.items()
            if asked.deadline is None and item not in self.held
        ]
        return sorted(names, key=lambda item: (-self.asked[item].priority, self.asked[item].place))

    @precondition(lambda self: self.ready())
    @rule()
    def get(self) -> None:
        expected = self.ready()[0]
        got = self.loop.run_until_complete(self.queue.get_with_priority())
        assert got == (expected, self.asked.pop(expected).priority)
        assert expected not in self.held
        self.held.add(expected)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.held)))

        async def done() -> None:
            self.queue.done(item)

        self.loop.run_until_complete(done())
        self.held.remove(item)
        if item in self.asked and self.asked[item].deadline is None:
            self.asked[item].place = next(self.places)

    @invariant()
    def the_length_is_what_is_ready(self) -> None:
        assert len(self.queue) == len(self.ready())


@pytest.mark.spec("W20", "W22", "W23", "W24", "W27")
def test_under_random_use_the_queue_behaves_like_its_model():
    enough = settings(stateful_step_count=50)
    run_state_machine_as_test(QueueModel, settings=enough)
