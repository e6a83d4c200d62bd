"""What people say outweighs triggers and traffic: keep awake until, suspend, replicas as before."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.controllers.support import eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.states import service_state

from elasti.api.names import KEEP_AWAKE_ANNOTATION, SLEEP_ANNOTATION
from elasti.api.states import State
from elasti.api.types import (
    AutoscalerSpec,
    ElastiServiceSpec,
    ElastiServiceStatus,
    ScaleTargetRef,
    WakeSpec,
)
from elasti.operator.model.targets import wake_replicas
from elasti.operator.report.warnings import keep_awake_complaint
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time, unix_seconds

NOW = unix_seconds("2030-01-01T12:00:00Z")


def kept(text: str) -> dict[str, str]:
    return {KEEP_AWAKE_ANNOTATION: text}


AN_EXAMPLE = "2030-01-31T18:00:00Z"  # what a time looks like, for one that cannot be read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2030-01-01T12:00:01Z", ""),
        ("2030-01-01T14:00:01+02:00", ""),
        ("2030-01-01T12:00:00Z", " past"),
        ("tonight", AN_EXAMPLE),
        ("", AN_EXAMPLE),
        ("18:00", AN_EXAMPLE),
        ("9999-12-31T23:59:59-12:00", AN_EXAMPLE),
        ("x" * 100_000, AN_EXAMPLE),
    ],
)
def test_a_time_that_keeps_nothing_awake_is_complained_about(text: str, words: str):
    complaint = keep_awake_complaint(kept(text), service_state(State.SERVE), NOW)
    assert words in complaint
    assert bool(complaint) is bool(words)
    assert len(complaint) < 300


def test_a_time_that_was_in_force_is_past_without_complaint():
    state = service_state(State.SERVE)
    state.requests.take_in(kept("2030-01-01T12:00:00Z"), NOW - 1)
    assert keep_awake_complaint(kept("2030-01-01T12:00:00Z"), state, NOW) == ""
    assert "past" in keep_awake_complaint(kept("2030-01-01T11:00:00Z"), state, NOW)


@pytest.mark.parametrize(
    ("policy", "autoscaler", "previous", "expected"),
    [
        ("Minimum", None, 5, 2),
        ("Previous", None, 5, 5),
        ("Previous", None, 1, 2),
        ("Previous", None, 0, 2),
        ("Previous", AutoscalerSpec("hpa", "web"), 5, 2),
    ],
)
def test_a_wake_up_asks_for_what_the_spec_says(
    policy: str, autoscaler: AutoscalerSpec | None, previous: int, expected: int
):
    spec = ElastiServiceSpec(
        ScaleTargetRef("apps/v1", "Deployment", "web"),
        "web",
        min_target_replicas=2,
        autoscaler=autoscaler,
        wake=WakeSpec(replicas=policy),  # type: ignore[arg-type]  # one of the two
    )
    assert wake_replicas(spec, ElastiServiceStatus(previous_replicas=previous)) == expected


async def annotate(rig: Rig, name: str, text: str | None) -> None:
    body = {"metadata": {"annotations": {name: text}}}
    await rig.elastiservices.patch("web", MergePatch(body))


async def test_it_is_awake_until_the_time_and_then_sleeps(rig: Rig, prometheus: FakePrometheus):
    await rig.web(replicas=0, triggers=[prometheus.trigger()], cooldownPeriod=1)
    async with rig.operator():
        await rig.becomes("Proxy")
        until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=6)
        await annotate(rig, KEEP_AWAKE_ANNOTATION, format_time(until))
        await rig.becomes("Serve")
        # Longer than the cooldown, and a request to sleep is refused with the reason.
        await rig.tells("MaySleep", "KeptAwake")
        await annotate(rig, SLEEP_ANNOTATION, "2030-01-01T00:00:00.000000Z")

        async def refused() -> bool:
            asked = (await rig.elastiservices.get("web"))["status"].get("sleepRequest") or {}
            return (asked.get("outcome"), asked.get("reason")) == ("Refused", "KeptAwake")

        await eventually(refused)
        assert await rig.replicas() == 1
        await rig.becomes("Proxy", timeout=30)
        assert dt.datetime.now(dt.UTC) >= until - dt.timedelta(seconds=1)
        found = await rig.elastiservices.get("web")
        assert KEEP_AWAKE_ANNOTATION not in (found["metadata"].get("annotations") or {})


async def test_a_time_that_cannot_be_read_is_an_event_and_in_ready(
    rig: Rig, prometheus: FakePrometheus
):
    await rig.web(replicas=0, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Proxy")
        await annotate(rig, KEEP_AWAKE_ANNOTATION, "tonight")
        await rig.says("Ready", "'tonight'")
        assert [event["type"] for event in await rig.events("KeepAwakeIgnored")] == ["Warning"]
        assert await rig.state() == "Proxy"
        assert await rig.replicas() == 0


async def test_suspend_wakes_once_and_then_leaves_it_alone(rig: Rig, prometheus: FakePrometheus):
    await rig.web(replicas=0, triggers=[prometheus.trigger()], cooldownPeriod=1)
    async with rig.operator():
        await rig.becomes("Proxy")
        await rig.elastiservices.patch("web", MergePatch({"spec": {"suspend": True}}))
        await rig.tells("MaySleep", "Suspended")
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        # Whoever scales it now is not contradicted.
        await rig.scale(0)

        async def seen_at_zero() -> bool:
            return (await rig.status())["replicas"] == 0

        await eventually(seen_at_zero)
        prometheus.value = 9.0
        queries = len(prometheus.queries)

        async def read_twice_more() -> bool:
            return len(prometheus.queries) >= queries + 2

        await eventually(read_twice_more)
        assert await rig.replicas() == 0
        assert await rig.slice() is None
        await rig.elastiservices.patch("web", MergePatch({"spec": {"suspend": None}}))

        async def woken() -> bool:
            return await rig.replicas() == 1

        await eventually(woken)


async def test_it_wakes_with_the_replicas_it_had(rig: Rig, prometheus: FakePrometheus):
    await rig.web(
        replicas=3,
        triggers=[prometheus.trigger()],
        cooldownPeriod=1,
        wake={"replicas": "Previous"},
    )
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        assert (await rig.status())["previousReplicas"] == 3
        await rig.wake(operator, "web")
        assert await rig.replicas() == 3
