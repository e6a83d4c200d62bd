"""The token bucket, in exact virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.client.ratelimit import RateLimit, TokenBucket

pytestmark = pytest.mark.virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


async def moments(bucket: TokenBucket, count: int) -> list[float]:
    """Acquire one after another and return when each was granted."""
    granted = []
    for _ in range(count):
        await bucket.acquire()
        granted.append(round(now(), 6))
    return granted


async def test_a_burst_is_free_and_then_the_rate_holds():
    bucket = TokenBucket(RateLimit(qps=2.0, burst=3))
    assert await moments(bucket, 6) == [0, 0, 0, 0.5, 1.0, 1.5]


async def test_an_idle_time_refills_no_more_than_the_burst():
    bucket = TokenBucket(RateLimit(qps=10.0, burst=2))
    await moments(bucket, 2)
    await asyncio.sleep(100)
    assert await moments(bucket, 3) == [100, 100, 100.1]


async def test_tokens_are_given_in_the_order_of_asking():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    order: list[tuple[int, float]] = []

    async def ask(number: int) -> None:
        await bucket.acquire()
        order.append((number, now()))

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
    assert order == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]


async def test_a_newcomer_does_not_overtake_those_who_wait():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    await bucket.acquire()
    waiting = asyncio.ensure_future(bucket.acquire())
    await asyncio.sleep(0.9999999999)
    late = asyncio.ensure_future(bucket.acquire())
    await waiting
    assert not late.done()
    await late
    assert now() == pytest.approx(2.0)


async def test_one_who_gives_up_leaves_the_place_to_those_behind():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    await bucket.acquire()
    first, second = (asyncio.ensure_future(bucket.acquire()) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    await second
    assert now() == pytest.approx(1.0)
    assert first.cancelled()


async def test_a_token_granted_to_a_cancelled_waiter_is_not_lost():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    await bucket.acquire()
    first, second = (asyncio.ensure_future(bucket.acquire()) for _ in range(2))

    def grant_and_cancel() -> None:
        bucket._grant()
        first.cancel()

    await asyncio.sleep(0.5)
    bucket._disarm()
    asyncio.get_running_loop().call_later(0.5, grant_and_cancel)
    await second
    assert first.cancelled()
    assert now() == pytest.approx(1.0)


async def test_one_cancelled_before_grant_takes_no_token_from_next():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    await bucket.acquire()
    first, second, third = (asyncio.ensure_future(bucket.acquire()) for _ in range(3))

    def cancel_and_grant() -> None:
        first.cancel()
        bucket._grant()

    await asyncio.sleep(0.5)
    bucket._disarm()
    asyncio.get_running_loop().call_later(0.5, cancel_and_grant)
    await second
    assert now() == pytest.approx(1.0)
    await third
    assert now() == pytest.approx(2.0)


async def test_no_timer_is_armed_without_waiters():
    bucket = TokenBucket(RateLimit(qps=1.0, burst=1))
    await bucket.acquire()
    waiting = asyncio.ensure_future(bucket.acquire())
    await asyncio.sleep(0)
    assert repr(bucket) == "<TokenBucket [1.0/s, burst 1 | 1 waiting]>"
    waiting.cancel()
    await asyncio.wait([waiting])
    assert repr(bucket) == "<TokenBucket [1.0/s, burst 1 | 0 waiting]>"
    assert bucket._timer is None


async def test_the_long_run_rate_is_exact():
    bucket = TokenBucket(RateLimit(qps=7.0, burst=5))
    await moments(bucket, 705)
    assert now() == pytest.approx(100.0)


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0), (float("nan"), 1)])
async def test_a_limit_that_lets_nothing_through_is_refused(qps, burst):
    with pytest.raises(ValueError, match="must be positive"):
        RateLimit(qps=qps, burst=burst)
