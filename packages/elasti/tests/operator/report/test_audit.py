"""The audit trail: one line of the log and one Event for each action, with who caused it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.log_lines import capture_logs
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger

from elasti.api.names import SLEEP_ANNOTATION
from kubeloop.objects.times import format_time

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


@pytest.fixture
async def env() -> Environment:
    return Environment()


class Trail:
    def __init__(self, entries: list[dict[str, str]]) -> None:
        self.entries = entries

    def taken(self) -> list[tuple[str, str, str]]:
        """The lines since the last call."""
        found = [line for line in self.entries if line["event"] == "audit"]
        self.entries.clear()
        assert all((line["namespace"], line["name"]) == (NAMESPACE, "web") for line in found)
        return [(line["action"], line["cause"], line["actor"]) for line in found]


@pytest.fixture
def trail() -> Iterator[Trail]:
    with capture_logs() as lines:
        yield Trail(lines)


async def test_every_action_leaves_one_line_and_one_event(env: Environment, trail: Trail):
    env.web()
    async with env.operator() as operator:

        async def after(state: str, *expected: tuple[str, str, str]) -> list[str]:
            before = len(env.recorder.told)
            await env.becomes(state, within=900)
            await asyncio.sleep(1)
            assert trail.taken() == list(expected)
            return [why for why in env.reasons()[before:] if why != "NoReadinessProbe"]

        assert await after("Proxy", ("sleep", "Trigger", "")) == ["SuccessToScale"]
        FakeTrigger.value = 9.0
        await operator.waker.wake(NAMESPACE, "web", "10.1.2.3")
        await after("Serve", ("wake", "Request", "10.1.2.3"))
        FakeTrigger.value = 0.0
        asked = format_time(env.clock.now())
        env.change("elastiservices", metadata={"annotations": {SLEEP_ANNOTATION: asked}})
        assert await after("Proxy", ("sleep", "Manual", "")) == ["SuccessToScale"]
        env.scale(1, manager="kubectl")
        assert await after("Serve", ("wake", "Scaled", "kubectl")) == ["Waking"]
        env.change("elastiservices", spec={"suspend": True})
        await asyncio.sleep(100)
        assert await after("Serve", ("suspend", "Manual", "")) == []
        assert env.reasons()[-1] == "Suspended"
        env.change("elastiservices", spec={"suspend": False})
        await asyncio.sleep(10)
        assert trail.taken() == [("resume", "Manual", "")]
        assert env.reasons()[-1] == "Resumed"
        await after("Proxy", ("sleep", "Trigger", ""))
        FakeTrigger.value = 9.0
        assert await after("Serve", ("wake", "Trigger", "")) == ["SuccessToScale"]


async def test_a_wake_up_that_waits_keeps_the_id_of_its_first_request(
    env: Environment, trail: Trail
):
    env.pod_end = 40.0
    env.web(strategy="Recreate")
    async with env.operator() as operator:
        await env.becomes("Proxy", within=900)
        FakeTrigger.value = 9.0
        # Pods are still ending, so the leader scales it up later.
        await operator.waker.wake(NAMESPACE, "web", "10.1.2.3", "aaaa")
        await asyncio.sleep(5)
        await operator.waker.wake(NAMESPACE, "web", "10.1.2.4", "bbbb")
        await env.becomes("Serve", within=900)
        await asyncio.sleep(1)
    woken = [line for line in trail.entries if line.get("action") == "wake"]
    assert [(line["actor"], line["wake_id"]) for line in woken] == [("10.1.2.3", "aaaa")]
    assert env.es is not None
    last = env.es["status"]["lastWake"]
    assert (last["client"], last["wakeId"]) == ("10.1.2.3", "aaaa")
    assert ["aaaa" in text for reason, text in env.recorder.told if reason == "SuccessToScale"][-1]


async def test_a_restart_does_not_tell_of_a_suspension_again(env: Environment, trail: Trail):
    env.web(suspend=True)
    async with env.operator():
        await asyncio.sleep(30)
        assert trail.taken() == [("suspend", "Manual", "")]
    async with env.operator():
        await asyncio.sleep(30)
        assert trail.taken() == []


async def test_a_writer_that_undoes_sleeps_is_named(env: Environment, trail: Trail):
    env.web()
    async with env.operator():
        for _ in range(3):
            await env.becomes("Proxy")
            env.scale(2, manager="argocd")
            await env.becomes("Serve")
    assert ("contest", "ScaleContested", "argocd") in trail.taken()
