"""The queue: order, bound, deadline, release. All in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.proxy.upstream.interface import Refusal, UpstreamAddress
from elasti.resolver.services.hold import BATCH, PAUSE, SLICE, Hold, HoldCapacity
from kubeloop.testing.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time
POD, OTHER = UpstreamAddress("10.0.0.1", 80), UpstreamAddress("10.0.0.2", 80)


class Waiter:
    is_http = True

    def client(self):
        return "10.1.2.3"

    def __init__(self, log, name, held_since=None):
        self.log, self.name, self.held_since = log, name, held_since

    def admit(self, address):
        self.log.append((self.name, address, asyncio.get_running_loop().time()))

    def give_up(self, refusal):
        self.log.append((self.name, refusal, asyncio.get_running_loop().time()))


class Bench:
    def __init__(self, *, most=100_000, timeout=600.0):
        self.capacity, self.changes = HoldCapacity(most), 0
        self.pods: list[UpstreamAddress] = []
        self.log: list[tuple[Any, Any, float]] = []
        self.hold = Hold(
            capacity=self.capacity, timeout=timeout, pods=lambda: self.pods, changed=self.changed
        )
        self.start = asyncio.get_running_loop().time()

    def changed(self):
        self.changes += 1

    def add(self, name, **keywords):
        first = keywords.pop("first", False)
        waiter = Waiter(self.log, name, **keywords)
        return waiter, self.hold.wait(waiter, first=first)

    @property
    def order(self):
        return [entry[0] for entry in self.log]


async def test_the_queue_is_fifo_and_returning_connections_are_first():
    bench = Bench()
    for name in "abc":
        bench.add(name)
    bench.add("back", first=True)
    bench.pods = [POD]
    bench.hold.release()
    await asyncio.sleep(0)
    assert bench.order == ["back", "a", "b", "c"]
    assert bench.capacity.used == 0


async def test_the_bound_refuses_new_connections_only():
    bench = Bench(most=2)
    assert bench.add("a")[1] is None
    assert bench.add("b")[1] is None
    assert bench.add("c")[1] is Refusal.OVERFLOW
    assert bench.add("back", first=True)[1] is None
    assert len(bench.hold) == 3
    await bench.hold.aclose()


async def test_the_bound_is_over_all_ports_of_a_service():
    bench = Bench(most=2)
    other = Hold(capacity=bench.capacity, timeout=600, pods=list, changed=lambda: None)
    bench.add("a")
    assert other.wait(Waiter(bench.log, "b"), first=False) is None
    assert bench.add("c")[1] is Refusal.OVERFLOW
    await other.aclose()
    assert bench.add("d")[1] is None
    await bench.hold.aclose()


async def test_leaving_frees_capacity_and_may_be_repeated():
    bench = Bench(most=1)
    waiter, _ = bench.add("a")
    bench.hold.leave(waiter)
    bench.hold.leave(waiter)
    assert bench.capacity.used == 0
    assert bench.add("b")[1] is None
    await bench.hold.aclose()
    assert bench.order == ["b"]


async def test_each_connection_is_refused_at_its_deadline():
    bench = Bench(timeout=10)
    bench.add("a")
    await asyncio.sleep(3)
    bench.add("b")
    await asyncio.sleep(20)
    assert bench.log == [
        ("a", Refusal.TIMEOUT, bench.start + 10),
        ("b", Refusal.TIMEOUT, bench.start + 13),
    ]


async def test_a_returning_connection_keeps_its_deadline():
    bench = Bench(timeout=10)
    await asyncio.sleep(4)
    bench.add("new")
    bench.add("back", held_since=bench.start, first=True)
    await asyncio.sleep(20)
    assert bench.log == [
        ("back", Refusal.TIMEOUT, bench.start + 10),
        ("new", Refusal.TIMEOUT, bench.start + 14),
    ]


async def test_a_changed_timeout_applies_to_held_connections():
    bench = Bench(timeout=600)
    bench.add("a")
    await asyncio.sleep(5)
    bench.hold.set_timeout(10)
    await asyncio.sleep(6)
    assert bench.log == [("a", Refusal.TIMEOUT, bench.start + 10)]


async def test_release_is_paced_per_pod_and_spread_over_pods():
    bench = Bench()
    for number in range(BATCH * 6):
        bench.add(number)
    bench.pods = [POD, OTHER]
    bench.hold.release()
    await asyncio.sleep(PAUSE / 2)
    assert len(bench.log) == BATCH * 2
    assert sum(entry[1] == POD for entry in bench.log) == BATCH
    await asyncio.sleep(PAUSE)
    assert len(bench.log) == BATCH * 6
    assert bench.order == list(range(BATCH * 6))


async def test_ten_thousand_are_released_within_half_a_second():
    bench = Bench()
    for number in range(10_000):
        bench.add(number)
    bench.pods = [POD]
    bench.hold.release()
    await asyncio.sleep(0.5)
    assert bench.order == list(range(10_000))


async def test_release_stops_when_the_pod_goes():
    bench = Bench()
    for number in range(BATCH * 2):
        bench.add(number)
    bench.pods = [POD]
    bench.hold.release()
    await asyncio.sleep(PAUSE / 2)
    bench.pods = []
    await asyncio.sleep(1)
    assert len(bench.log) == BATCH
    await bench.hold.aclose()


@pytest.mark.parametrize("how", ["released", "expired", "closed"])
async def test_a_turn_of_the_loop_is_for_a_few_of_them_only(how):
    bench = Bench(timeout=10)
    for number in range(2000):
        bench.add(number)
    if how == "released":
        bench.pods = [POD]
        bench.hold.release()
    elif how == "expired":
        await asyncio.sleep(10)
    closing = asyncio.create_task(bench.hold.aclose()) if how == "closed" else None
    most = before = 0
    for turn in itertools.count(1):
        if len(bench.log) == 2000:
            break
        # Most turns take no time; now and then the pause between two batches passes.
        await asyncio.sleep(0 if turn % 200 else PAUSE)
        most, before = max(most, len(bench.log) - before), len(bench.log)
    # A pause may span two turns.
    assert most <= 2 * SLICE
    assert bench.order == list(range(2000))
    assert bench.capacity.used == 0
    if closing is not None:
        await closing


async def test_changed_is_called_when_the_queue_fills_and_empties():
    bench = Bench()
    first, _ = bench.add("a")
    second, _ = bench.add("b")
    assert bench.changes == 1
    bench.hold.leave(first)
    assert bench.changes == 1
    bench.hold.leave(second)
    assert bench.changes == 2


async def test_a_waiter_costs_little_memory():
    bench = Bench()
    waiters = [Waiter(bench.log, None) for _ in range(10_000)]
    tracemalloc.start()
    for waiter in waiters:
        bench.hold.wait(waiter, first=False)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / len(waiters) < 400, sys.version
    await bench.hold.aclose()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.booleans()),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("pods"), st.booleans()),
        st.tuples(st.just("time"), st.floats(0, 8)),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_every_connection_gets_one_answer_unless_it_left(operations):
    async def play():
        bench = Bench(most=5, timeout=10)
        waiters: list[Waiter] = []
        left = set()
        for what, value in operations:
            if what == "add":
                waiter, refusal = bench.add(len(waiters), first=value)
                waiters.append(waiter)
                if refusal is not None:
                    left.add(waiter.name)
            elif what == "leave" and value < len(waiters):
                if value not in bench.order:
                    left.add(value)
                bench.hold.leave(waiters[value])
            elif what == "pods":
                bench.pods = [POD] if value else []
                bench.hold.release()
            else:
                await asyncio.sleep(value)
        await asyncio.sleep(30)
        assert sorted(bench.order) == sorted(set(range(len(waiters))) - left)
        assert bench.capacity.used == 0

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())
