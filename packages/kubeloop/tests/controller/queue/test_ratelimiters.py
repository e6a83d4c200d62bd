from __future__ import annotations

import asyncio

import pytest

from kubeloop.controller.queue.ratelimiters import (
    BucketLimiter,
    ExponentialLimiter,
    MaxOfLimiter,
    RateLimiter,
    default_limiter,
)


def answers(limiter: RateLimiter[str], item: str, count: int) -> list[float]:
    return [limiter.when(item) for _ in range(count)]


@pytest.mark.spec("W9")
def test_exponential_doubles_per_item_up_to_the_cap():
    limiter = ExponentialLimiter[str](base=1, cap=10)
    assert answers(limiter, "a", 6) == [1, 2, 4, 8, 10, 10]
    assert answers(limiter, "b", 2) == [1, 2]
    assert limiter.retries("a") == 6
    limiter.forget("a")
    assert limiter.retries("a") == 0
    assert limiter.when("a") == 1
    assert limiter.when("b") == 4


@pytest.mark.spec("W9")
@pytest.mark.parametrize("cap", [1000.0, 1e308])
def test_exponential_does_not_overflow_after_thousands_of_failures(cap):
    limiter = ExponentialLimiter[str](base=0.005, cap=cap)
    assert answers(limiter, "a", 3000)[-1] <= cap
    assert limiter.retries("a") == 3000


@pytest.mark.spec("W9")
def test_max_of_takes_the_longest_and_the_highest_count():
    limiter = MaxOfLimiter[str](
        ExponentialLimiter(base=5, cap=5), ExponentialLimiter(base=1, cap=60)
    )
    assert answers(limiter, "a", 5) == [5, 5, 5, 8, 16]
    assert limiter.retries("a") == 5
    limiter.forget("a")
    assert limiter.when("a") == 5
    assert limiter.retries("b") == 0


@pytest.mark.virtual_time
async def test_a_bucket_lets_a_burst_pass_and_then_its_rate():
    limiter = BucketLimiter[str](rate=10, burst=3)
    assert answers(limiter, "a", 5) == pytest.approx([0, 0, 0, 0.1, 0.2])
    await asyncio.sleep(0.2)
    assert limiter.when("b") == pytest.approx(0.1), "loans are paid back first"
    await asyncio.sleep(1000)
    assert answers(limiter, "a", 4) == pytest.approx([0, 0, 0, 0.1]), "never more than the burst"
    limiter.forget("a")
    assert limiter.retries("a") == 0


@pytest.mark.virtual_time
@pytest.mark.spec("W10")
async def test_max_of_spends_bucket_token_even_when_another_limiter_wins():
    bucket = BucketLimiter[str](rate=1, burst=2)
    limiter = MaxOfLimiter[str](ExponentialLimiter(base=100, cap=1000), bucket)
    assert answers(limiter, "a", 2) == [100, 200]
    assert bucket.when("b") == 1, "both tokens of the burst are gone"


@pytest.mark.virtual_time
@pytest.mark.spec("W9")
async def test_the_default_limiter_is_client_gos():
    limiter = default_limiter()
    assert answers(limiter, "a", 3) == [0.005, 0.01, 0.02]
    assert answers(limiter, "a", 97)[-1] == 1000, "within the burst of 100 the item decides"
    assert limiter.when("b") == pytest.approx(0.1), "past the burst the bucket does"


def test_limiters_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        MaxOfLimiter[str]()
    with pytest.raises(ValueError, match="rate=0"):
        BucketLimiter[str](rate=0)
