"""Asking for a wake-up, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from elasti.api.wire import WakeOutcome
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.wake import DURABLE_EVERY, OperatorUnreachable, WakeLoop

pytestmark = pytest.mark.virtual_time
KEY = ServiceKey("shop", "web")


class World:
    def __init__(self):
        self.waiting = 1
        self.outcome = WakeOutcome.SCALING
        self.unreachable = self.unwritable = False
        self.takes = 0.0
        self.calls: list[tuple[float, int]] = []
        self.wishes: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self.start = asyncio.get_running_loop().time()
        self.waker = WakeLoop(KEY, operator=self, durable=self, waiting=lambda: self.waiting)

    def now(self):
        return asyncio.get_running_loop().time() - self.start

    async def wake(self, key, *, count):
        assert key == KEY
        self.calls.append((self.now(), count))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.in_flight -= 1
        if self.unreachable:
            raise OperatorUnreachable("connection refused")
        return self.outcome

    async def write(self, key):
        if self.unwritable:
            raise OperatorUnreachable("no API server")
        self.wishes.append(self.now())


async def test_it_asks_at_once_and_again_with_growing_pauses_until_nobody_waits_in_vain():
    world = World()
    world.waker.need()
    await asyncio.sleep(5)
    times = [at for at, _ in world.calls]
    assert times[0] == 0
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert len(pauses) == 2
    assert 1.0 <= pauses[0] <= 1.2
    assert 2.0 <= pauses[1] <= 2.4
    world.waiting = 0
    await asyncio.sleep(100)
    assert len(world.calls) == 3


async def test_one_request_is_in_flight_however_often_it_is_needed():
    world = World()
    world.takes = 3.0
    for _ in range(20):
        world.waker.need()
        world.waker.wake_now()
        await asyncio.sleep(0.1)
    assert world.most_in_flight == 1
    assert len(world.calls) == 1
    await world.waker.aclose()


async def test_when_the_last_pod_goes_it_asks_at_once():
    world = World()
    world.waker.need()
    await asyncio.sleep(0.5)
    world.waker.wake_now()
    await asyncio.sleep(0.01)
    assert [round(at, 3) for at, _ in world.calls] == [0.0, 0.5]
    await world.waker.aclose()


async def test_somebody_who_comes_in_the_turn_in_which_it_ended_is_not_forgotten():
    world = World()
    loop, looks = asyncio.get_running_loop(), 0

    def waiting():
        nonlocal looks
        looks += 1
        if looks == 3:
            # The last look of the task: before anything else of its end, somebody comes.
            loop.call_soon(world.waker.need)
            return 0
        return 1

    world.waker = WakeLoop(KEY, operator=world, durable=world, waiting=waiting)
    world.waker.need()
    await asyncio.sleep(1.3)
    assert looks >= 5
    assert len(world.calls) == 2
    await world.waker.aclose()


async def test_an_unreachable_operator_is_tried_sooner_and_the_wish_is_written_down():
    world = World()
    world.unreachable = True
    world.waker.need()
    await asyncio.sleep(0.5)
    assert len(world.calls) >= 3
    assert world.wishes == [0.0]
    await asyncio.sleep(DURABLE_EVERY + 6)
    assert len(world.wishes) == 2
    assert world.wishes[1] >= DURABLE_EVERY
    await world.waker.aclose()


async def test_an_operator_that_cannot_act_gets_it_in_writing():
    world = World()
    world.outcome = WakeOutcome.UNAVAILABLE
    world.waker.need()
    await asyncio.sleep(0.1)
    assert world.wishes == [0.0]
    await world.waker.aclose()


async def test_a_wish_that_cannot_be_written_is_tried_again_with_the_next_failure():
    world = World()
    world.unreachable = world.unwritable = True
    world.waker.need()
    await asyncio.sleep(0.05)
    world.unwritable = False
    await asyncio.sleep(0.5)
    assert len(world.wishes) == 1
    await world.waker.aclose()


async def test_it_says_how_many_wait():
    world = World()
    world.waiting = 42
    world.waker.need()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.calls == [(0.0, 42)]
    await world.waker.aclose()


async def test_nobody_who_waits_means_nothing_is_asked():
    world = World()
    world.waiting = 0
    world.waker.need()
    world.waker.wake_now()
    await asyncio.sleep(10)
    assert world.calls == []
