"""A real operator process, killed where it hurts most. The whole sweep is `tests/e2e`'s."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.operator import crash_scenarios as scenarios
from tests.operator.crash_scenarios import Scenario
from tests.operator.crashing import CrashTestbed, Point, after_first, crash_testbed
from tests.operator.rig import Rig

pytestmark = pytest.mark.timeout(300)

POINTS: list[tuple[Scenario, Point]] = [
    (scenarios.park, after_first("POST", "/endpointslices")),
    (scenarios.keda_park, after_first("PATCH", "/scaledobjects")),
    (scenarios.keda_park, after_first("PATCH", "/scale")),
    (scenarios.wake, after_first("PUT", "/scale")),
    (scenarios.delete, after_first("DELETE", "/endpointslices")),
]


async def play(testbed: CrashTestbed, scenario: Scenario, point: Point) -> None:
    async with testbed.case() as case:
        with case.explained(scenario.__name__):
            await scenario(case, point)
            assert case.operator.deaths == 1


async def test_killed_at_the_worst_moments_it_still_ends_well(rig: Rig, tmp_path: Path):
    async with crash_testbed(rig, tmp_path, real=False) as testbed, asyncio.TaskGroup() as group:
        for scenario, point in POINTS:
            group.create_task(play(testbed, scenario, point))
