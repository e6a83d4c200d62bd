"""The Helm chart on real nodes, under load: installed, upgraded, rolled back, uninstalled; nothing is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hack.realcluster import lifecycle
from hack.realcluster.cluster import Options
from hack.realcluster.images import PROJECT
from hack.realcluster.programs import ROOT
from tests.chart.rendering import CHART, helm, tool
from tests.controlplane.binaries import Settings
from tests.controlplane.plugin import give_up
from tests.e2e.account import read_executed
from tests.e2e.prober.plan import Fault, Plan, read_records
from tests.e2e.workload import PORT
from tests.realcluster.conftest import seconds_since
from tests.realcluster.report import Report
from tests.realcluster.rig import Rig
from tests.realcluster.waking import Sleeper

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(900)]

RATE = 20.0
# Of what the prober should have sent: it waits for nothing, but the machine is busy.
_SENT = 0.8
REPOSITORY, _, TAG = PROJECT.partition(":")
# Endpoints reach two nodes of one machine at once; the default is for real networks.
VALUES = (
    f"--set=image.repository={REPOSITORY},image.tag={TAG}",
    *(f"--set=elasti{name}.env.ELASTI_ENGAGE_SETTLE=2s" for name in ("Controller", "Resolver")),
)
WAIT = ("--wait", "--timeout=5m")
ELASTISERVICES = "/apis/elasti.truefoundry.com/v1alpha1/namespaces/shop/elastiservices"


class Release:
    """Helm on a cluster of the test's own; the other tests' has `elasti install`'s."""

    def __init__(self, rig: Rig, directory: Path, report: Report) -> None:
        self.rig = rig
        self._directory = directory
        self._report = report

    def helm(self, *arguments: str) -> str:
        return helm(*arguments, "--namespace=elasti", f"--kubeconfig={self.rig.state.kubeconfig}")

    @contextlib.contextmanager
    def under_load(self, app: Sleeper, what: str) -> Iterator[None]:
        """Send requests to an app that sleeps, all through the block; each is answered, and once.

        The first ones are held: an app that is awake already would show nothing.
        """
        name = what.replace(" ", "-")
        records, path = (self._directory / f"{name}.{ending}" for ending in ("records", "plan"))
        plan = Plan(
            targets=((app.address, PORT),), records=str(records), run=name, rate=RATE, timeout=120.0
        )
        path.write_bytes(msgspec.json.encode(plan))
        argv = [sys.executable, "-m", "tests.e2e.prober", str(path)]
        command = lifecycle.inside(self.rig.state, "node-1", argv)
        began = time.monotonic()
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, text=True) as prober:
            assert prober.stdin is not None
            assert prober.stdout is not None
            assert prober.stdout.readline() == "ready\n"
            yield
            ended, took = time.monotonic(), seconds_since(began)
            prober.stdin.write("stop\n")
            prober.stdin.flush()
            assert prober.wait(180) == 0
        _, sent = read_records(records)
        lost = [record for record in sent if record.fault is not Fault.NONE]
        held = sum(record.held is not None for record in sent)
        said = f"{took}; {len(sent)} requests, {held} held, {len(lost)} lost"
        self._report.note(f"Chart: {what}, under load", said)
        assert len(sent) > RATE * (ended - began) * _SENT, said
        assert held, f"{said}: the app was awake"
        assert not lost, f"{said}: {lost[:5]}"
        executed = read_executed(app.directory)
        twice = [record.id for record in sent if len(executed.get(record.id, ())) != 1]
        assert not twice, f"{said}: not executed once: {twice[:5]}"


@pytest.fixture(scope="module")
def release(
    suitable: None,
    controlplane_settings: Settings,
    report: Report,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    try:
        tool("helm")
    except FileNotFoundError as error:
        give_up(controlplane_settings, str(error))
    directory = ROOT / "build" / "realcluster-chart"
    state = lifecycle.up(directory, Options(nodes=2), beneficiary=os.getpid())
    try:
        yield Release(Rig(state, directory), tmp_path_factory.mktemp("chart"), report)
    finally:
        lifecycle.down(directory)


def test_a_release_lives_and_ends_under_load_and_loses_nothing(
    release: Release, tmp_path: Path, report: Report
) -> None:
    rig = release.rig
    rig.namespace("elasti")
    began = time.monotonic()
    release.helm("install", "elasti", str(CHART), *VALUES, *WAIT)
    report.note("`helm install --wait`", seconds_since(began))
    tmp_path.chmod(0o777)
    app = Sleeper(rig, rig.namespace("shop"), tmp_path, period=5)
    app.apply()

    app.sleep()
    changed = [f"--set=elasti{name}.podLabels.round=two" for name in ("Controller", "Resolver")]
    with release.under_load(app, "helm upgrade"):
        release.helm("upgrade", "elasti", str(CHART), *VALUES, *changed, *WAIT)

    app.sleep()
    with release.under_load(app, "helm rollback"):
        release.helm("rollback", "elasti", "1", *WAIT)

    app.sleep()
    with release.under_load(app, "helm uninstall"):
        release.helm("uninstall", "elasti", "--wait", "--timeout=10m")
    # The hook has left everything awake, and the ElastiService is there for the next installation.
    (left,) = rig.api.get(ELASTISERVICES)["items"]
    assert not left["metadata"].get("finalizers")
    slices = rig.api.get("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices")["items"]
    assert not [s for s in slices if "to-resolver" in s["metadata"]["name"]]
    assert not rig.api.get("/apis/apps/v1/namespaces/elasti/deployments")["items"]
