"""KEDA's operator itself, as a process beside a real control plane whose pods are processes.

Its scalers ask a small server of the test. KEDA's metrics server is not there: an HPA keeps `minReplicaCount`, and
whether there is work KEDA finds out itself.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasti.api.names import PAUSED, PAUSED_BY_US_ANNOTATION, PAUSED_REPLICAS
from hack.kubernetes_pins import kubernetes_version
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.controlplane.binaries import Binaries, Settings
from tests.controlplane.component import Component
from tests.controlplane.keyring import MASTERS
from tests.e2e.bundle import Installation
from tests.e2e.environment import SERVICES, Environment
from tests.e2e.real.cluster import RealCluster
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.real.testbed import open_testbed
from tests.e2e.settings import SHORT
from tests.e2e.trial import Trial
from tests.e2e.workload import ALWAYS_IDLE, App
from tests.neighbours.programs import program
from tests.neighbours.rows import Report, Scenario, pinned

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(600)]

SCALED_OBJECTS = "keda.sh/v1alpha1/scaledobjects"
HPAS = "autoscaling/v2/horizontalpodautoscalers"
POLLING = 1
"""How often KEDA asks its scalers, and the operator its triggers, in seconds."""
SETTLED = 6.0
"""Some polls."""
JOBS_PORT = 18090
BUSY, IDLE = 5, 0


class Keda:
    """KEDA's operator, and the server that its scalers ask."""

    def __init__(self, cluster: RealCluster, binary: Path) -> None:
        rig = cluster.rig
        self._jobs = rig.directory / "jobs"
        self._jobs.mkdir()
        self.log = rig.logs / "keda.log"
        serve = [sys.executable, "-m", "http.server", "--bind=127.0.0.1", str(JOBS_PORT)]
        self._server = Component(
            "jobs",
            [*serve, f"--directory={self._jobs}"],
            sandbox=rig.sandbox,
            log=rig.logs / "jobs.log",
            ready=lambda: True,
        )
        certificates = rig.directory / "keda"
        certificates.mkdir()
        public, private = rig.server_certificate("keda-operator", ["127.0.0.1"])
        for source, name in ((public, "tls.crt"), (private, "tls.key"), (rig.ca_file, "ca.crt")):
            shutil.copy(source, certificates / name)
        kubeconfig = rig.kubeconfig_for("keda", MASTERS, inside=True)
        self._operator = Component(
            "keda",
            [
                "env",
                "WATCH_NAMESPACE=",
                "POD_NAMESPACE=keda",
                "KEDA_CLUSTER_OBJECT_NAMESPACE=keda",
                str(binary),
                f"--kubeconfig={kubeconfig}",
                f"--cert-dir={certificates}",
                # Pods are processes too, and have its usual ports at addresses of their own.
                "--metrics-bind-address=127.0.0.1:18080",
                "--health-probe-bind-address=127.0.0.1:18081",
                "--metrics-service-bind-address=127.0.0.1:19666",
            ],
            sandbox=rig.sandbox,
            log=self.log,
            ready=lambda: self.log.read_text().count("Starting workers") >= 2,
        )
        rig.kubectl("apply", "--server-side", f"--filename={binary.parent / 'crd'}")
        rig.kubectl("create", "namespace", "keda")
        self._server.launch()
        self._operator.launch()
        self._operator.wait_ready(120)

    def jobs(self, name: str, count: int) -> None:
        """Say how much work there is, as a scaler counts it."""
        made = self._jobs / f".{name}"
        made.write_text(json.dumps({"jobs": count}))
        made.rename(self._jobs / f"{name}.json")


@pytest.fixture(scope="module")
def cluster(
    controlplane_binaries: Binaries, controlplane_settings: Settings
) -> Iterator[RealCluster]:
    program("keda")
    logs = controlplane_settings.logs
    with RealCluster(controlplane_binaries, proxy=ProxyKind.OURS, logs=logs) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def keda(cluster: RealCluster) -> Keda:
    return Keda(cluster, program("keda"))


@pytest.fixture
async def trial(cluster: RealCluster, keda: Keda, tmp_path: Path) -> AsyncIterator[Trial]:
    async with open_testbed(cluster) as testbed:
        environment = Environment(testbed)
        await environment.install(Installation(version="neighbours", polling_interval=POLLING))
        async with Trial(environment, SHORT, tmp_path) as trial:
            yield trial


@pytest.fixture
def keep(report: Report) -> Callable[..., None]:
    """Write a scenario of KEDA's row down."""

    def keep(name: str, requests: int = 0, lost: int = 0) -> None:
        print(f"KEDA {pinned('KEDA')}: {name}: {requests} requests, {lost} lost")
        scenario = Scenario(name=name, requests=requests, lost=lost)
        report.keep("KEDA", pinned("KEDA"), f"control plane {kubernetes_version()}", scenario)

    return keep


def scaled_object(trial: Trial, target: str, **spec: Any) -> JsonObject:
    name = f"{trial.namespace}-{target}"
    metadata = {
        "targetValue": "1",
        "url": f"http://127.0.0.1:{JOBS_PORT}/{name}.json",
        "valueLocation": "jobs",
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": target, "namespace": trial.namespace},
        "spec": {
            "scaleTargetRef": {"name": target},
            "pollingInterval": POLLING,
            "cooldownPeriod": 1,
            "triggers": [{"type": "metrics-api", "metadata": metadata}],
            **spec,
        },
    }


class Scaled:
    """A ScaledObject in the cluster."""

    def __init__(self, trial: Trial, keda: Keda, name: str) -> None:
        self._trial = trial
        self._keda = keda
        self._name = name
        client = trial.environment.client
        self._objects = client.resource(SCALED_OBJECTS, namespace=trial.namespace)
        self._hpas = client.resource(HPAS, namespace=trial.namespace)

    def jobs(self, count: int) -> None:
        """Say how much work there is for it."""
        self._keda.jobs(f"{self._trial.namespace}-{self._name}", count)

    async def annotations(self) -> dict[str, str]:
        return (await self._objects.get(self._name))["metadata"].get("annotations") or {}

    async def annotate(self, **annotations: str) -> None:
        await self._objects.patch(
            self._name, MergePatch({"metadata": {"annotations": annotations}})
        )

    async def says(self, kind: str, status: str) -> None:
        """Wait for a condition of it."""

        async def is_so() -> bool:
            found = (await self._objects.get(self._name)).get("status", {}).get("conditions") or ()
            return any((one["type"], one["status"]) == (kind, status) for one in found)

        await self._trial.environment.until(is_so, f"ScaledObject says {kind} {status}", seconds=60)

    async def hpas(self) -> list[str]:
        return [found["metadata"]["name"] async for found in self._hpas.items()]


async def put(
    trial: Trial, keda: Keda, app: App, *, busy: bool, named: bool = True, **spec: Any
) -> Scaled:
    """Put an app and a ScaledObject for it into the cluster; its ElastiService names that, or does not."""
    scaled = Scaled(trial, keda, app.name)
    scaled.jobs(BUSY if busy else IDLE)
    workload, service, elasti_service = app.objects()
    if named:
        elasti_service["spec"]["autoscaler"] = {"type": "keda", "name": app.name}
    await trial.environment.apply(workload, service, scaled_object(trial, app.name, **spec))
    await scaled.says("Active", str(busy))
    await trial.environment.apply(elasti_service)
    return scaled


async def test_a_pause_holds_and_is_taken_back(
    trial: Trial, keda: Keda, keep: Callable[..., None]
) -> None:
    app = trial.new_app()
    scaled = await put(trial, keda, app, busy=True, minReplicaCount=1)
    await trial.reachable(app)
    cycles = 3
    for _ in range(cycles):
        await trial.asleep(app)
        assert await scaled.annotations() == {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}
        await scaled.says("Paused", "True")
        # There is work, and KEDA would scale it up with its next poll.
        await trial.flow(SETTLED)
        assert trial.at_zero(app)
        assert trial.pods(app) == []
        assert await scaled.hpas() == []
        probe = await trial.load(app, rate=20)
        await trial.awake(app)
        await scaled.says("Paused", "False")
        await scaled.says("Active", "True")
        assert await scaled.annotations() == {}
        assert await scaled.hpas() == [f"keda-hpa-{app.name}"]
        await trial.flow(2)
        await probe.rate(0)
    account = await trial.account()
    assert (account.lost, account.held > 0) == ({}, True), account.examples
    keep(
        f"paused by a sleep, with work waiting, and resumed by a request: {cycles} cycles",
        account.sent,
    )


@pytest.mark.parametrize("busy", [True, False], ids=["with work", "without"])
async def test_one_that_is_not_named_undoes_each_sleep(
    trial: Trial, keda: Keda, keep: Callable[..., None], busy: bool
) -> None:
    app = trial.new_app(trigger=ALWAYS_IDLE)
    await put(trial, keda, app, busy=busy, named=False, minReplicaCount=1)
    services = trial.environment.client.resource(SERVICES, namespace=trial.namespace)

    async def contested() -> str:
        found = (await services.get(app.name)).get("status", {}).get("conditions") or ()
        return "".join(
            one["message"]
            for one in found
            if (one["type"], one["status"]) == ("ScaleContested", "True")
        )

    message = await trial.environment.until(contested, "the contest is reported", seconds=180)
    print(message)
    parked = [e for e in trial.observer.events if (e.kind, e.what) == ("replicas", "0")]
    assert len(parked) >= 3
    await trial.observer.until("replicas", app.name, "1")
    keep(
        f"not named, {'with' if busy else 'without'} work: undoes each sleep, which ScaleContested tells"
    )


async def test_its_minimum_counts_for_released_capacity(
    trial: Trial, keda: Keda, keep: Callable[..., None]
) -> None:
    app, minimum = trial.new_app(), 3
    workload = app.workload()
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "20m", "memory": "32Mi"}}
    await put(trial, keda, app, busy=False, minReplicaCount=minimum)
    await trial.environment.apply(workload)
    await trial.asleep(app)
    services = trial.environment.client.resource(SERVICES, namespace=trial.namespace)
    status = (await services.get(app.name))["status"]
    assert status["capacity"] == {
        "cpuMillicores": minimum * 20,
        "memoryBytes": minimum * (32 << 20),
    }
    await trial.load(app, rate=20)
    # The wake-up asks for one replica, and KEDA for the rest.
    await trial.observer.until("replicas", app.name, "1")
    await trial.observer.until("replicas", app.name, str(minimum))
    account = await trial.account()
    assert account.lost == {}, account.examples
    keep(
        f"minReplicaCount: {minimum} counts for released capacity, and KEDA restores it",
        account.sent,
    )


def gets(cluster: RealCluster) -> int:
    """How often anybody has asked for a single ScaledObject; KEDA's own reads come from its cache."""
    metrics = cluster.rig.kubectl("get", "--raw=/metrics")
    lines = re.findall(r"^apiserver_request_total\{(.*)\} (\d+)$", metrics, re.MULTILINE)
    return sum(
        int(count)
        for labels, count in lines
        if 'resource="scaledobjects"' in labels and 'verb="GET"' in labels
    )


async def test_a_trigger_follows_its_scaler(
    cluster: RealCluster, trial: Trial, keda: Keda, keep: Callable[..., None]
) -> None:
    worker, app = trial.new_app("worker"), trial.new_app()
    worker_objects = worker.objects()[:2]
    scaled = Scaled(trial, keda, worker.name)
    scaled.jobs(BUSY)
    await trial.environment.apply(*worker_objects, scaled_object(trial, worker.name))
    await scaled.says("Active", "True")
    workload, service, elasti_service = app.objects()
    metadata = {"scaledObject": worker.name}
    elasti_service["spec"]["triggers"] = [{"type": "keda", "metadata": metadata}]
    await trial.environment.apply(workload, service, elasti_service)
    await trial.awake(app)
    asked = gets(cluster)
    assert asked > 0, "the test's own are not counted"
    await trial.flow(app.cooldown + SETTLED)
    assert trial.observer.now["replicas", app.name] == "1"
    for _ in range(2):
        scaled.jobs(IDLE)
        await trial.asleep(app)
        await trial.flow(SETTLED)
        assert trial.at_zero(app)
        began = time.monotonic()
        scaled.jobs(BUSY)
        await trial.observer.until("replicas", app.name, "1")
        took = time.monotonic() - began
        print(f"awake {took:.2f} s after there was work; KEDA asks every {POLLING} s")
        await trial.awake(app)
    assert gets(cluster) == asked
    keep(
        "the trigger keda follows a metrics-api scaler without traffic, and without a GET: 2 cycles"
    )


async def test_one_that_scales_to_zero_is_warned_of_since_it_does(
    trial: Trial, keda: Keda, keep: Callable[..., None]
) -> None:
    app = trial.new_app()
    await put(trial, keda, app, busy=False)
    services = trial.environment.client.resource(SERVICES, namespace=trial.namespace)

    async def warned() -> bool:
        found = (await services.get(app.name)).get("status", {}).get("warnings") or ()
        return "KEDAScalesToZero" in found

    await trial.environment.until(warned, "the warning is there", seconds=60)
    await trial.asleep(app)
    await trial.reachable(app)
    woken = trial.observer.last("replicas", app.name, "1")
    await trial.load(app, rate=20)
    await trial.observer.until("replicas", app.name, "1")
    # In use, and KEDA knows nothing of that.
    await trial.observer.until("replicas", app.name, "0", seconds=60)
    assert trial.observer.last("replicas", app.name, "1") > woken
    keep("minReplicaCount: 0, which is warned of: scales a target in use to zero (loses requests)")


@pytest.mark.parametrize("value", ["true", "1"])
async def test_a_pause_of_a_person_stays(
    trial: Trial, keda: Keda, keep: Callable[..., None], value: str
) -> None:
    app = trial.new_app()
    scaled = await put(trial, keda, app, busy=False, minReplicaCount=1)
    await scaled.annotate(**{PAUSED: value})
    await scaled.says("Paused", "True")
    for _ in range(2):
        await trial.asleep(app)
        await trial.reachable(app)
        probe = await trial.load(app, rate=20)
        await trial.awake(app)
        await probe.rate(0)
        assert await scaled.annotations() == {PAUSED: value}
    account = await trial.account()
    assert account.lost == {}, account.examples
    keep(f"paused: {value!r} of a person stays through 2 sleeps and wake-ups", account.sent)


async def test_replicas_that_a_person_wants_stay(
    trial: Trial, keda: Keda, keep: Callable[..., None]
) -> None:
    app, wanted = trial.new_app(), {PAUSED_REPLICAS: "2"}
    scaled = await put(trial, keda, app, busy=False, minReplicaCount=1)
    await scaled.annotate(**wanted)
    await trial.observer.until("replicas", app.name, "2")
    began = time.monotonic()
    await trial.flow(app.cooldown + 2 * SETTLED)
    assert trial.observer.last("replicas", app.name, "0") < began
    assert await scaled.annotations() == wanted
    keep("paused-replicas: 2 of a person keeps the target awake")
