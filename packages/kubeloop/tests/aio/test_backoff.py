from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.aio.backoff import Backoff, DelaySequence, QuietResetBackoff, jittered


def take(delays: DelaySequence, count: int) -> list[float]:
    return [delays.next_delay() for _ in range(count)]


@pytest.mark.spec("T7")
@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff(duration=1, factor=2, cap=10), [1, 2, 4, 8, 10, 10, 10]),
        (Backoff(duration=1, factor=2, steps=2), [1, 2, 4, 4, 4]),
        (Backoff(duration=1, factor=2, steps=2, cap=3), [1, 2, 3, 3]),
        (Backoff(duration=1, factor=2, steps=10, cap=2), [1, 2, 2, 2]),
        (Backoff(duration=3), [3, 3, 3]),
        (Backoff(duration=3, factor=2, steps=0), [3, 3, 3]),
        (Backoff(duration=0, steps=0), [0, 0]),
        (Backoff(duration=30, factor=2, cap=10), [10, 10]),
    ],
)
def test_delays_grow_to_cap_or_for_steps_and_then_stay(backoff, expected):
    assert take(backoff.start(), len(expected)) == expected


@pytest.mark.spec("T7")
def test_jitter_lengthens_delay_and_is_not_fed_back_into_next():
    delays = Backoff(duration=1, factor=2, jitter=0.5, cap=8).start(rand=lambda: 1.0)
    assert take(delays, 5) == [1.5, 3, 6, 12, 12]


@pytest.mark.spec("T7")
@given(
    duration=st.floats(0.001, 100),
    factor=st.floats(1, 5),
    jitter=st.floats(0, 2),
    cap=st.floats(0.001, 1000),
    seed=st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8),
)
def test_a_jittered_delay_stays_within_its_window(duration, factor, jitter, cap, seed):
    plain = Backoff(duration=duration, factor=factor, cap=cap).start()
    source = iter(seed)
    delays = Backoff(duration=duration, factor=factor, jitter=jitter, cap=cap).start(
        rand=lambda: next(source)
    )
    for _ in seed:
        base = plain.next_delay()
        assert base <= cap
        assert base <= delays.next_delay() <= base * (1 + jitter)


def test_reset_starts_over():
    delays = Backoff(duration=1, factor=2, cap=10).start()
    take(delays, 3)
    delays.reset()
    assert take(delays, 2) == [1, 2]


def test_a_sequence_can_run_indefinitely_without_overflow():
    delays = Backoff(duration=1, factor=2, cap=1000).start()
    assert take(delays, 5000)[-1] == 1000


@pytest.mark.parametrize(
    "arguments",
    [{"duration": -1}, {"duration": 1, "factor": -1}, {"duration": 1, "factor": 2}],
)
def test_a_backoff_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError, match="backoff"):
        Backoff(**arguments)


@pytest.mark.spec("T3")
def test_a_jitter_factor_of_zero_or_less_means_none():
    assert jittered(5, 0, lambda: 0.9) == 5
    assert jittered(5, -1, lambda: 0.9) == 5
    assert jittered(5, 1, lambda: 0.5) == 7.5


@pytest.mark.virtual_time
@pytest.mark.spec("R72", "T9")
async def test_quiet_longer_than_the_reset_time_starts_the_backoff_again():
    backoff = QuietResetBackoff(Backoff(duration=1, factor=2, cap=10), reset_after=10)
    assert take(backoff, 3) == [1, 2, 4]
    await asyncio.sleep(10)
    assert backoff.next_delay() == 8, "exactly the reset time is not yet quiet enough"
    await asyncio.sleep(11)
    assert take(backoff, 2) == [1, 2]


@pytest.mark.virtual_time
@pytest.mark.spec("R72")
async def test_outage_longer_than_reset_time_does_not_reset_backoff():
    backoff = QuietResetBackoff(Backoff(duration=1, factor=2, cap=8), reset_after=10)
    delays = []
    for _ in range(20):
        delays.append(backoff.next_delay())
        await asyncio.sleep(delays[-1])
    assert delays == [1, 2, 4] + [8] * 17


@pytest.mark.virtual_time
async def test_a_quiet_reset_backoff_can_be_reset_by_hand():
    backoff = QuietResetBackoff(Backoff(duration=1, factor=2, cap=8), reset_after=10)
    take(backoff, 3)
    backoff.reset()
    assert backoff.next_delay() == 1
