"""Envoy itself before targets that sleep and wake, on the dev cluster, with the endpoints of their Services' slices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.e2e.account import Account
from tests.e2e.bundle import Installation
from tests.e2e.cases.objects import HttpBin
from tests.e2e.dev.testbed import DevProcess
from tests.e2e.environment import Environment
from tests.e2e.prober.plan import Fault
from tests.e2e.settings import SHORT
from tests.e2e.trial import Trial
from tests.e2e.workload import App
from tests.neighbours.envoy import Gateway, binary
from tests.neighbours.rows import Report, Scenario
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)

RATE = 50
SETTLE = 3.0
INSTALLED = Installation(version="neighbours", engage_settle=SETTLE)
LINGER = 5.0
"""How long apps serve on after SIGTERM; the guide asks for a pause of ten."""
GONE = SETTLE + LINGER
"""How long after the resolver's slice appeared the pods are gone, at the earliest."""
ANSWERS = {"unary": "hello", "stream": [str(number) for number in range(5)]}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    binary()
    process = DevProcess(tmp_path_factory.mktemp("dev"))
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
async def trial(process: DevProcess, tmp_path: Path) -> AsyncIterator[Trial]:
    async with process.testbed() as testbed:
        environment = Environment(testbed)
        await environment.install(INSTALLED)
        async with Trial(environment, SHORT, tmp_path) as trial:
            yield trial


@pytest.fixture
def keep(report: Report) -> Any:
    """Write a scenario of Envoy's row down."""

    def keep(name: str, requests: int, lost: int = 0) -> None:
        print(f"Envoy {binary()[1]}: {name}: {requests} requests, {lost} lost")
        scenario = Scenario(name=name, requests=requests, lost=lost)
        report.keep("Envoy", binary()[1], "dev cluster", scenario)

    return keep


def before(trial: Trial, app: App, **more: Any) -> Any:
    """Run Envoy before an app."""
    where = trial.directory / f"envoy-{app.name}"
    return Gateway.running(trial.environment.client, trial.namespace, app.name, where, **more)


async def cycles(trial: Trial, app: App, gateway: Gateway, moments: Sequence[float]) -> Account:
    """Load a sleeping app through Envoy until its pods serve; and again at moments after the resolver's slice is there."""
    probe = await trial.probe(gateway.address("http"), host="web.example")
    probe.services = [app.name]
    for moment in (None, *moments):
        if moment is not None:
            await probe.rate(0)
            await trial.observer.until("slice", app.name, "published")
            await trial.flow(moment)
        await probe.rate(RATE)
        await trial.awake(app)
        await trial.flow(gateway.delay + SETTLE + 2)
    return await trial.account()


async def test_sleep_and_wake_under_load(trial: Trial, keep: Any):
    app = await trial.sleeping_app(trial.new_app(linger=LINGER))
    async with before(trial, app) as gateway:
        account = await cycles(trial, app, gateway, [0.5, SETTLE, GONE, GONE + 2])
        retries = await gateway.counted("upstream_rq_retry")
    assert (account.lost, account.held > 0) == ({}, True), account.examples
    print(f"{retries} retries of {account.sent}, held for {account.hold_max:.1f} s at most")
    keep("asleep, woken by requests, idle, asleep: 5 cycles", account.sent)


async def test_a_thousand_and_more_are_held(trial: Trial, keep: Any):
    app = await trial.sleeping_app(trial.new_app(start=8, linger=LINGER))
    async with before(trial, app) as gateway:
        probe = await trial.probe(gateway.address("http"), limit=1_500, reuse=False)
        await probe.rate(500)
        await probe.all_sent()
        account = await trial.account()
    assert account.lost == {}, account.examples
    assert account.held > 1_024
    keep("1500 requests held at once, circuit breakers raised", account.sent)


@pytest.mark.parametrize("delay", [1.0, GONE - 1])
async def test_endpoints_that_arrive_late(trial: Trial, keep: Any, delay: float):
    app = await trial.sleeping_app(trial.new_app(linger=LINGER))
    async with before(trial, app) as gateway:
        gateway.delay = delay
        account = await cycles(trial, app, gateway, [0.5, SETTLE, GONE, GONE + 2])
        retries = await gateway.counted("upstream_rq_retry")
    print(f"{delay:g} s: {retries} retries of {account.sent}, lost {account.lost}")
    assert account.lost == {}, account.examples
    keep(f"endpoints {delay:g} s late, with an engage settle of {SETTLE:g} s", account.sent)


async def test_endpoints_that_arrive_after_the_pods_are_gone_lose(trial: Trial):
    # Shows that the cycles notice: the pods have ended before Envoy knows the resolver.
    app = await trial.sleeping_app(trial.new_app(linger=LINGER))
    async with before(trial, app) as gateway:
        gateway.delay = GONE + 4
        account = await cycles(trial, app, gateway, [GONE + 1])
    assert account.lost.keys() == {Fault.STATUS.value}, account.lost


async def test_health_checks_do_not_wake_and_do_not_keep_awake(trial: Trial, keep: Any):
    app = await trial.sleeping_app(trial.new_app(linger=LINGER, start=4))
    async with before(trial, app, health_checks=True) as gateway:
        await eventually(lambda: gateway.counted("health_check.success"), "a check succeeds")
        began = await gateway.counted("health_check.attempt")
        await trial.flow(10)
        checks = await gateway.counted("health_check.attempt") - began
        assert checks >= 8
        assert trial.at_zero(app)
        assert trial.pods(app) == []
        account = await cycles(trial, app, gateway, [SETTLE, GONE])
    assert account.lost == {}, account.examples
    keep("Envoy's own health checks each second do not wake, and do not keep awake", account.sent)


async def test_health_checks_wake_without_the_presets(trial: Trial):
    app = trial.new_app(replicas=0)
    workload, service, elasti_service = app.objects()
    elasti_service["spec"]["wake"]["ignore"] = {"presets": []}
    await trial.environment.apply(workload, service, elasti_service)
    await trial.asleep(app)
    async with before(trial, app, health_checks=True):
        await trial.awake(app)


async def test_grpc_and_websockets(trial: Trial, keep: Any):
    asked = 0
    for number in range(2):
        app = HttpBin(
            namespace=trial.namespace, name=f"bin{number}", grpc=True, replicas=0, start=2
        )
        await trial.environment.apply(*app.objects())
        sleeping = trial.new_app(app.name)
        await trial.asleep(sleeping)
        async with before(trial, sleeping, ports=("http", "grpc")) as gateway:
            grpc, web = gateway.address("grpc"), gateway.address("http")
            ask = [sys.executable, "-m", "tests.e2e.cases.ask_grpc", f"{grpc.host}:{grpc.port}"]
            if number:
                url = f"ws://{web.host}:{web.port}/ws"
                async with websockets.connect(url, open_timeout=120) as connection:
                    for word in map(str, range(5)):
                        await connection.send(word)
                        assert await connection.recv() == word
            calls = [
                await trial.environment.testbed.spawn(ask, stdout=subprocess.PIPE) for _ in range(5)
            ]
            for call in calls:
                answers, _ = await call.communicate()
                assert json.loads(answers) == ANSWERS
            asked += number + 2 * len(calls)
            await trial.awake(sleeping)
    keep("gRPC (unary, streaming) and a WebSocket, each the first to wake", asked)
