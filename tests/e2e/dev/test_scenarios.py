"""Every scenario on the dev cluster: one installation, one scenario after the other.

Two workers share the table, each with a cluster and about half of the time. The cluster is a process
of its own, as `elasti dev` starts it; operator, resolver and apps are its pods. It has no etcd; that
one plays on the real control plane only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e import running, table
from tests.e2e.dev.testbed import DevProcess
from tests.e2e.environment import Environment
from tests.e2e.settings import Settings
from tests.e2e.table import Scenario
from tests.e2e.testbed import Unsupported

pytestmark = pytest.mark.timeout(1500)

HALVES = ("first half", "second half")
SCENARIOS = table.all_but("etcd")
MIDDLE = SCENARIOS.index(table.by_name("leader-waking")[0])


class Session:
    """What lasts from scenario to scenario: the cluster, and what is installed in it."""

    def __init__(self, process: DevProcess) -> None:
        self.process = process
        self.environment: Environment | None = None


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    process = DevProcess(tmp_path_factory.mktemp("dev"))
    process.start()
    try:
        yield Session(process)
    finally:
        process.stop()


@pytest.fixture
async def environment(session: Session) -> AsyncIterator[Environment]:
    async with session.process.testbed() as testbed:
        environment = Environment(testbed)
        if session.environment is not None:
            environment.installed = session.environment.installed
        session.environment = environment
        yield environment


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=f"{HALVES[at >= MIDDLE]}-{scenario.name}")
        for at, scenario in enumerate(SCENARIOS)
    ],
)
async def test_nothing_is_lost(
    environment: Environment, scenario: Scenario, e2e_settings: Settings, tmp_path: Path
):
    await running.run(environment, scenario, e2e_settings, tmp_path)


@pytest.mark.parametrize("half", HALVES[:1])
async def test_the_report_names_what_this_environment_cannot_play(
    environment: Environment, e2e_settings: Settings, half: str
):
    with pytest.raises(Unsupported) as refused:
        await environment.testbed.restart_etcd()
    running.not_here(environment, table.by_name("etcd")[0], e2e_settings, refused.value)


@pytest.mark.parametrize("half", HALVES)
async def test_every_namespace_of_the_scenarios_goes_away(environment: Environment, half: str):
    namespaces = environment.client.resource("v1/namespaces")

    async def gone() -> bool:
        names = [item["metadata"]["name"] async for item in namespaces.items()]
        return not any(name.startswith("e2e-") for name in names)

    await environment.until(gone, "every scenario's namespace is gone")
