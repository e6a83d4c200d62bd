"""Blocks that another task may interrupt."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.aio.tasks import Interruptible

pytestmark = pytest.mark.virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


async def wait_inside(block: Interruptible, seconds: float = 100.0) -> None:
    async with block:
        await asyncio.sleep(seconds)


async def test_interruption_ends_block_with_reason_and_first_one_counts():
    block = Interruptible()
    loop = asyncio.get_running_loop()
    loop.call_later(3, block.interrupt, LookupError("first"))
    loop.call_later(3, block.interrupt, ValueError("second"))
    with pytest.raises(LookupError, match="first"):
        await wait_inside(block)
    assert now() == 3


async def test_a_cancellation_from_outside_stays_one():
    block = Interruptible()
    task = asyncio.create_task(wait_inside(block))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == 1


async def test_outside_the_block_an_interruption_does_nothing():
    block = Interruptible()
    block.interrupt(ValueError("too early"))
    await wait_inside(block, 5)
    block.interrupt(ValueError("too late"))
    assert now() == 5


async def test_a_timeout_of_the_body_itself_passes_through():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await wait_inside(Interruptible())
