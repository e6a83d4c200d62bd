from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.aio.tasks import parallelize_until
from kubeloop.testing.virtual_time import VirtualTimeLoop


@pytest.mark.spec("W12")
@given(workers=st.integers(1, 20), pieces=st.integers(0, 100))
def test_every_piece_is_visited_exactly_once(workers, pieces):
    visits: list[int] = []
    running = peak = 0

    async def visit(piece):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(piece % 3)
        running -= 1
        visits.append(piece)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(parallelize_until(workers, pieces, visit))
    assert sorted(visits) == list(range(pieces))
    assert peak <= workers


@pytest.mark.virtual_time
@pytest.mark.spec("W12")
async def test_stop_begins_no_further_piece_and_lets_running_ones_end():
    stop = asyncio.Event()
    done: list[int] = []

    async def visit(piece):
        await asyncio.sleep(1)
        done.append(piece)
        if piece == 2:
            stop.set()

    await parallelize_until(2, 100, visit, stop)
    assert done == [0, 1, 2, 3]


@pytest.mark.virtual_time
@pytest.mark.spec("W12")
async def test_a_failing_piece_is_reported_and_ends_the_others():
    async def visit(piece):
        await asyncio.sleep(piece)
        if piece == 3:
            raise LookupError("piece 3")

    with pytest.raises(ExceptionGroup) as caught:
        await parallelize_until(5, 100, visit)
    assert caught.group_contains(LookupError, match="piece 3")
    assert asyncio.get_running_loop().time() == 3


@pytest.mark.virtual_time
@pytest.mark.spec("W12")
async def test_a_cancellation_ends_all_workers():
    task = asyncio.create_task(parallelize_until(5, 100, lambda _piece: asyncio.sleep(1000)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


async def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        await parallelize_until(0, 1, lambda _piece: asyncio.sleep(0))
