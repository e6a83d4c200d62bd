from __future__ import annotations

import asyncio
import gc

import pytest

from kubeloop.aio.tasks import SingleFlight

pytestmark = pytest.mark.virtual_time


class Work:
    """Takes a second; counts how often it starts, how many overlap, how it ends."""

    def __init__(self, *, error=None, cleanup=0.0):
        self.starts = self.ends = self.cancelled = self.running = self.most = 0
        self.error = error
        self.cleanup = cleanup

    async def __call__(self):
        self.starts += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(self.cleanup)
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if self.error:
            raise self.error
        self.ends += 1
        return self.ends


async def test_concurrent_callers_share_one_run():
    work = Work()
    flight = SingleFlight(work)
    assert await asyncio.gather(*(flight.run() for _ in range(5))) == [1] * 5
    assert work.starts == 1
    assert asyncio.get_running_loop().time() == pytest.approx(1)


async def test_a_result_is_not_kept_for_later_callers():
    work = Work()
    flight = SingleFlight(work)
    assert [await flight.run(), await flight.run()] == [1, 2]


async def test_every_caller_gets_the_error():
    flight = SingleFlight(Work(error=ValueError("no")))
    results = await asyncio.gather(*(flight.run() for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["no"] * 3


async def test_cancelling_one_caller_does_not_disturb_the_others():
    work = Work()
    flight = SingleFlight(work)
    first, second = asyncio.create_task(flight.run()), asyncio.create_task(flight.run())
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == 1
    assert first.cancelled()
    assert (work.starts, work.cancelled) == (1, 0)


async def test_last_caller_takes_run_with_it_and_waits_for_end():
    work = Work(cleanup=0.25)
    flight = SingleFlight(work)
    callers = [asyncio.create_task(flight.run()) for _ in range(2)]
    await asyncio.sleep(0.5)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    assert all(caller.cancelled() for caller in callers)
    assert work.cancelled == 1
    assert asyncio.get_running_loop().time() == pytest.approx(0.75)
    assert len(asyncio.all_tasks()) == 1


async def test_newcomer_neither_joins_nor_overlaps_run_that_is_being_ended():
    work = Work(cleanup=0.25)
    flight = SingleFlight(work)
    first = asyncio.create_task(flight.run())
    await asyncio.sleep(0.5)
    first.cancel()
    await asyncio.sleep(0.1)
    assert await flight.run() == 1
    assert (work.starts, work.most) == (2, 1)
    assert asyncio.get_running_loop().time() == pytest.approx(1.75)


async def test_a_caller_cancelled_twice_leaves_nothing_unowned():
    work = Work(cleanup=10)
    flight = SingleFlight(work)
    caller = asyncio.create_task(flight.run())
    await asyncio.sleep(0.5)
    caller.cancel()
    await asyncio.sleep(0.1)
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    # The run still cleans up; the next caller waits for it.
    assert await flight.run() == 1
    assert work.most == 1


async def test_an_abandoned_run_reports_no_error():
    async def work():
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            raise ValueError("while ending") from None

    async def cancel_the_only_caller():
        caller = asyncio.create_task(SingleFlight(work).run())
        await asyncio.sleep(0.5)
        caller.cancel()
        await asyncio.wait({caller})
        return caller.cancelled()

    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    assert await cancel_the_only_caller()
    gc.collect()  # an error that nobody looked at is reported when its task is freed
    assert complaints == []
