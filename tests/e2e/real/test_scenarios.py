"""Every scenario on Kubernetes' own control plane, with our service proxy and with the real kube-proxy.

One cluster of each kind, one installation in it, one scenario after the other. A short run plays each
scenario where it can fail: nearly everything on the dev cluster, which has the same proxy of ours; with
kube-proxy what its rules or the control plane have a part in, but cycles, parking, rollouts and upgrades,
which real nodes play with it (tests/realcluster); and with our proxy on the real control plane only what is
between those two. A full run plays everything everywhere. So that nothing waits for a full run, each day's short runs
play two more with kube-proxy, another two the next day.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.controlplane.binaries import Binaries
from tests.controlplane.binaries import Settings as RigSettings
from tests.controlplane.plugin import ELSEWHERE, give_up
from tests.e2e import running, settings, table
from tests.e2e.environment import Environment
from tests.e2e.real import proxies
from tests.e2e.real.cluster import RealCluster
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.real.testbed import open_testbed
from tests.e2e.settings import SHORT, Settings
from tests.e2e.table import SCENARIOS, Scenario
from tests.e2e.testbed import Unsupported
from tests.realcluster import scenarios

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(1500)]

# In a short run each is played on a control plane at least once, here or on real nodes (tests/realcluster), but
# for the hundred Services, whose pods take two cores some minutes.
SHORT_WITH_OURS = table.by_name(
    "wake", "last-moment-exiting", "cycles-exiting", "rollout", "leader-engaging", "pod-leaves", "pod-dies",
    "by-hand-exiting", "held", "fleet", "takeover", "control",
)  # fmt: skip
SHORT_WITH_KUBE_PROXY = table.by_name(
    "wake", "idle-metric", "leader-parking", "leader-waking", "api-away", "etcd", "watches",
    "by-hand", "deleted", "late-endpoints", "control",
)  # fmt: skip
# Of what is left, two a day; the hundred Services take too long.
_LEFT_OUT = [one for one in SCENARIOS if one not in SHORT_WITH_KUBE_PROXY and one.name != "hundred"]
_A_DAY = 2


def guests(day: int) -> list[Scenario]:
    """Return what short runs of a day play with kube-proxy on top."""
    first = day * _A_DAY
    return [_LEFT_OUT[number % len(_LEFT_OUT)] for number in range(first, first + _A_DAY)]


class Session:
    """What lasts from scenario to scenario: the cluster, and what is installed in it."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.environment: Environment | None = None


@pytest.fixture(scope="module", params=list(ProxyKind), ids=lambda kind: kind.value)
def session(
    request: pytest.FixtureRequest,
    controlplane_binaries: Binaries,
    controlplane_settings: RigSettings,
) -> Iterator[Session]:
    if lacking := proxies.missing(request.param, controlplane_binaries):
        give_up(controlplane_settings, lacking)
    logs = controlplane_settings.logs
    with RealCluster(controlplane_binaries, proxy=request.param, logs=logs) as cluster:
        yield Session(cluster)


@pytest.fixture
async def environment(session: Session) -> AsyncIterator[Environment]:
    async with open_testbed(session.cluster) as testbed:
        await testbed.settled()
        environment = Environment(testbed)
        if session.environment is not None:
            environment.installed = session.environment.installed
        session.environment = environment
        yield environment


def trials(kind: ProxyKind, scenario: Scenario, length: settings.Length) -> bool:
    """Whether a scenario is played with a proxy in a run of this length."""
    short = SHORT_WITH_OURS
    if kind is ProxyKind.KUBE_PROXY:
        short = (*SHORT_WITH_KUBE_PROXY, *guests(dt.datetime.now(dt.UTC).toordinal()))
    return length != SHORT or scenario in short


def test_short_runs_of_two_weeks_play_everything_with_kube_proxy_but_the_hundred():
    played = {one.name for day in range(14) for one in (*SHORT_WITH_KUBE_PROXY, *guests(day))}
    assert {one.name for one in SCENARIOS} - played == {"hundred"}


def test_a_short_run_plays_each_on_a_control_plane():
    on_nodes = (*scenarios.TOGETHER, *scenarios.ALONE)
    played = {one.name for one in (*SHORT_WITH_OURS, *SHORT_WITH_KUBE_PROXY, *on_nodes)}
    assert {one.name for one in SCENARIOS} - played == {"hundred"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_nothing_is_lost(
    session: Session,
    environment: Environment,
    scenario: Scenario,
    e2e_settings: Settings,
    tmp_path: Path,
):
    if not trials(session.cluster.kind, scenario, e2e_settings.length):
        why = Unsupported(
            "a short run leaves it to the dev cluster, the other proxy, real nodes or a full run"
        )
        running.not_here(environment, scenario, e2e_settings, why)
        pytest.skip(f"{ELSEWHERE}: {why}")
    try:
        await running.run(environment, scenario, e2e_settings, tmp_path)
    except BaseException:
        print(session.cluster.tails())
        raise
