"""Every scenario on the dev cluster: one installation, one scenario after the other.

The cluster is a process of its own, as `elasti dev` starts it; operator, resolver and apps are its pods.
It has no etcd; that one plays on the real control plane only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e import running, table
from tests.e2e.dev.ground import DevHouse
from tests.e2e.ground import Unsupported
from tests.e2e.settings import Settings
from tests.e2e.stage import Stage
from tests.e2e.table import Scenario

pytestmark = pytest.mark.timeout(1500)


class Theatre:
    """What lasts from scenario to scenario: the cluster, and what is installed in it."""

    def __init__(self, house: DevHouse) -> None:
        self.house = house
        self.stage: Stage | None = None


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    house = DevHouse(tmp_path_factory.mktemp("dev"))
    house.start()
    try:
        yield Theatre(house)
    finally:
        house.stop()


@pytest.fixture
async def stage(theatre: Theatre) -> AsyncIterator[Stage]:
    async with theatre.house.ground() as ground:
        stage = Stage(ground)
        if theatre.stage is not None:
            stage.installed = theatre.stage.installed
        theatre.stage = stage
        yield stage


@pytest.mark.parametrize("scenario", table.all_but("etcd"), ids=lambda scenario: scenario.name)
async def test_nothing_is_lost(
    stage: Stage, scenario: Scenario, e2e_settings: Settings, tmp_path: Path
):
    await running.run(stage, scenario, e2e_settings, tmp_path)


async def test_the_report_names_what_this_stage_cannot_play(stage: Stage, e2e_settings: Settings):
    with pytest.raises(Unsupported) as refused:
        await stage.ground.restart_etcd()
    running.not_here(stage, table.by_name("etcd")[0], e2e_settings, refused.value)


async def test_every_namespace_of_the_scenarios_goes_away(stage: Stage):
    namespaces = stage.client.resource("v1/namespaces")

    async def gone() -> bool:
        names = [item["metadata"]["name"] async for item in namespaces.items()]
        return not any(name.startswith("e2e-") for name in names)

    await stage.until(gone, "every scenario's namespace is gone")
