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
        self.annotations: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self.start = asyncio.get_running_loop().time()
        self.waker = WakeLoop(KEY, operator=self, durable=self, waiting=lambda: self.waiting)

    def now(self):
        return asyncio.get_running_loop().time() - self.start

    async def wake(self, key, *, count, client):
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
        self.annotations.append(self.now())


async def test_wake_requests_repeat_with_backoff_while_connections_wait():
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


async def test_a_connection_that_arrives_as_the_loop_ends_is_woken():
    world = World()
    loop, looks = asyncio.get_running_loop(), 0

    def waiting():
        nonlocal looks
        looks += 1
        if looks == 3:
            # The last check of the task: before anything else of its end, a connection comes.
            loop.call_soon(world.waker.need)
            return 0
        return 1

    world.waker = WakeLoop(KEY, operator=world, durable=world, waiting=waiting)
    world.waker.need()
    await asyncio.sleep(1.3)
    assert looks >= 5
    assert len(world.calls) == 2
    await world.waker.aclose()


async def test_an_unreachable_operator_is_retried_and_the_annotation_written():
    world = World()
    world.unreachable = True
    world.waker.need()
    await asyncio.sleep(0.5)
    assert len(world.calls) >= 3
    assert world.annotations == [0.0]
    await asyncio.sleep(DURABLE_EVERY + 6)
    assert len(world.annotations) == 2
    assert world.annotations[1] >= DURABLE_EVERY
    await world.waker.aclose()


async def test_an_operator_that_cannot_act_gets_it_in_writing():
    world = World()
    world.outcome = WakeOutcome.UNAVAILABLE
    world.waker.need()
    await asyncio.sleep(0.1)
    assert world.annotations == [0.0]
    await world.waker.aclose()


async def test_a_failed_annotation_is_retried_with_the_next_failure():
    world = World()
    world.unreachable = world.unwritable = True
    world.waker.need()
    await asyncio.sleep(0.05)
    world.unwritable = False
    await asyncio.sleep(0.5)
    assert len(world.annotations) == 1
    await world.waker.aclose()


async def test_it_says_how_many_wait():
    world = World()
    world.waiting = 42
    world.waker.need()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.calls == [(0.0, 42)]
    await world.waker.aclose()


async def test_nothing_is_asked_without_held_connections():
    world = World()
    world.waiting = 0
    world.waker.need()
    world.waker.wake_now()
    await asyncio.sleep(10)
    assert world.calls == []
