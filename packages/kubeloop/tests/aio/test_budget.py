from __future__ import annotations

import asyncio

import pytest

from kubeloop.aio.tasks import TimeBudget

pytestmark = pytest.mark.virtual_time


async def test_a_budget_is_spent_when_its_time_is_over():
    budget = TimeBudget(0.005)
    assert not budget.spent()
    await asyncio.sleep(0.004)
    assert not budget.spent()
    await asyncio.sleep(0.001)
    assert budget.spent()


async def test_budget_is_spent_after_items_where_time_stands_still():
    budget = TimeBudget(items=3)
    assert [budget.spent() for _ in range(3)] == [False, False, True]


async def test_a_rest_lets_others_run_and_starts_over():
    ran: list[str] = []
    budget = TimeBudget(items=1)
    asyncio.get_running_loop().call_soon(ran.append, "other")
    assert budget.spent()
    await budget.rest()
    assert ran == ["other"]
    assert TimeBudget(items=2).spent() is False


async def test_a_restart_counts_from_now():
    budget = TimeBudget(0.005)
    await asyncio.sleep(1)
    budget.restart()
    assert not budget.spent()
