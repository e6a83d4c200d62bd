"""A defect in one place is logged and stays there."""

from __future__ import annotations

import asyncio

import pytest
from tests.resolver.cluster import FakeCluster
from tests.resolver.registry_rig import rig
from tests.resolver.support import free_port

from elasti.api.wire import IncomingReply, WakeOutcome
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.upstream.interface import Refusal, UpstreamAddress
from elasti.resolver.services.hold import Hold, HoldCapacity
from elasti.resolver.services.wake import WakeLoop
from tests.waiting import eventually

POD = UpstreamAddress("10.0.0.1", 80)


class Defect(Exception):
    """An exception that no code expects."""


class Waiter:
    is_http = True
    held_since = None

    def client(self):
        return "10.1.2.3"

    def __init__(self, heard, *, is_sound):
        self._heard, self._is_sound = heard, is_sound

    def admit(self, address):
        self._hear(address)

    def give_up(self, refusal):
        self._hear(refusal)

    def sweep(self, tick):
        self._hear(tick)

    def _hear(self, what):
        if not self._is_sound:
            raise Defect
        self._heard.append(what)


@pytest.mark.virtual_time
async def test_a_failing_connection_does_not_block_the_queue(log_output):
    heard: list[object] = []
    pods = [POD]
    hold = Hold(capacity=HoldCapacity(10), timeout=5, pods=lambda: pods, changed=lambda: None)
    for number in range(4):
        hold.wait(Waiter(heard, is_sound=number % 2 == 1), first=False)
    hold.release()
    await asyncio.sleep(1)
    assert heard == [POD, POD]
    pods.clear()
    for number in range(4):
        hold.wait(Waiter(heard, is_sound=number % 2 == 1), first=False)
    await asyncio.sleep(6)
    assert heard == [POD, POD, Refusal.TIMEOUT, Refusal.TIMEOUT]
    assert len(hold) == 0
    assert [line["event"] for line in log_output] == ["held connection failed"] * 4


@pytest.mark.virtual_time
async def test_a_connection_whose_deadlines_fail_keeps_the_others(log_output):
    heard: list[object] = []
    sweeper = DeadlineSweeper()
    sweeper.start()
    for is_sound in (True, False, True):
        sweeper.add(Waiter(heard, is_sound=is_sound))
    await asyncio.sleep(3.5)
    sweeper.stop()
    assert heard == [1, 1, 2, 2, 3, 3]
    assert [line["event"] for line in log_output] == ["deadline check failed"]


@pytest.mark.virtual_time
async def test_wake_requests_go_on_after_a_defect(log_output):
    asked = []

    class Operator:
        async def wake(self, key, *, count, client, wake_id):
            asked.append(count)
            if len(asked) == 1:
                raise Defect
            return IncomingReply(WakeOutcome.SCALING)

        async def write(self, key):
            raise AssertionError("it can be asked")

    operator = Operator()
    waker = WakeLoop(
        ServiceKey("shop", "web"),
        operator=operator,
        durable=operator,
        waiting=lambda: int(len(asked) < 3),
    )
    waker.need()
    await asyncio.sleep(10)
    assert asked == [1, 1, 1]
    begun, failed = log_output
    assert failed["event"] == "wake request failed; retrying"
    assert (failed["service"], failed["wake_id"]) == ("shop/web", begun["wake_id"])


async def test_ports_are_bound_on_after_a_defect(log_output):
    cluster, first, second = FakeCluster(), free_port(), free_port()
    cluster.elasti_service("web", ("http", first))
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(first) == "web")

        sound = made.listeners.closed

        def fails_once(_key):
            made.listeners.closed = sound
            raise Defect

        made.listeners.closed = fails_once
        cluster.objects.delete("web")
        cluster.elasti_service("api", ("http", second))
        await eventually(
            lambda: "changing ports failed; retrying" in [line["event"] for line in log_output]
        )
        await eventually(lambda: made.owner(second) == "api")
        assert made.owner(first) is None
