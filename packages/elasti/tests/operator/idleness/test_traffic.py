"""The trigger `traffic`: the resolver's look before a sleep, in virtual time and by its arithmetic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.operator.environment import NAMESPACE, TRIGGER, Environment, FakeTrigger

from elasti.api.names import SLEEP_ANNOTATION
from elasti.api.triggers.cluster import KUBELET_ACCOUNT_VARIABLE
from elasti.api.triggers.registry import Role
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef, ScaleTrigger
from elasti.api.wire import ActivityReport
from elasti.operator.settings import OperatorSettings

pytestmark = pytest.mark.virtual_time

TRAFFIC = {"type": "traffic"}
COOLDOWN, WINDOW, SETTLE = 900, 300, 15


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def environment(*triggers: dict[str, Any], cooldown: int = COOLDOWN) -> Environment:
    env = Environment(polling_interval=30.0)
    env.web(triggers=list(triggers or [TRAFFIC]), cooldownPeriod=cooldown)
    return env


async def test_the_resolver_looks_at_the_end_of_the_cooldown():
    env = environment()
    async with env.operator():
        assert (
            COOLDOWN - WINDOW <= await env.becomes("Engaging", within=700) <= COOLDOWN - WINDOW + 40
        )
        assert env.published
        assert env.replicas == 1
        assert env.status["phase"] == "FallingAsleep"
        assert env.status["sleepsAt"]
        assert WINDOW - 1 <= await env.becomes("Proxy", within=320) <= WINDOW + 5
        assert env.resolvers.asked >= WINDOW / SETTLE
    assert env.dark == []


async def test_an_arrival_ends_the_look_and_begins_the_cooldown_again():
    env = environment()
    async with env.operator() as operator:
        await env.becomes("Engaging", within=700)
        await asyncio.sleep(100)
        env.resolvers.report = ActivityReport(held=0, open=0, last_arrival_age=1.0)
        assert await env.becomes("Serve", within=30) <= SETTLE + 3
        assert not env.published
        ended = b'elasti_parks_total{outcome="TrafficArrived"} 1'
        assert ended in operator.metrics.render()
        env.resolvers.report = ActivityReport(held=0, open=0)
        assert await env.becomes("Proxy", within=2 * COOLDOWN) >= COOLDOWN - 1
    assert env.dark == []


@pytest.mark.parametrize("report", [None, ActivityReport(held=0, open=1)])
async def test_silence_and_open_connections_keep_it_awake(report: ActivityReport | None):
    env = environment()
    env.resolvers.report = report
    async with env.operator():
        await asyncio.sleep(3 * COOLDOWN)
        assert env.replicas == 1
        assert "SuccessToScale" not in env.reasons()


async def test_a_resolver_that_is_silent_once_does_not_end_the_look():
    env = environment()
    async with env.operator():
        await env.becomes("Engaging", within=700)
        env.resolvers.report = None
        await asyncio.sleep(60)
        env.resolvers.report = ActivityReport(held=0, open=0)
        await env.becomes("Proxy", within=WINDOW)


async def test_a_failed_reading_stops_the_clock_and_not_the_look():
    env = environment(TRAFFIC, TRIGGER)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with env.operator():
        await env.becomes("Engaging", within=700)
        FakeTrigger.error = "timeout"
        await asyncio.sleep(60)
        FakeTrigger.error = ""
        await env.becomes("Proxy", within=WINDOW + 100)
        assert "Releasing" not in env.reasons()
    assert loop.time() - began >= COOLDOWN + 30, "what is not known is no quiet"


async def test_use_that_another_trigger_sees_ends_the_look():
    env = environment(TRAFFIC, TRIGGER)
    async with env.operator():
        await env.becomes("Engaging", within=700)
        FakeTrigger.value = 9.0
        await env.becomes("Serve", within=60)
        FakeTrigger.value = 0.0
        assert await env.becomes("Proxy", within=2 * COOLDOWN) >= COOLDOWN - 1


async def test_a_request_to_sleep_needs_no_look():
    env = environment()
    async with env.operator():
        await env.becomes("Serve")
        env.change("elastiservices", metadata={"annotations": {SLEEP_ANNOTATION: "now"}})
        assert await env.becomes("Proxy", within=60) <= SETTLE + 5


@pytest.mark.parametrize(
    ("window", "cooldown", "least"),
    [(3600, 120, 120), (1, 60, 60), (300, 300, 300)],
    ids=["longer than the cooldown", "shorter than the settle", "the whole cooldown"],
)
async def test_a_window_is_neither_longer_nor_shorter_than_it_can_be(
    window: int, cooldown: int, least: int
):
    env = environment({**TRAFFIC, "metadata": {"windowSeconds": window}}, cooldown=cooldown)
    async with env.operator():
        took = await env.becomes("Proxy", within=2 * least)
        assert least <= took <= least + 40
    assert env.dark == []


async def test_a_new_leader_looks_again():
    env = environment()
    async with env.operator():
        await env.becomes("Engaging", within=700)
    async with env.operator():
        await env.becomes("Serve", within=30)
        await env.becomes("Engaging", within=COOLDOWN)
        assert await env.becomes("Proxy", within=COOLDOWN) >= WINDOW - 1
    assert env.dark == []


async def test_a_wake_up_begins_the_cooldown_again():
    env = environment()
    async with env.operator() as operator:
        await env.becomes("Proxy", within=2 * COOLDOWN)
        await operator.waker.wake(NAMESPACE, "web")
        await env.becomes("Serve", within=30)
        assert await env.becomes("Engaging", within=COOLDOWN) >= COOLDOWN - WINDOW - 5


@pytest.mark.parametrize(
    ("metadata", "account", "expected"),
    [
        ({}, True, ["traffic", "network"]),
        ({"network": False}, True, ["traffic"]),
        ({}, False, ["traffic"]),
    ],
)
def test_network_stands_beside_it_where_kubelets_may_be_read(
    metadata: dict[str, Any], account: bool, expected: list[str]
):
    settings = OperatorSettings(
        trigger_variables={KUBELET_ACCOUNT_VARIABLE: "elasti/kubelets"} if account else {}
    )
    spec = ElastiServiceSpec(
        ScaleTargetRef("apps/v1", "Deployment", "web"),
        "web",
        given_triggers=(ScaleTrigger("traffic", metadata),),
    )
    found = ElastiService(spec).with_default_triggers((), settings.vetoes).spec.triggers
    assert [trigger.type for trigger in found] == expected
    assert all(trigger.role is Role.VETO for trigger in found[1:])
