"""What status says of a request to sleep, in virtual time: one outcome for each, kept by every leader."""

from __future__ import annotations

import asyncio

import pytest
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger

from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.wire import ActivityReport
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

FIRST, SECOND = "2030-01-01T00:00:00.000001Z", "2030-01-01T00:00:00.000002Z"
BUSY = ActivityReport(held=0, open=1, last_arrival_age=0.0)


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def ask(env: Environment, text: str) -> None:
    env.change("elastiservices", metadata={"annotations": {SLEEP_ANNOTATION: text}})


async def outcome(env: Environment, text: str) -> JsonObject:
    def noted() -> JsonObject | None:
        found = env.status.get("sleepRequest")
        return found if found and found["request"] == text else None

    return await eventually(noted, timeout=300.0, every=0.05)


async def test_an_old_reading_does_not_undo_a_sleep_by_hand():
    env = Environment(polling_interval=30.0)
    env.web(cooldownPeriod=3600)
    loop = asyncio.get_running_loop()
    async with env.operator():
        await env.becomes("Serve")
        await eventually(lambda: FakeTrigger.reads > 1, timeout=60.0)
        # All of the load falls between two readings, and the request is carried out before the second.
        began = loop.time()
        FakeTrigger.counter = lambda: 1000.0 * min(loop.time() - began, 3.0)
        FakeTrigger.reads = 0
        await eventually(lambda: FakeTrigger.reads > 0, timeout=60.0)
        began = loop.time() + 1.0
        await asyncio.sleep(5)
        ask(env, FIRST)
        assert (await outcome(env, FIRST))["outcome"] == "Asleep"
        await asyncio.sleep(180)
        assert env.state == "Proxy"
        assert env.replicas == 0
        assert SLEEP_ANNOTATION not in env.annotations("elastiservices")


async def test_after_the_request_a_trigger_wakes_as_ever():
    env = Environment()
    env.web(cooldownPeriod=3600)
    async with env.operator():
        await env.becomes("Serve")
        ask(env, FIRST)
        await outcome(env, FIRST)
        gone = lambda: SLEEP_ANNOTATION not in env.annotations("elastiservices")  # noqa: E731
        await eventually(gone, timeout=120.0)
        FakeTrigger.value = 9.0
        await env.becomes("Serve", within=30.0)


@pytest.mark.parametrize("triggers", [{}, {"triggers": []}])
async def test_a_refusal_names_what_ended_the_attempt(triggers: JsonObject):
    env = Environment()
    env.web(cooldownPeriod=3600, **triggers)
    env.resolvers.report = BUSY
    async with env.operator():
        await env.becomes("Serve")
        ask(env, FIRST)
        found = await outcome(env, FIRST)
        assert (found["outcome"], found["reason"]) == ("Refused", "TrafficArrived")
        assert found["message"]


async def test_each_request_has_its_own_outcome():
    env = Environment()
    env.web(cooldownPeriod=3600)
    env.resolvers.report = BUSY
    async with env.operator():
        await env.becomes("Serve")
        ask(env, FIRST)
        assert (await outcome(env, FIRST))["outcome"] == "Refused"
        env.resolvers.report = ActivityReport(held=0, open=0)
        ask(env, SECOND)
        found = await outcome(env, SECOND)
        assert (found["outcome"], found.get("reason"), found.get("message")) == ("Asleep", "", "")
        assert env.replicas == 0


async def test_a_new_leader_does_not_try_again_what_was_refused():
    env = Environment()
    env.web(cooldownPeriod=3600)
    async with env.operator():
        await env.becomes("Serve")
    # The former leader ended after it had written the outcome, and before it removed the annotation.
    ask(env, FIRST)
    refused = {"request": FIRST, "outcome": "Refused", "reason": "TrafficArrived", "message": "x"}
    env.change("elastiservices", status={"sleepRequest": refused})
    async with env.operator():
        gone = lambda: SLEEP_ANNOTATION not in env.annotations("elastiservices")  # noqa: E731
        await eventually(gone, timeout=60.0)
        await asyncio.sleep(60)
        assert env.status["sleepRequest"] == refused
        assert env.replicas == 1


async def test_a_new_leader_keeps_triggers_quiet_for_what_it_finds_asleep():
    env = Environment()
    env.web(cooldownPeriod=3600)
    FakeTrigger.value = 9.0
    async with env.operator():
        await env.becomes("Serve")
        ask(env, FIRST)
        assert (await outcome(env, FIRST))["outcome"] == "Asleep"
    async with env.operator():
        await asyncio.sleep(120)
        assert env.replicas == 0
        assert env.status["sleepRequest"]["outcome"] == "Asleep"


async def test_a_request_that_is_withdrawn_is_refused():
    env = Environment()
    env.web(cooldownPeriod=3600)
    async with env.operator():
        await env.becomes("Serve")
        ask(env, FIRST)
        await env.engages()
        env.change("elastiservices", metadata={"annotations": {WAKE_ANNOTATION: SECOND}})
        found = await outcome(env, FIRST)
        assert (found["outcome"], found["reason"]) == ("Refused", "Superseded")
        assert env.replicas == 1


async def test_a_wake_up_by_a_client_supersedes_it():
    env = Environment()
    env.web(cooldownPeriod=3600)
    async with env.operator() as operator:
        await env.becomes("Serve")
        ask(env, FIRST)
        await env.engages()
        await operator.waker.wake(NAMESPACE, "web", "10.0.0.9")
        found = await outcome(env, FIRST)
        assert (found["outcome"], found["reason"]) == ("Refused", "Superseded")
