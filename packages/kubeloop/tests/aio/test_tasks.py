from __future__ import annotations

import asyncio

import pytest

from kubeloop.aio.tasks import BackgroundTasks, finish

pytestmark = pytest.mark.virtual_time


async def fail_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise RuntimeError(f"failed at {seconds}")


async def slow_to_end(log: list[str], seconds: float = 5) -> None:
    try:
        await asyncio.sleep(1000)
    finally:
        await asyncio.sleep(seconds)
        log.append("ended")


async def test_one_failure_is_reported_by_name_and_leaves_others_running():
    reports: list[tuple[str, str]] = []
    done: list[float] = []

    async def work() -> None:
        await asyncio.sleep(2)
        done.append(asyncio.get_running_loop().time())

    async with BackgroundTasks(
        on_error=lambda name, error: reports.append((name, str(error)))
    ) as t:
        t.start(fail_after(1), name="breaks")
        t.start(work(), name="works")
        await t.drain()
    assert reports == [("breaks", "failed at 1")]
    assert done == [2]


async def test_a_failure_without_a_callback_is_logged(caplog):
    async with BackgroundTasks() as tasks:
        tasks.start(fail_after(0), name="breaks")
        await tasks.drain()
    assert "breaks" in caplog.text


async def test_leaving_the_block_cancels_and_waits_for_the_end():
    log: list[str] = []
    async with BackgroundTasks() as tasks:
        tasks.start(slow_to_end(log), name="slow")
        await asyncio.sleep(1)
        assert repr(tasks) == "<BackgroundTasks [open: slow]>"
    assert log == ["ended"]
    assert len(tasks) == 0
    assert asyncio.get_running_loop().time() == 6


async def test_a_cancelled_owner_waits_before_it_is_cancelled():
    log: list[str] = []

    async def own() -> None:
        async with BackgroundTasks() as tasks:
            tasks.start(slow_to_end(log, 5), name="slow")
            await asyncio.sleep(1)

    owner = asyncio.create_task(own())
    await asyncio.sleep(3)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert log == []
    assert len(asyncio.all_tasks()) == 1, (
        "the second cancellation ended the slow task, nobody is left"
    )


async def test_finish_passes_own_cancellation_on_after_tasks_have_ended():
    log: list[str] = []

    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                log.append("asked to end")
        await asyncio.sleep(1)
        log.append("ended")

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    finisher = asyncio.create_task(finish([task]))
    await asyncio.sleep(1)
    finisher.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finisher
    assert log == ["asked to end", "asked to end", "ended"]


async def test_finish_can_wait_without_cancelling():
    task = asyncio.create_task(asyncio.sleep(7, "value"))
    await finish([task], cancel=False)
    assert task.result() == "value"


async def test_a_closed_owner_takes_no_task():
    tasks = BackgroundTasks()
    with pytest.raises(RuntimeError, match="'late' cannot start"):
        tasks.start(asyncio.sleep(1), name="late")


async def test_error_in_block_ends_tasks_before_it_goes_on():
    log: list[str] = []

    async def own() -> None:
        async with BackgroundTasks() as tasks:
            tasks.start(slow_to_end(log), name="slow")
            await asyncio.sleep(0)
            raise LookupError

    with pytest.raises(LookupError):
        await own()
    assert log == ["ended"]


async def test_cancel_asks_every_task_to_end():
    async with BackgroundTasks() as tasks:
        task = tasks.start(asyncio.sleep(1000), name="sleeps")
        tasks.cancel()
        await tasks.drain()
    assert task.cancelled()
