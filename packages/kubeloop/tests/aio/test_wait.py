from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from kubeloop.aio.backoff import Backoff
from kubeloop.aio.wait import exponential_backoff, poll, rest, until

pytestmark = pytest.mark.virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


class Calls:
    """Notes when it was called, takes `duration` each time, sets `stop` at the last."""

    def __init__(self, count: int, *, duration: float = 0.0, fail: bool = False) -> None:
        self.times: list[float] = []
        self.running = 0
        self.overlapped = False
        self.stop = asyncio.Event()
        self._count, self._duration, self._fail = count, duration, fail

    async def __call__(self) -> None:
        self.times.append(now())
        self.overlapped |= self.running > 0
        self.running += 1
        await asyncio.sleep(self._duration)
        self.running -= 1
        if len(self.times) >= self._count:
            self.stop.set()
        if self._fail:
            raise RuntimeError(f"call {len(self.times)}")


class NeverTrue:
    """A condition that notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def __call__(self) -> bool:
        self.asked.append(now())
        return False


async def cancelled(task: asyncio.Task[None]) -> bool:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


@pytest.mark.spec("T1")
async def test_until_calls_at_once_and_rests_after_each_call():
    calls = Calls(4, duration=2)
    await until(calls, 10, calls.stop)
    assert calls.times == [0, 12, 24, 36]
    assert now() == 38, "the stop ends the rest at once"
    assert not calls.overlapped


@pytest.mark.spec("T1")
async def test_until_with_a_stop_already_set_never_calls():
    calls = Calls(1)
    calls.stop.set()
    await until(calls, 1, calls.stop)
    assert calls.times == []


@pytest.mark.spec("T1")
async def test_until_cancelled_before_it_began_never_calls():
    calls = Calls(1)
    task = asyncio.create_task(until(calls, 1))
    assert await cancelled(task)
    assert calls.times == []


async def test_until_takes_a_plain_function():
    times: list[float] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().call_at(25, stop.set)
    await until(lambda: times.append(now()), 10, stop)
    assert times == [0, 10, 20]
    assert now() == 25


@pytest.mark.spec("T2")
async def test_non_sliding_counts_period_from_start_of_call():
    calls = Calls(4, duration=4)
    await until(calls, 10, calls.stop, sliding=False)
    assert calls.times == [0, 10, 20, 30]


@pytest.mark.spec("T2")
async def test_non_sliding_saves_up_no_ticks_after_an_overrun():
    times, stop = [], asyncio.Event()

    async def first_call_is_slow():
        times.append(now())
        await asyncio.sleep(35 if len(times) == 1 else 1)
        if len(times) == 4:
            stop.set()

    await until(first_call_is_slow, 10, stop, sliding=False)
    assert times == [0, 35, 45, 55]


@pytest.mark.spec("T3")
async def test_jitter_lengthens_each_period_by_its_own_draw():
    draws = iter([0.0, 0.5, 0.9, 0.0])
    calls = Calls(4)
    await until(calls, 10, calls.stop, jitter=1.0, rand=lambda: next(draws))
    assert calls.times == [0, 10, 25, 44]


@pytest.mark.spec("T3")
async def test_a_negative_jitter_factor_means_none():
    calls = Calls(3)
    await until(calls, 10, calls.stop, jitter=-1.0)
    assert calls.times == [0, 10, 20]


@pytest.mark.spec("T4")
async def test_an_exception_is_reported_and_the_loop_goes_on():
    calls = Calls(3, fail=True)
    errors: list[str] = []
    await until(calls, 1, calls.stop, on_error=lambda error: errors.append(str(error)))
    assert calls.times == [0, 1, 2]
    assert errors == ["call 1", "call 2", "call 3"]


@pytest.mark.spec("T4")
async def test_an_exception_without_a_callback_is_logged(caplog):
    calls = Calls(1, fail=True)
    with caplog.at_level(logging.ERROR, logger="kubeloop.aio.wait"):
        await until(calls, 1, calls.stop)
    assert "call 1" in str(caplog.records[0].exc_info)


@pytest.mark.spec("T5")
@pytest.mark.parametrize("order", ["stop first", "timer first"])
async def test_a_stop_at_the_instant_of_the_timer_wins(order):
    calls = Calls(99)
    loop = asyncio.get_running_loop()
    if order == "stop first":
        loop.call_at(10, calls.stop.set)
    task = asyncio.create_task(until(calls, 10, calls.stop))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if order == "timer first":
        loop.call_at(10, calls.stop.set)
    await task
    assert calls.times == [0]
    assert now() == 10


@pytest.mark.spec("T5")
@pytest.mark.parametrize("with_stop", [True, False])
async def test_a_cancellation_at_the_instant_of_the_timer_wins(with_stop):
    calls = Calls(99)
    task = asyncio.create_task(until(calls, 10, calls.stop if with_stop else None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.times == [0]


async def test_until_passes_a_cancellation_through_a_running_call():
    calls = Calls(99, duration=50)
    task = asyncio.create_task(until(calls, 1, on_error=lambda _error: pytest.fail("no error")))
    await asyncio.sleep(10)
    assert await cancelled(task)
    assert now() == 10


@pytest.mark.spec("T6")
async def test_an_immediate_poll_asks_once_even_when_already_stopped():
    condition = NeverTrue()
    stop = asyncio.Event()
    stop.set()
    assert await poll(condition, 1, stop, immediate=True) is False
    assert condition.asked == [0]
    assert await poll(lambda: True, 1, stop, immediate=True) is True


@pytest.mark.spec("T6")
async def test_poll_that_is_not_immediate_asks_nothing_when_already_stopped():
    condition = NeverTrue()
    stop = asyncio.Event()
    stop.set()
    assert await poll(condition, 1, stop) is False
    assert condition.asked == []


@pytest.mark.spec("T9")
async def test_poll_rests_first_and_returns_when_the_condition_holds():
    async def after_thirty():
        return now() >= 30

    assert await poll(after_thirty, 10) is True
    assert now() == 30


async def test_poll_raises_after_its_timeout():
    with pytest.raises(TimeoutError):
        await poll(lambda: False, 10, timeout=25)
    assert now() == 25


async def test_poll_raises_what_the_condition_raises():
    def broken():
        raise LookupError("no such thing")

    with pytest.raises(LookupError):
        await poll(broken, 1, immediate=True)


@pytest.mark.spec("T8")
async def test_exponential_backoff_tries_each_step_without_a_final_rest():
    condition = NeverTrue()
    backoff = Backoff(duration=1, factor=2, steps=4)
    with pytest.raises(TimeoutError, match="4 tries"):
        await exponential_backoff(condition, backoff)
    assert condition.asked == [0, 1, 3, 7]
    assert now() == 7


@pytest.mark.spec("T8")
async def test_exponential_backoff_ends_with_the_first_yes():
    assert await exponential_backoff(
        lambda: now() >= 3, Backoff(duration=1, factor=2, steps=9, cap=60)
    )
    assert now() == 3


@pytest.mark.spec("T8")
async def test_an_error_of_the_condition_ends_the_exponential_backoff():
    asked: list[float] = []

    def broken():
        asked.append(now())
        raise LookupError("gone")

    with pytest.raises(LookupError):
        await exponential_backoff(broken, Backoff(duration=1, steps=5))
    assert asked == [0]


async def test_exponential_backoff_stops_between_tries():
    stop = asyncio.Event()
    asyncio.get_running_loop().call_at(1.5, stop.set)
    assert await exponential_backoff(lambda: False, Backoff(duration=1, steps=9), stop) is False
    assert now() == 1.5


async def test_exponential_backoff_wants_a_number_of_steps():
    with pytest.raises(ValueError, match=r"backoff\.steps"):
        await exponential_backoff(lambda: True, Backoff(duration=1))


async def test_rest_without_a_stop_just_waits():
    assert await rest(3) is False
    assert now() == 3
