from __future__ import annotations

import asyncio

import pytest

from tests.waiting import eventually, eventually_blocking, patient


@pytest.mark.virtual_time
async def test_the_first_true_answer_is_returned():
    answers = iter([0, None, "", "here"])
    assert await eventually(lambda: next(answers), every=1) == "here"
    assert asyncio.get_running_loop().time() == 3


@pytest.mark.virtual_time
async def test_a_timeout_says_what_was_awaited_and_the_last_answer():
    with pytest.raises(AssertionError, match=r"after 5\.0 s .* for three pods; .* \[\]"):
        await eventually(list, "three pods", timeout=5)
    with pytest.raises(AssertionError, match=r"still waiting for .*<lambda> \(.*test_waiting\.py:"):
        await eventually(lambda: False, timeout=5)


@pytest.mark.virtual_time
async def test_a_predicate_that_hangs_is_cut_off():
    with patient(7), pytest.raises(AssertionError, match=r"after 7\.0 s"):
        await eventually(asyncio.Event().wait, "an event")
    assert asyncio.get_running_loop().time() == 7


@pytest.mark.virtual_time
async def test_only_ignored_errors_mean_not_yet():
    def refuse() -> None:
        raise ConnectionRefusedError("no listener")

    with pytest.raises(ConnectionRefusedError):
        await eventually(refuse)
    with pytest.raises(AssertionError, match="ConnectionRefusedError"):
        await eventually(refuse, ignore=(ConnectionRefusedError,))


@pytest.mark.virtual_time
async def test_a_timeout_of_the_predicate_is_its_own():
    async def slow() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(2)

    with pytest.raises(TimeoutError):
        await eventually(slow)


def test_without_a_loop_the_contract_is_the_same():
    answers = iter([0, 0, 3])
    assert eventually_blocking(lambda: next(answers), every=0) == 3
    with pytest.raises(AssertionError, match=r"for a file; the last answer was false"):
        eventually_blocking(lambda: False, "a file", timeout=0)
