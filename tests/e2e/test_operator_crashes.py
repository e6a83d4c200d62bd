"""The operator killed after every write of every hand-over, on both servers.

A scenario is played once undisturbed, to know how many writes it takes, and then once for each of them:
the process is killed when that one is made, and started again. See `tests.operator.crashing`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.operator.conftest import place, rig
from tests.operator.crash_scenarios import SCENARIOS, Scenario, count_writes
from tests.operator.crashing import CrashTestbed, after, crash_testbed
from tests.operator.rig import Rig
from tests.operator.servers import CONTROLPLANE, everywhere

__all__ = ["place", "rig"]

pytestmark = [everywhere, pytest.mark.timeout(900)]

AT_ONCE = 3
FEWEST_WRITES = 3
REPORTS = 2
"""How many fewer writes a play may take: of status, and of an event."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_killed_after_one_write_or_another_it_ends_well(
    rig: Rig, tmp_path: Path, request: pytest.FixtureRequest, scenario: Scenario
):
    real = request.node.callspec.params["rig"] == CONTROLPLANE
    async with crash_testbed(rig, tmp_path, real=real) as testbed:
        writes = await count_writes(testbed, scenario)
        assert writes >= FEWEST_WRITES
        slots = asyncio.Semaphore(AT_ONCE)
        deaths = await asyncio.gather(
            *(trial(testbed, scenario, count, slots) for count in range(writes + 1))
        )
    # Timers decide what is reported together, so a play may end with fewer writes than the counted one
    # took, and its death never comes: that can be so for the last ones, and for no others.
    assert all(deaths[: max(FEWEST_WRITES, writes - REPORTS)]), deaths


async def trial(
    testbed: CrashTestbed, scenario: Scenario, count: int, slots: asyncio.Semaphore
) -> int:
    """Kill it after so many writes, and return how often it died."""
    async with slots, testbed.case() as case:
        with case.explained(f"killed after write {count} of {scenario.__name__}"):
            await scenario(case, after(count))
        return case.operator.deaths
