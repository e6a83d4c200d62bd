"""Argo Rollouts itself, on the real control plane: its Rollouts sleep and wake, also in the middle of an update.

`make neighbours` builds the controller; without it these are skipped with that reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasti.api.names import private_service_name
from hack.kubernetes_pins import kubernetes_version
from kubeloop.objects.meta import JsonObject
from tests.controlplane.binaries import Binaries
from tests.controlplane.binaries import Settings as RigSettings
from tests.controlplane.plugin import give_up
from tests.e2e.account import Account
from tests.e2e.bundle import Installation
from tests.e2e.environment import SERVICES, Environment
from tests.e2e.observer import WORKLOADS
from tests.e2e.probing import Probe
from tests.e2e.real import proxies
from tests.e2e.real.cluster import RealCluster
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.real.testbed import open_testbed
from tests.e2e.settings import SHORT
from tests.e2e.trial import Trial
from tests.neighbours.argo import ROLLOUTS, Controller, Hand, RolloutApp, rollout_of
from tests.neighbours.programs import program
from tests.neighbours.rows import Report, Scenario, pinned

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(900)]

NEIGHBOUR = "Argo Rollouts"
RATE = 50
FLOW = 5.0
"""For how long traffic flows, in seconds, where nothing is waited for."""
ONE_SERVICE: JsonObject = {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}]}}
TWO_SERVICES: JsonObject = {
    "canary": {**ONE_SERVICE["canary"], "stableService": "web", "canaryService": "web-canary"}
}
BLUE_GREEN: JsonObject = {
    "blueGreen": {
        "activeService": "web",
        "previewService": "web-preview",
        "autoPromotionEnabled": False,
        "scaleDownDelaySeconds": 5,
        "abortScaleDownDelaySeconds": 5,
    }
}
AT_ONCE: JsonObject = {"blueGreen": {**BLUE_GREEN["blueGreen"], "autoPromotionEnabled": True}}
CANARIES = pytest.mark.parametrize(
    ("strategy", "second", "services"),
    [(ONE_SERVICE, "", "one Service"), (TWO_SERVICES, "web-canary", "stable and canary Service")],
    ids=["one", "two"],
)


class ArgoTrial(Trial):
    """A scenario whose workloads are Rollouts."""

    workloads = (*WORKLOADS, ROLLOUTS)

    async def rollout(self, strategy: JsonObject, second: str = "", **more: Any) -> RolloutApp:
        """Put a Rollout into the cluster with its Services, and wait until its traffic goes to its pods."""
        app = rollout_of(self.new_app(), strategy=strategy, **more)
        if second:
            await self.environment.apply(*app.beside(second))
        await self.serving_app(app)
        return app

    async def rests(self, app: RolloutApp, probe: Probe, *services: str) -> None:
        """Send nothing until the Rollout sleeps, behind each of its Services."""
        await probe.rate(0)
        await self.asleep(app)
        for service in services:
            await self.observer.until("slice", service, "published")

    async def is_used(self, app: RolloutApp, probe: Probe) -> float:
        """Send requests until pods have them and for a while longer; return when that began."""
        began = time.monotonic()
        await probe.rate(RATE)
        await self.awake(app)
        await self.flow(FLOW)
        return began

    def answered(self, since: float, until: float = math.inf) -> set[str]:
        """Return the revisions that answered requests of a time; the account must have been made."""
        sent = [record for record in self.records if since <= record.sent <= until]
        assert sent
        return {record.pod.split("-")[-2] for record in sent}


class Session:
    """What lasts from scenario to scenario."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.installed = False


@pytest.fixture(scope="module")
def session(
    controlplane_binaries: Binaries, controlplane_settings: RigSettings
) -> Iterator[Session]:
    program("argo-rollouts")
    if lacking := proxies.missing(ProxyKind.KUBE_PROXY, controlplane_binaries):
        give_up(controlplane_settings, lacking)
    cluster = RealCluster(
        controlplane_binaries, proxy=ProxyKind.KUBE_PROXY, logs=controlplane_settings.logs
    )
    with cluster, Controller(cluster):
        yield Session(cluster)


@pytest.fixture
async def trial(session: Session, tmp_path: Path) -> AsyncIterator[ArgoTrial]:
    async with open_testbed(session.cluster) as testbed:
        environment = Environment(testbed)
        if not session.installed:
            await environment.install(Installation(version="argo"))
            session.installed = True
        async with ArgoTrial(environment, SHORT, tmp_path) as trial:
            yield trial


@pytest.fixture
def keep(report: Report) -> Callable[[str, Account], None]:
    """Check that nothing is lost, and write the scenario down."""

    def keep(name: str, account: Account) -> None:
        print(
            f"{NEIGHBOUR} {pinned(NEIGHBOUR)}: {name}: {account.sent} requests, {account.held} held"
        )
        assert (account.lost, account.held > 0) == ({}, True), account.examples
        scenario = Scenario(name=name, requests=account.sent)
        report.keep(NEIGHBOUR, pinned(NEIGHBOUR), f"control plane {kubernetes_version()}", scenario)

    return keep


Keep = Callable[[str, Account], None]


@CANARIES
async def test_a_canary_sleeps_and_wakes(
    trial: ArgoTrial, keep: Keep, strategy: JsonObject, second: str, services: str
):
    app = await trial.rollout(strategy, second)
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    first = await hand.until_promoted()
    for _ in range(3):
        await trial.rests(app, probe, *filter(None, [second]))
        # Kubernetes cannot apply the scale of a custom resource (docs/explanation/replicas.md).
        assert await hand.owners() == []
        await trial.is_used(app, probe)
    assert await hand.hash_of(private_service_name("web")) == await hand.hash_of("web")
    assert await hand.hash_of("web") == (first if second else "")
    keep(
        f"canary ({services}): asleep, woken by requests, idle, asleep: 3 cycles",
        await trial.account(),
    )


@CANARIES
async def test_a_canary_is_woken_in_the_middle_of_a_step_and_promoted(
    trial: ArgoTrial, keep: Keep, strategy: JsonObject, second: str, services: str
):
    app = await trial.rollout(strategy, second, replicas=2)
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    old = await hand.until_promoted()
    await hand.updates()
    new = str((await hand.until_paused())["currentPodHash"])
    await trial.rests(app, probe, *filter(None, [second]))
    assert (await hand.sees())["status"]["currentStepIndex"] == 1
    woken = await trial.is_used(app, probe)
    await trial.observer.until_true(lambda: len(trial.pods(app, "ready")) == 2, "both are back")
    await trial.flow(FLOW)
    promoting = time.monotonic()
    assert (await hand.sees())["status"]["currentStepIndex"] == 1
    await hand.promotes()
    assert await hand.until_promoted() == new
    await trial.flow(FLOW)
    promoted = time.monotonic()
    await trial.flow(FLOW)
    account = await trial.account()
    # A stable Service leads to the old revision until the promotion.
    assert trial.answered(woken, promoting) == ({old} if second else {old, new})
    assert trial.answered(promoted) == {new}
    keep(f"canary ({services}): woken in the middle of a step, then promoted under load", account)


@CANARIES
async def test_a_canary_is_aborted_while_asleep_and_woken(
    trial: ArgoTrial, keep: Keep, strategy: JsonObject, second: str, services: str
):
    app = await trial.rollout(strategy, second, replicas=2)
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    old = await hand.until_promoted()
    await hand.updates()
    await hand.until_paused()
    await trial.rests(app, probe, *filter(None, [second]))
    await hand.aborts()
    await hand.until(lambda status: status.get("phase") == "Degraded", "is aborted")
    assert trial.at_zero(app)
    woken = await trial.is_used(app, probe)
    await trial.rests(app, probe)
    await trial.is_used(app, probe)
    account = await trial.account()
    assert trial.answered(woken) == {old}
    keep(f"canary ({services}): aborted while asleep, woken, asleep, woken", account)


@CANARIES
async def test_a_canary_is_promoted_while_asleep(
    trial: ArgoTrial, keep: Keep, strategy: JsonObject, second: str, services: str
):
    app = await trial.rollout(strategy, second)
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    old = await hand.until_promoted()
    await hand.updates()
    await hand.until_paused()
    await trial.rests(app, probe, *filter(None, [second]))
    await hand.promotes()
    new = await hand.until_promoted()
    assert new != old
    assert trial.at_zero(app)
    woken = await trial.is_used(app, probe)
    account = await trial.account()
    assert trial.answered(woken) == {new}
    keep(f"canary ({services}): promoted while asleep, woken", account)


async def test_blue_and_green_sleep_together_and_wake_by_either_service(
    trial: ArgoTrial, keep: Keep
):
    app = await trial.rollout(BLUE_GREEN, "web-preview")
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    old = await hand.until_promoted()
    await trial.rests(app, probe, "web-preview")
    await trial.is_used(app, probe)
    await hand.updates()
    new = str((await hand.until_paused())["currentPodHash"])
    assert [await hand.hash_of(name) for name in ("web", "web-preview")] == [old, new]
    await trial.rests(app, probe, "web-preview")
    # Whoever looks at the preview wakes both.
    preview = await trial.load(app.but(name="web-preview"), rate=RATE)
    looked = time.monotonic()
    await trial.awake(app.but(name="web-preview"))
    await trial.flow(FLOW)
    await trial.rests(app, preview, "web-preview")
    woken = await trial.is_used(app, probe)
    promoting = time.monotonic()
    await hand.promotes()
    assert await hand.until_promoted() == new
    await trial.flow(FLOW)
    promoted = time.monotonic()
    await trial.rests(app, probe, "web-preview")
    await trial.is_used(app, probe)
    account = await trial.account()
    assert trial.answered(looked, woken - 1) == {new}
    assert trial.answered(woken, promoting) == {old}
    assert trial.answered(promoted) == {new}
    keep(
        "blue-green with a preview Service: asleep while paused, woken by either, then promoted",
        account,
    )


async def test_blue_green_is_updated_while_asleep(trial: ArgoTrial, keep: Keep):
    app = await trial.rollout(AT_ONCE, "web-preview")
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    old = await hand.until_promoted()
    await trial.rests(app, probe, "web-preview")
    await hand.updates()
    new = await hand.until_promoted()
    assert new != old
    assert trial.at_zero(app)
    woken = await trial.is_used(app, probe)
    account = await trial.account()
    assert trial.answered(woken) == {new}
    assert await hand.hash_of(private_service_name("web")) == new
    keep("blue-green: updated and promoted while asleep, woken by requests", account)


async def test_blue_green_is_aborted_while_asleep_and_woken(trial: ArgoTrial, keep: Keep):
    app = await trial.rollout(BLUE_GREEN, "web-preview")
    hand, probe = Hand(trial, app), await trial.load(app, rate=RATE)
    old = await hand.until_promoted()
    await hand.updates()
    await hand.until_paused()
    await trial.rests(app, probe, "web-preview")
    await hand.aborts()
    await hand.until(lambda status: status.get("phase") == "Degraded", "is aborted")
    assert trial.at_zero(app)
    woken = await trial.is_used(app, probe)
    await trial.rests(app, probe)
    await trial.is_used(app, probe)
    account = await trial.account()
    assert trial.answered(woken) == {old}
    keep("blue-green: aborted while asleep, woken, asleep, woken", account)


@pytest.mark.parametrize(
    ("strategy", "second", "name", "drains"),
    [
        (
            ONE_SERVICE,
            "",
            "canary (one Service): sleep.drain takes pods out of rotation first",
            True,
        ),
        (
            BLUE_GREEN,
            "web-preview",
            "blue-green: sleep.drain has no effect, as its condition says",
            False,
        ),
    ],
    ids=["one", "blue-green"],
)
async def test_the_selector_of_a_service_that_argo_leads_gets_no_key(
    trial: ArgoTrial, keep: Keep, strategy: JsonObject, second: str, name: str, drains: bool
):
    app = await trial.rollout(strategy, second, drain="Selector")
    probe = await trial.load(app, rate=RATE)
    for _ in range(2):
        await trial.rests(app, probe, *filter(None, [second]))
        await trial.is_used(app, probe)
    client = trial.environment.client
    service = await client.resource("v1/services", namespace=trial.namespace).get("web")
    managers = {entry["manager"] for entry in service["metadata"]["managedFields"]}
    assert ("elasti-operator" in managers) is drains
    elasti_service = await client.resource(SERVICES, namespace=trial.namespace).get("web")
    (ready,) = [one for one in elasti_service["status"]["conditions"] if one["type"] == "Ready"]
    assert ("Argo Rollouts leads" in ready["message"]) is not drains
    keep(name, await trial.account())
