"""Fairness between groups: slots of a semaphore, and jobs of a queue."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeloop.aio.fairness import FairQueue, FairSemaphore
from kubeloop.testing.virtual_time import VirtualTimeLoop


class Log:
    """Which group got a slot, and when."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self.semaphore = semaphore
        self.began: list[tuple[str, float]] = []
        self.under_way = self.most = 0

    async def act(self, group: str, seconds: float) -> None:
        async with self.semaphore.slot(group):
            self.began.append((group, asyncio.get_running_loop().time()))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.under_way -= 1


@pytest.mark.virtual_time
async def test_one_group_may_use_every_slot():
    log = Log(FairSemaphore(at_once=4))
    await asyncio.gather(*(log.act("a", 0.1) for _ in range(40)))
    assert log.most == 4
    assert repr(log.semaphore) == "<FairSemaphore 0 in time, 0 late, 0 waiting>"


@pytest.mark.virtual_time
async def test_waiting_groups_take_turns():
    log = Log(FairSemaphore(at_once=1))
    async with asyncio.TaskGroup() as group:
        for name in "aaaaabc":
            group.create_task(log.act(name, 0.1))
    assert "".join(name for name, _ in log.began) == "aabcaaa"


@pytest.mark.virtual_time
async def test_a_hanging_group_delays_others_by_the_patience_at_most():
    log = Log(FairSemaphore(at_once=4, most_late=16, per_late_group=6, patience=1.0))
    start = asyncio.get_running_loop().time()
    slow = [asyncio.create_task(log.act("slow", 1000.0)) for _ in range(100)]
    await asyncio.sleep(0.5)
    await asyncio.gather(*(log.act("well", 0.1) for _ in range(8)))
    waited = [began - start for name, began in log.began if name == "well"]
    assert max(waited) <= 1.5
    # Whatever hangs is bounded, and the others have all places.
    await asyncio.sleep(30)
    assert sum(name == "slow" for name, _ in log.began) == 6
    before = asyncio.get_running_loop().time()
    await asyncio.gather(*(log.act("well", 0.1) for _ in range(4)))
    assert asyncio.get_running_loop().time() - before == pytest.approx(0.1)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert repr(log.semaphore) == "<FairSemaphore 0 in time, 0 late, 0 waiting>"


@pytest.mark.virtual_time
async def test_late_slots_are_bounded_in_total():
    log = Log(FairSemaphore(at_once=2, most_late=3, per_late_group=2, patience=1.0))
    hanging = [asyncio.create_task(log.act(f"g{number}", 1000.0)) for number in range(9)]
    await asyncio.sleep(60)
    assert repr(log.semaphore) == "<FairSemaphore 2 in time, 3 late, 4 waiting>"
    hanging[0].cancel()
    await asyncio.sleep(3)
    assert repr(log.semaphore) == "<FairSemaphore 2 in time, 3 late, 3 waiting>"
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


@pytest.mark.virtual_time
async def test_a_cancelled_waiter_passes_its_slot_on():
    semaphore = FairSemaphore(at_once=1)
    log = Log(semaphore)
    first = asyncio.create_task(log.act("a", 1.0))
    second = asyncio.create_task(log.act("a", 1.0))
    third = asyncio.create_task(log.act("a", 1.0))
    await asyncio.sleep(0.1)
    first.cancel()
    await asyncio.sleep(0)
    second.cancel()
    await third
    assert repr(semaphore) == "<FairSemaphore 0 in time, 0 late, 0 waiting>"


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0.0, 5.0), st.floats(0.0, 3.0), st.booleans()),
    max_size=30,
)


@given(STEPS)
@settings(deadline=None)
def test_slots_never_leak_under_random_cancellation(steps):
    async def play() -> None:
        semaphore = FairSemaphore(at_once=2, most_late=2, per_late_group=1, patience=0.5)
        log, tasks, left = Log(semaphore), [], 0
        for group, lasts, pause, leaves in steps:
            tasks.append(asyncio.create_task(log.act(group, lasts)))
            await asyncio.sleep(pause)
            if leaves:
                left += tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert log.most <= 4
        assert len(log.began) >= len(steps) - left
        assert repr(semaphore) == "<FairSemaphore 0 in time, 0 late, 0 waiting>"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())


@given(st.lists(st.sampled_from("abc")), st.integers(1, 3), st.data())
def test_every_job_runs_once_within_its_group_limit(jobs, per_group, data):
    queue: FairQueue[int] = FairQueue(per_group=per_group)
    for number, group in enumerate(jobs):
        queue.add(group, number)
    under_way: list[tuple[str, int]] = []
    done: list[int] = []
    while len(queue) or under_way:
        taken = queue.take()
        if taken is not None:
            under_way.append(taken)
            assert jobs[taken[1]] == taken[0]
            assert max(Counter(group for group, _ in under_way).values()) <= per_group
        else:
            # Nothing is queued, or every group with a job has all it may run.
            assert under_way
        if under_way and (taken is None or data.draw(st.booleans())):
            group, number = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            queue.done(group)
            done.append(number)
    assert sorted(done) == list(range(len(jobs)))


def test_queued_groups_take_turns():
    queue: FairQueue[str] = FairQueue(per_group=9)
    for job in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.add(job[0], job)
    taken = [found[1] for found in iter(queue.take, None)]
    assert taken == ["a1", "b1", "c1", "a2", "c2", "a3"]
