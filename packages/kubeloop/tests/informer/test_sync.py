"""Waiting for caches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.informer.support import make_informer, now, settle

from kubeloop.informer.sync import NotSynced, SyncGate, wait_for_gates
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


@pytest.mark.spec("I15")
async def test_waiting_ends_when_the_last_gate_opens_without_polling():
    gates = [SyncGate("a"), SyncGate("b")]
    waiting = asyncio.create_task(wait_for_gates(gates))
    loop = asyncio.get_running_loop()
    loop.call_at(3.25, gates[0].open)
    loop.call_at(7.5, gates[1].open)
    result = await waiting
    assert now() == 7.5
    assert result.ok
    assert result.synced == {"a": True, "b": True}
    result.check()


@pytest.mark.spec("I15")
async def test_what_did_not_sync_in_time_is_named_with_cause():
    gates = [SyncGate("pods"), SyncGate("services")]
    gates[0].open()
    result = await wait_for_gates(gates, timeout=5)
    assert now() == 5
    assert result.unsynced == ("services",)
    with pytest.raises(NotSynced, match=r"services.*timed out after 5 s") as caught:
        result.check()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert caught.value.result is result


@pytest.mark.spec("I15")
async def test_a_gate_opened_at_the_timeout_counts_as_synced():
    gate = SyncGate("pods")
    asyncio.get_running_loop().call_at(5, gate.open)
    assert (await wait_for_gates([gate], timeout=5)).ok


@pytest.mark.spec("I15")
async def test_a_stopped_gate_is_reported_after_the_others():
    gates = [SyncGate("dead"), SyncGate("alive")]
    waiting = asyncio.create_task(wait_for_gates(gates))
    gates[0].stop(ValueError("died"))
    await asyncio.sleep(1)
    assert not waiting.done()
    gates[1].open()
    result = await waiting
    assert result.synced == {"dead": False, "alive": True}
    with pytest.raises(NotSynced, match="died"):
        result.check()


async def test_a_gate_settles_once():
    gate = SyncGate("x")
    assert repr(gate) == "<SyncGate x: waiting>"
    gate.stop()
    gate.open()
    assert not gate.synced
    assert repr(gate) == "<SyncGate x: stopped>"
    assert not await gate.wait()
    other = SyncGate("y")
    other.open()
    other.stop()
    assert other.synced
    assert await other.wait()


@pytest.mark.spec("I14", "I15")
async def test_waiters_of_informer_that_stops_before_sync_get_false():
    source = FakeSource[Any]()
    source.stall_lists()
    informer = make_informer(source)
    handle = informer.add_handler(on_add=print)
    async with informer.running():
        waiters = [
            asyncio.create_task(informer.wait_synced()),
            asyncio.create_task(handle.wait_synced()),
        ]
        await settle()
    assert [await waiter for waiter in waiters] == [False, False]
    assert not informer.has_synced
    assert not handle.has_synced
    assert not await informer.wait_synced(), "nor does anybody who asks later hang"


@pytest.mark.spec("I15")
async def test_a_waiter_can_be_cancelled():
    gate = SyncGate("x")
    waiting = asyncio.create_task(wait_for_gates([gate]))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
