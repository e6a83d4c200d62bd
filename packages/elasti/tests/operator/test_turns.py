"""Everybody in turn: one group's crowd or its slowness is nobody else's."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeloop.aio.fairness import FairSemaphore
from kubeloop.testing.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


class Log:
    """Who had a turn, when it began."""

    def __init__(self, turns: FairSemaphore) -> None:
        self.turns = turns
        self.began: list[tuple[str, float]] = []
        self.under_way = self.most = 0

    async def act(self, group: str, seconds: float) -> None:
        async with self.turns.slot(group):
            self.began.append((group, asyncio.get_running_loop().time()))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.under_way -= 1


async def test_one_group_alone_has_all_places_and_no_more():
    log = Log(FairSemaphore(at_once=4))
    await asyncio.gather(*(log.act("a", 0.1) for _ in range(40)))
    assert log.most == 4
    assert repr(log.turns) == "<Turns 0 in time, 0 late, 0 waiting>"


async def test_groups_that_wait_are_taken_in_turn():
    log = Log(FairSemaphore(at_once=1))
    async with asyncio.TaskGroup() as group:
        for name in "aaaaabc":
            group.create_task(log.act(name, 0.1))
    assert "".join(name for name, _ in log.began) == "aabcaaa"


async def test_a_group_that_hangs_keeps_nobody_else_for_longer_than_the_patience():
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
    assert repr(log.turns) == "<Turns 0 in time, 0 late, 0 waiting>"


async def test_late_ones_are_bounded_in_all():
    log = Log(FairSemaphore(at_once=2, most_late=3, per_late_group=2, patience=1.0))
    hanging = [asyncio.create_task(log.act(f"g{number}", 1000.0)) for number in range(9)]
    await asyncio.sleep(60)
    assert repr(log.turns) == "<Turns 2 in time, 3 late, 4 waiting>"
    hanging[0].cancel()
    await asyncio.sleep(3)
    assert repr(log.turns) == "<Turns 2 in time, 3 late, 3 waiting>"
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_one_that_is_cancelled_as_its_turn_comes_gives_it_on():
    turns = FairSemaphore(at_once=1)
    log = Log(turns)
    first = asyncio.create_task(log.act("a", 1.0))
    second = asyncio.create_task(log.act("a", 1.0))
    third = asyncio.create_task(log.act("a", 1.0))
    await asyncio.sleep(0.1)
    first.cancel()
    await asyncio.sleep(0)
    second.cancel()
    await third
    assert repr(turns) == "<Turns 0 in time, 0 late, 0 waiting>"


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0.0, 5.0), st.floats(0.0, 3.0), st.booleans()),
    max_size=30,
)


@given(STEPS)
@settings(deadline=None)
def test_whoever_comes_has_a_turn_and_nothing_is_left_whoever_leaves(steps):
    async def play() -> None:
        turns = FairSemaphore(at_once=2, most_late=2, per_late_group=1, patience=0.5)
        log, tasks, left = Log(turns), [], 0
        for group, lasts, pause, leaves in steps:
            tasks.append(asyncio.create_task(log.act(group, lasts)))
            await asyncio.sleep(pause)
            if leaves:
                left += tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert log.most <= 4
        assert len(log.began) >= len(steps) - left
        assert repr(turns) == "<Turns 0 in time, 0 late, 0 waiting>"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
