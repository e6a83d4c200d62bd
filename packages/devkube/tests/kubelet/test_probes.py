from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from devkube.kubelet.pod_types import ContainerSpec
from devkube.kubelet.pods.state import ProbeKind
from devkube.kubelet.probes import (
    ContainerChecks,
    ProbeError,
    ProbeLoop,
    ProbeThresholds,
)
from devkube.kubelet.stats import ByteCounts
from kubeloop.aio.tasks import finish
from kubeloop.objects.core import Probe
from kubeloop.probes.checks import ProbeOutcome

pytestmark = pytest.mark.virtual_time


def spec(**fields: Any) -> Probe:
    return msgspec.convert({"exec": {}, **fields}, Probe)


def test_a_verdict_needs_a_run_of_equal_results():
    verdicts = ProbeThresholds(spec(failureThreshold=3, successThreshold=2), initial=False)
    results = [True, True, False, False, True, False, False, False, False, True, True]
    given_ = [verdicts.feed(result) for result in results]
    assert given_ == [None, True, None, None, None, None, None, False, None, None, True]


def test_named_ports_are_looked_up():
    made = msgspec.convert(
        {"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}, ContainerSpec
    )
    assert [made.port_number(p) for p in ("http", "81", 82)] == [8080, 81, 82]
    assert [made.port_number(p) for p in ("nope", 0, 65536)] == [None, None, None]


async def test_a_probe_of_an_unknown_port_cannot_be_made():
    async def execute(_command: tuple[str, ...], _timeout: float | None) -> tuple[int, str]:
        return 0, ""

    made = msgspec.convert({"name": "c"}, ContainerSpec)
    checks = ContainerChecks(
        container=made,
        address="127.0.0.1",
        execute=execute,
        version="1.36",
        counts=ByteCounts(),
    )
    with pytest.raises(ProbeError, match="invalid port number: nope"):
        await checks.probe(msgspec.convert({"tcpSocket": {"port": "nope"}}, Probe))


class ProbedContainer:
    """A container whose answers are scripted; everything is noted with its time."""

    def __init__(self, answers: dict[int, bool] | bool = True, *, takes: float = 0.0) -> None:
        self.answers = answers
        self.takes = takes
        self.asked: list[float] = []
        self.verdicts: list[tuple[float, str, bool]] = []
        self.complaints: list[str] = []
        self.ending = False

    async def ask(self, probe: Probe) -> ProbeOutcome:
        now = asyncio.get_running_loop().time() - self.began
        self.asked.append(now)
        await asyncio.sleep(self.takes)
        healthy = self.answers
        if isinstance(healthy, dict):
            healthy = [v for t, v in sorted(healthy.items()) if t <= now][-1]
        return ProbeOutcome(healthy=healthy, message="no")

    async def run(self, seconds: float, **probes: Any) -> None:
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        container = msgspec.convert({"name": "c", **probes}, ContainerSpec)
        probing = ProbeLoop(
            container=container,
            ask=self.ask,
            decided=lambda kind, ok: self.verdicts.append(
                (loop.time() - self.began, kind.value, ok)
            ),
            complained=lambda reason, text: self.complaints.append(text),
            is_ending=lambda: self.ending,
        )
        task = asyncio.create_task(probing.run())
        await asyncio.sleep(seconds)
        await finish([task])


async def test_readiness_is_asked_at_once_and_then_every_period():
    rig = ProbedContainer()
    await rig.run(25, readinessProbe={"exec": {}, "periodSeconds": 10})
    assert rig.asked == [0, 10, 20]
    assert rig.verdicts == [(0, "Readiness", True)]


async def test_an_initial_delay_comes_before_the_first_probe():
    rig = ProbedContainer()
    await rig.run(35, readinessProbe={"exec": {}, "initialDelaySeconds": 12, "periodSeconds": 10})
    assert rig.asked == [12, 22, 32]


async def test_a_startup_probe_gates_the_others_and_is_no_longer_asked():
    rig = ProbedContainer({0: False, 5: True})
    await rig.run(
        15.5,
        startupProbe={"exec": {}, "periodSeconds": 2, "failureThreshold": 30},
        readinessProbe={"exec": {}, "periodSeconds": 10},
        livenessProbe={"exec": {}, "periodSeconds": 5},
    )
    assert rig.asked == [0, 2, 4, 6, 6, 6, 11]
    assert rig.verdicts == [(6, "Startup", True), (6, "Readiness", True)]


async def test_a_startup_probe_that_fails_for_good_ends_the_asking():
    rig = ProbedContainer(False)
    await rig.run(
        60,
        startupProbe={"exec": {}, "periodSeconds": 3, "failureThreshold": 4},
        readinessProbe={"exec": {}},
    )
    assert rig.asked == [0, 3, 6, 9]
    assert rig.verdicts == [(9, "Startup", False)]
    assert rig.complaints[0] == "Startup probe failed: no"


async def test_liveness_fails_after_the_threshold_and_stops_asking():
    rig = ProbedContainer({0: True, 12: False})
    await rig.run(100, livenessProbe={"exec": {}, "periodSeconds": 5, "failureThreshold": 2})
    assert rig.verdicts == [(20, "Liveness", False)]
    assert rig.asked[-1] == 20


async def test_readiness_comes_and_goes():
    rig = ProbedContainer({0: True, 3: False, 9: True})
    probe = {"exec": {}, "periodSeconds": 1, "failureThreshold": 2, "successThreshold": 3}
    await rig.run(15, readinessProbe=probe)
    assert rig.verdicts == [
        (2, "Readiness", True),
        (4, "Readiness", False),
        (11, "Readiness", True),
    ]


async def test_slow_probes_do_not_pile_up():
    rig = ProbedContainer(takes=25)
    await rig.run(100, readinessProbe={"exec": {}, "periodSeconds": 10})
    assert rig.asked == [0, 35, 70]


async def test_a_pod_that_goes_is_asked_for_readiness_only():
    rig = ProbedContainer()
    rig.ending = True
    await rig.run(25, readinessProbe={"exec": {}}, livenessProbe={"exec": {}, "periodSeconds": 10})
    assert rig.asked == [0, 10, 20]


async def test_a_probe_that_cannot_be_made_counts_for_nothing():
    class Broken(ProbedContainer):
        async def ask(self, probe: Probe) -> ProbeOutcome:
            await super().ask(probe)
            raise ProbeError("invalid port number: x")

    rig = Broken()
    await rig.run(5, readinessProbe={"exec": {}, "failureThreshold": 1})
    assert rig.asked == [0]
    assert rig.verdicts == []
    assert rig.complaints == [
        "Readiness probe errored and resulted in unknown state: invalid port number: x"
    ]


def test_kinds_have_the_names_that_events_use():
    assert {kind.value for kind in ProbeKind} == {"Startup", "Liveness", "Readiness"}
