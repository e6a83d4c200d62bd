"""Asking for a wake-up, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.wake import (
    DURABLE_EVERY,
    OperatorUnreachable,
    WakeLoop,
    late_parts,
    part_states,
)

pytestmark = pytest.mark.virtual_time
KEY = ServiceKey("shop", "web")


class WakeRig:
    def __init__(self):
        self.waiting = 1
        self.outcome = WakeOutcome.SCALING
        self.unreachable = self.unwritable = False
        self.takes = 0.0
        self.calls: list[tuple[float, int]] = []
        self.ids: list[str] = []
        self.annotations: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self.start = asyncio.get_running_loop().time()
        self.waker = WakeLoop(KEY, operator=self, durable=self, waiting=lambda: self.waiting)

    def now(self):
        return asyncio.get_running_loop().time() - self.start

    async def wake(self, key, *, count, client, wake_id):
        assert key == KEY
        self.calls.append((self.now(), count))
        self.ids.append(wake_id)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.in_flight -= 1
        if self.unreachable:
            raise OperatorUnreachable("connection refused")
        return IncomingReply(self.outcome)

    async def write(self, key):
        if self.unwritable:
            raise OperatorUnreachable("no API server")
        self.annotations.append(self.now())


async def test_wake_requests_repeat_with_backoff_while_connections_wait():
    rig = WakeRig()
    rig.waker.need()
    await asyncio.sleep(5)
    times = [at for at, _ in rig.calls]
    assert times[0] == 0
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert len(pauses) == 2
    assert 1.0 <= pauses[0] <= 1.2
    assert 2.0 <= pauses[1] <= 2.4
    rig.waiting = 0
    await asyncio.sleep(100)
    assert len(rig.calls) == 3


async def test_one_request_is_in_flight_however_often_it_is_needed():
    rig = WakeRig()
    rig.takes = 3.0
    for _ in range(20):
        rig.waker.need()
        rig.waker.wake_now()
        await asyncio.sleep(0.1)
    assert rig.most_in_flight == 1
    assert len(rig.calls) == 1
    await rig.waker.aclose()


async def test_when_the_last_pod_goes_it_asks_at_once():
    rig = WakeRig()
    rig.waker.need()
    await asyncio.sleep(0.5)
    rig.waker.wake_now()
    await asyncio.sleep(0.01)
    assert [round(at, 3) for at, _ in rig.calls] == [0.0, 0.5]
    await rig.waker.aclose()


async def test_a_wake_up_in_the_pause_of_an_earlier_one_has_its_own_id_and_times():
    rig, waited = WakeRig(), list[float]()
    rig.waker.asked = waited.append
    rig.takes = 0.2
    rig.waker.need()
    await asyncio.sleep(0.5)
    rig.waiting = 0  # pods serve
    await asyncio.sleep(0.5)
    rig.waiting = 1  # the last pod has gone
    rig.waker.wake_now()
    assert len(set(rig.ids)) == 1
    await asyncio.sleep(0.3)
    assert rig.waker.answered_at == pytest.approx(rig.start + 1.2)
    rig.waiting = 2  # one more
    await asyncio.sleep(5)
    assert waited == pytest.approx([0.2, 0.2])
    assert len(set(rig.ids)) == 2
    await rig.waker.aclose()


async def test_a_connection_that_arrives_as_the_loop_ends_is_woken():
    rig = WakeRig()
    loop, looks = asyncio.get_running_loop(), 0

    def waiting():
        nonlocal looks
        looks += 1
        if looks == 3:
            # The last check of the task: before anything else of its end, a connection comes.
            loop.call_soon(rig.waker.need)
            return 0
        return 1

    rig.waker = WakeLoop(KEY, operator=rig, durable=rig, waiting=waiting)
    rig.waker.need()
    await asyncio.sleep(1.3)
    assert looks >= 5
    assert len(rig.calls) == 2
    await rig.waker.aclose()


async def test_an_unreachable_operator_is_retried_and_the_annotation_written():
    rig = WakeRig()
    rig.unreachable = True
    rig.waker.need()
    await asyncio.sleep(0.5)
    assert len(rig.calls) >= 3
    assert rig.annotations == [0.0]
    await asyncio.sleep(DURABLE_EVERY + 6)
    assert len(rig.annotations) == 2
    assert rig.annotations[1] >= DURABLE_EVERY
    await rig.waker.aclose()


@pytest.mark.parametrize("outcome", [WakeOutcome.UNAVAILABLE, WakeOutcome.WAITS])
async def test_an_operator_that_cannot_act_now_gets_it_in_writing(outcome: WakeOutcome):
    rig = WakeRig()
    rig.outcome = outcome
    rig.waker.need()
    await asyncio.sleep(0.1)
    assert rig.annotations == [0.0]
    # One that waits for pods to end is no failure: no page says so.
    assert (rig.waker.unavailable_since is None) is (outcome is WakeOutcome.WAITS)
    await rig.waker.aclose()


async def test_a_failed_annotation_is_retried_with_the_next_failure():
    rig = WakeRig()
    rig.unreachable = rig.unwritable = True
    rig.waker.need()
    await asyncio.sleep(0.05)
    rig.unwritable = False
    await asyncio.sleep(0.5)
    assert len(rig.annotations) == 1
    await rig.waker.aclose()


async def test_it_says_how_many_wait():
    rig = WakeRig()
    rig.waiting = 42
    rig.waker.need()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.calls == [(0.0, 42)]
    await rig.waker.aclose()


async def test_nothing_is_asked_without_held_connections():
    rig = WakeRig()
    rig.waiting = 0
    rig.waker.need()
    rig.waker.wake_now()
    await asyncio.sleep(10)
    assert rig.calls == []


CHAIN = (WakePart("db", "db"), WakePart("api", "api", (0,)), WakePart("web", "web", (1,)))
SHARED = (
    WakePart("db", "db"),
    WakePart("cache", "cache"),
    WakePart("api", "api", (0, 1)),
    WakePart("web", "web", (2, 0)),
)


@pytest.mark.parametrize(
    ("parts", "pods", "states", "late"),
    [
        (CHAIN, {}, "starting waiting waiting", "db"),
        (CHAIN, {"db": False}, "starting waiting waiting", "db"),
        (CHAIN, {"db": True}, "ready starting waiting", "api"),
        (CHAIN, {"db": True, "api": True}, "ready ready starting", ""),
        # It waited for long enough, and started without what it needs.
        (CHAIN, {"db": False, "api": False}, "starting starting waiting", "db"),
        # What serves keeps nothing waiting, whatever it lacks itself.
        (CHAIN, {"db": False, "api": True}, "starting ready starting", ""),
        (SHARED, {}, "starting starting waiting waiting", "db cache"),
        (SHARED, {"db": True}, "ready starting waiting waiting", "cache"),
        (SHARED, {"api": True}, "starting starting ready waiting", "db"),
    ],
)
def test_parts_wait_for_what_they_need_and_the_end_of_a_chain_is_late(parts, pods, states, late):
    found = part_states(parts, pods.get)
    assert " ".join(found) == states
    assert " ".join(late_parts(parts, found)) == late
