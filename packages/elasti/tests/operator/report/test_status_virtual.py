"""What status and events tell of a target's life, in virtual time: causes, quiet, usage; and at what cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.operator import environment
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger, Operator

from elasti.api.conditions import WakeCause
from elasti.api.defaults import COOLDOWN, MAX_PAGE_BYTES
from elasti.api.names import FIELD_MANAGER, SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.types import ElastiService
from elasti.api.wire import ActivityReport, LastStart
from elasti.operator.report.events import EventReporter
from elasti.tracing import Tracer
from kubeloop.aio.tasks import finish
from kubeloop.objects.times import format_time, unix_seconds
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

CLIENT = "10.1.2.3 GET /orders"
_REQUESTS = {"requests": {"cpu": "250m", "memory": "64Mi"}}
REQUESTING = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "resources": _REQUESTS}]},
}


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


@pytest.fixture
async def env() -> Environment:
    return Environment()


def status_writes(operator: Operator) -> int:
    return sum(write.endswith("/web/status") for write in operator.client.writes)


# What woke it


async def test_a_request_is_named_in_event_status_and_metrics(env: Environment):
    env.web()
    async with env.operator() as operator:
        await env.becomes("Proxy")
        assert env.status["asleepSince"]
        assert env.status["phase"] == "Asleep"
        assert env.status["usage"]["wakes"] == 0
        asleep = unix_seconds(env.status["asleepSince"])
        await asyncio.sleep(100)
        await operator.waker.wake(NAMESPACE, "web", CLIENT, "1a2b3c4d")
        await env.becomes("Serve")
        wake, usage = env.status["lastWake"], env.status["usage"]
        assert (wake["cause"], wake["client"], wake["wakeId"]) == ("Request", CLIENT, "1a2b3c4d")
        assert 3.0 <= wake["seconds"] <= 6.0, "a pod's second, then the release settle"
        assert "asleepSince" not in env.status
        assert usage["wakes"] == 1
        assert usage["asleepSeconds"] == pytest.approx(unix_seconds(wake["time"]) - asleep, abs=2)
        assert CLIENT in env.messages()
        assert "wake_id 1a2b3c4d" in env.messages()
        text = operator.metrics.render().decode()
        assert 'elasti_wakes_total{cause="Request"} 1' in text
        assert 'elasti_parks_total{outcome="Parked"} 1' in text
        assert 'elasti_cold_start_seconds_count{stage="release"} 1' in text


async def test_a_wake_up_took_what_its_first_client_waited(env: Environment):
    env.web()
    async with env.operator() as operator:
        for age, lasts in ((2.0, (0.76, 0.76)), (90.0, (3.0, 6.0))):
            await env.becomes("Proxy")
            await asyncio.sleep(60)
            start = LastStart(0.7625, age)  # the second is of the wake-up before
            env.resolvers.report = ActivityReport(held=0, open=0, last_start=start)
            await operator.waker.wake(NAMESPACE, "web", CLIENT)
            await env.becomes("Serve")
            assert lasts[0] <= env.status["lastWake"]["seconds"] <= lasts[1]


async def test_status_follows_what_is_held_at_a_bounded_rate(
    env: Environment, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tests.operator.environment.POD_START", 60.0)
    env.web()
    async with env.operator() as operator:
        await env.becomes("Proxy")
        await asyncio.sleep(60)  # the first pods' start is over
        assert env.status["held"] == 0
        before = status_writes(operator)
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        seen = set()
        for second in range(60):
            env.resolvers.report = ActivityReport(held=min(second, 40), open=0)
            await asyncio.sleep(1)
            seen.add(env.status["held"])
        assert max(seen) == 40
        assert len(seen) > 4
        assert status_writes(operator) - before <= 60 / 5 + 1
        await env.becomes("Serve")
        assert env.status["held"] == 0


async def test_while_nothing_is_held_resolvers_are_not_asked_again(
    env: Environment, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tests.operator.environment.POD_START", 600.0)
    env.web(cooldownPeriod=900)
    async with env.operator() as operator:
        await env.becomes("Proxy", within=2000)
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        await asyncio.sleep(30)
        asked = env.resolvers.asked
        await asyncio.sleep(400)
        assert env.resolvers.asked - asked <= 1
        assert env.status["held"] == 0


async def test_a_quick_wake_up_asks_and_writes_nothing_more_for_it(env: Environment):
    env.web()
    async with env.operator() as operator:
        await env.becomes("Proxy")
        env.resolvers.report = ActivityReport(held=3, open=0)
        before, asked = status_writes(operator), env.resolvers.asked
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        await env.becomes("Serve")
        assert status_writes(operator) - before == 1
        assert env.resolvers.asked - asked <= 2, "how long the first client waited, and held once"


async def test_a_wake_up_has_one_span_whose_trace_is_in_event_and_status(env: Environment):
    env.web()
    async with env.operator() as operator:
        tracer = operator.waker.waker.tracer = Tracer(env.settings, "test")
        for cause in ("Request", "Trigger"):
            await env.becomes("Proxy")
            if cause == "Request":
                await operator.waker.wake(NAMESPACE, "web", CLIENT, "ab" * 16)
            else:
                FakeTrigger.value = 9.0
            await env.becomes("Serve")
            FakeTrigger.value = 0.0
            (span,), tracer._spans = tracer._spans, []
            wake = env.status["lastWake"]
            assert wake["wakeId"] == span["traceId"]
            assert f"wake_id {span['traceId']}" in env.messages()
            about = {one["key"]: one["value"]["stringValue"] for one in span["attributes"]}
            assert about["elasti.cause"] == wake["cause"] == cause
            assert about["elasti.service"] == f"{NAMESPACE}/web"
            took = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
            assert took / 1e9 == pytest.approx(wake["seconds"], abs=0.01)
            assert span["status"] == {"code": 0}


async def test_a_reply_names_the_wake_up_by_its_first_request(env: Environment):
    env.web()
    async with env.operator() as operator:
        await env.becomes("Proxy")
        wakes = [operator.waker.wake(NAMESPACE, "web", CLIENT, one * 16) for one in ("ab", "cd")]
        first, second = await asyncio.gather(*wakes)
        later = await operator.waker.wake(NAMESPACE, "web", CLIENT, "ef" * 16)
        assert {first.wake_id, second.wake_id, later.wake_id} == {"ab" * 16}


async def test_a_trigger_is_the_cause(env: Environment):
    env.web()
    async with env.operator() as operator:
        await env.becomes("Proxy")
        FakeTrigger.value = 9.0
        await env.becomes("Serve")
        assert env.status["lastWake"]["cause"] == "Trigger"
        assert env.reasons()[-1] == "SuccessToScale"
        assert 'elasti_wakes_total{cause="Trigger"} 1' in operator.metrics.render().decode()


@pytest.mark.parametrize(("suffix", "cause"), [("", "Manual"), (" Request", "Request")])
async def test_an_annotation_says_whether_a_person_or_a_resolver_wrote_it(
    env: Environment, suffix: str, cause: str
):
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        text = format_time(env.clock.now()) + suffix
        env.change("elastiservices", metadata={"annotations": {WAKE_ANNOTATION: text}})
        await env.becomes("Serve")
        assert env.status["lastWake"]["cause"] == cause


async def test_a_wake_up_soon_after_another_is_its_own(env: Environment):
    env.web(cooldownPeriod=5)
    async with env.operator() as operator:
        await env.becomes("Proxy")
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        await env.becomes("Serve")
        first = unix_seconds(env.status["lastWake"]["time"])
        await env.becomes("Proxy")
        asked = {WAKE_ANNOTATION: format_time(env.clock.now())}
        env.change("elastiservices", metadata={"annotations": asked})
        await env.becomes("Serve")
        wake = env.status["lastWake"]
        assert 0 < unix_seconds(wake["time"]) - first < 30, "within the time of a late note"
        assert wake["cause"] == "Manual"
        assert wake["seconds"] < 6
        assert [sleep["cause"] for sleep in env.status["recent"]] == ["Request", "Manual"]


async def test_another_writer_is_named_by_its_field_manager(env: Environment):
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        env.scale(1, manager="kubectl")
        await env.becomes("Serve")
        wake = env.status["lastWake"]
        assert (wake["cause"], wake["client"]) == ("Scaled", "kubectl")
        assert ["kubectl" in text for reason, text in env.recorder.told if reason == "Waking"] == [
            True
        ]
        env.scale(0, manager="flux")
        await env.becomes("Proxy")
        assert ["flux" in text for reason, text in env.recorder.told if reason == "Proxy"] == [True]


async def test_a_wake_up_by_another_replica_is_not_another_writer(env: Environment):
    env.web()
    async with env.operator() as leader:
        await env.becomes("Proxy")
        other = Operator(env)
        async with other.waker:
            caches = asyncio.create_task(other.caches.manager.run())
            await other.caches.manager.wait_until_ready()
            await other.waker.wake(NAMESPACE, "web", CLIENT, "1a2b3c4d")
            await env.becomes("Serve")
            caches.cancel()
        wake = env.status["lastWake"]
        assert (wake["cause"], wake["client"], wake["wakeId"]) == ("Request", CLIENT, "1a2b3c4d")
        assert wake["seconds"] > 0
        assert CLIENT in env.messages()
        assert "by elasti" not in env.messages()
        assert "elasti_wakes_total{" not in leader.metrics.render().decode(), "it is the other's"


# What it releases


async def test_sleep_releases_what_the_minimum_of_replicas_requests(env: Environment):
    env.web(minTargetReplicas=2)
    env.change("deployments", spec={"template": REQUESTING})
    async with env.operator() as operator:
        operator.metrics.observe_clock(env.clock.now)
        await env.becomes("Proxy")
        await eventually(lambda: "releasedSince" in env.status, timeout=60.0, every=0.05)
        assert env.status["capacity"] == {"cpuMillicores": 500, "memoryBytes": 2**27}
        began = unix_seconds(env.status["releasedSince"])
        await asyncio.sleep(1000)
        text = operator.metrics.render().decode()
        assert 'elasti_released_cpu_cores{crd_name="shop/web"} 0.5' in text
        assert f'elasti_released_memory_bytes{{crd_name="shop/web"}} {2**27}' in text
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        await env.becomes("Serve")
        seconds = unix_seconds(env.status["lastWake"]["time"]) - began
        assert "releasedSince" not in env.status
        assert env.status["usage"]["cpuMillicoreSeconds"] == pytest.approx(500 * seconds, abs=1000)
        (sleep,) = env.status["recent"]
        assert (sleep["cause"], sleep["seconds"]) == ("Request", env.status["lastWake"]["seconds"])
        text = operator.metrics.render().decode()
        assert 'elasti_released_cpu_cores{crd_name="shop/web"} 0\n' in text
        assert f'core_seconds_total{{crd_name="shop/web"}} {seconds / 2:g}'[:40] in text


# What it costs


@pytest.mark.parametrize("cooldown", [5, 30])
async def test_a_quick_cycle_costs_two_events_and_two_status_writes(
    env: Environment, cooldown: int
):
    env.web(cooldownPeriod=cooldown)
    env.change("deployments", spec={"template": REQUESTING})
    async with env.operator() as operator:
        await env.becomes("Proxy")
        env.recorder.told.clear()
        before = status_writes(operator)
        cycles = 12
        for _ in range(cycles):
            for _ in range(3):
                await operator.waker.wake(NAMESPACE, "web", CLIENT)
            FakeTrigger.value = 9.0
            await env.becomes("Serve")
            await asyncio.sleep(20)
            FakeTrigger.value = 0.0
            await env.becomes("Proxy")
            await asyncio.sleep(100)
    assert Counter(env.reasons()) == {"SuccessToScale": 2 * cycles}
    assert not env.recorder.dropped
    # Awake with what woke it, asleep with what that releases.
    assert status_writes(operator) - before == 2 * cycles


async def test_two_events_in_each_default_cooldown_are_all_written(env: Environment):
    env.web()
    recorder: Any = env.recorder
    reporter, es = EventReporter(recorder), msgspec.convert(env.es, ElastiService)
    for number in range(100):
        reporter.woken(es, 1, "a request", WakeCause.REQUEST, f"10.1.2.{number}")
        reporter.parked(es, "idle", WakeCause.TRIGGER)
        await asyncio.sleep(COOLDOWN)
    assert not env.recorder.dropped


async def test_what_takes_longer_is_shown_meanwhile(
    env: Environment, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "POD_START", 20.0)
    env.web(cooldownPeriod=900)
    async with env.operator() as operator:
        await env.becomes("Proxy", within=2000)
        await asyncio.sleep(100)
        before = status_writes(operator)
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        assert await env.becomes("Waking") == pytest.approx(5, abs=1)
        FakeTrigger.value = 9.0
        await env.becomes("Serve")
        await asyncio.sleep(1000)
        FakeTrigger.value = 0.0
        await env.becomes("Proxy", within=2000)
        # Waking, awake, in use for longer than the cooldown, quiet for a minute, asleep.
        assert status_writes(operator) - before == 5


@pytest.mark.parametrize("asked", [SLEEP_ANNOTATION, WAKE_ANNOTATION])
async def test_a_person_who_waits_is_shown_every_step(env: Environment, asked: str):
    env.web(cooldownPeriod=30 if asked == WAKE_ANNOTATION else 900)
    async with env.operator():
        await env.becomes("Proxy" if asked == WAKE_ANNOTATION else "Serve")
        text = format_time(env.clock.now())
        env.change("elastiservices", metadata={"annotations": {asked: text}})
        steps = ("Waking", "Serve") if asked == WAKE_ANNOTATION else ("Engaging", "Proxy")
        assert await env.becomes(steps[0]) < 1.0
        await env.becomes(steps[1])


async def test_a_wake_up_whose_leader_dies_before_it_reports_is_found(env: Environment):
    env.web()
    env.change("deployments", spec={"template": REQUESTING})
    async with env.operator() as first:
        await env.becomes("Proxy")
        began = unix_seconds(env.status["releasedSince"])
        await asyncio.sleep(500)
        await first.waker.wake(NAMESPACE, "web", CLIENT)
        env.scale(1, manager=FIELD_MANAGER)
        woken = env.clock.now().timestamp()
        assert env.state == "Proxy", "nothing is reported yet"
    await asyncio.sleep(20)
    async with env.operator(former_at=woken):
        await env.becomes("Serve")
        assert (env.status["lastWake"]["cause"], env.status["usage"]["wakes"]) == ("Request", 1)
        released = env.status["usage"]["cpuMillicoreSeconds"] / 250
        assert released == pytest.approx(woken - began, abs=2), "not while it was up"
        assert await env.becomes("Proxy") >= 27, "its cooldown begins again with the wake-up"


async def test_noted_replicas_cost_no_writes(env: Environment):
    env.web(replicas=3, wake={"replicas": "Previous"})
    async with env.operator() as operator:
        await env.becomes("Proxy")
        assert env.status["previousReplicas"] == 3
        before = status_writes(operator)
        await asyncio.sleep(100)
        assert status_writes(operator) == before


async def test_a_trigger_that_goes_up_and_down_costs_no_writes(env: Environment):
    env.web(cooldownPeriod=900)
    FakeTrigger.value = 9.0
    async with env.operator() as operator:
        await env.becomes("Serve")
        await asyncio.sleep(1000)
        before = status_writes(operator)
        for round_ in range(100):
            FakeTrigger.value = 9.0 * (round_ % 2)
            await asyncio.sleep(20)
        assert status_writes(operator) == before


# What was shown, and when it will sleep


async def test_quiet_and_its_end_are_in_status(env: Environment):
    env.web(cooldownPeriod=900)
    began = env.clock.now().timestamp()
    async with env.operator() as operator:
        await eventually(lambda: "quietSince" in env.status, timeout=600.0, every=0.05)
        assert env.clock.now().timestamp() - began >= 60
        quiet, sleeps = (unix_seconds(env.status[name]) for name in ("quietSince", "sleepsAt"))
        assert quiet == pytest.approx(began, abs=6)
        assert sleeps == pytest.approx(began + 900, abs=6)
        (shown,) = env.status["triggers"]
        assert shown["type"] == "prometheus"
        assert shown["threshold"] == "1"
        assert shown["quietSince"] == env.status["quietSince"]
        shown = 'elasti_trigger_value{crd_name="shop/web",trigger="0"} 0'
        assert shown in operator.metrics.render().decode()
        FakeTrigger.error = "timeout"
        await eventually(
            lambda: env.status["triggers"][0].get("lastError") == "timeout",
            timeout=600.0,
            every=0.05,
        )
        assert "elasti_trigger_value{" not in operator.metrics.render().decode()
        FakeTrigger.error, FakeTrigger.value = "", 9.0
        await eventually(lambda: "quietSince" not in env.status, timeout=10.0, every=0.05)
        assert "sleepsAt" not in env.status
        assert "lastError" not in env.status["triggers"][0]


async def leads_for(env: Environment, seconds: float) -> None:
    async with env.operator():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(("gap", "inherits"), [(20.0, True), (300.0, False)])
async def test_a_new_leader_goes_on_with_what_the_former_saw(
    env: Environment, gap: float, inherits: bool
):
    env.web(cooldownPeriod=900)
    began = env.clock.now().timestamp()
    await leads_for(env, 600)
    former = env.clock.now().timestamp()
    await asyncio.sleep(gap)
    async with env.operator(former_at=former):
        await env.engages(within=2000.0)
    took = env.clock.now().timestamp() - began
    # Time without a leader does not count, and too much of it begins the cooldown again.
    expected = 900 + gap if inherits else 600 + gap + 900
    assert took == pytest.approx(expected, abs=15)


async def test_a_new_leader_believes_no_status_of_triggers_that_were_changed(env: Environment):
    env.web(cooldownPeriod=900)
    await leads_for(env, 600)
    former = env.clock.now().timestamp()
    changed = {"type": "prometheus", "metadata": {"query": "other", "threshold": "2"}}
    env.change("elastiservices", spec={"triggers": [changed]})
    async with env.operator(former_at=former):
        assert await env.engages(within=2000.0) >= 885


# A waiting page of the user's own


async def test_a_waiting_page_that_cannot_be_shown_is_reported_until_it_can(env: Environment):
    env.web(wake={"page": {"mode": "Auto", "template": {"configMap": {"name": "elasti-page"}}}})
    async with env.operator():
        await env.becomes("Proxy")
        assert "PageInvalid" in [reason for reason, _ in env.recorder.told]
        assert "ConfigMap elasti-page" in ready(env)["message"]
        assert ready(env)["status"] == "True", "it sleeps all the same"
        page = {"index.html": "x" * (MAX_PAGE_BYTES + 1)}
        env.put("configmaps", {"data": page}, "elasti-page")
        await eventually(lambda: str(MAX_PAGE_BYTES) in ready(env)["message"], timeout=600)
        env.put("configmaps", {"data": {"index.html": "<h1>Shop</h1>"}}, "elasti-page")
        await eventually(lambda: "page" not in ready(env)["message"], timeout=600)


async def test_a_page_that_is_off_is_not_looked_for(env: Environment):
    env.web(wake={"page": {"mode": "Off", "template": {"configMap": {"name": "other"}}}})
    async with env.operator():
        await env.becomes("Proxy")
        assert "page" not in ready(env)["message"]


def ready(env: Environment) -> dict[str, str]:
    return next(entry for entry in env.status["conditions"] if entry["type"] == "Ready")


# What kubectl's columns STATE and WHY show


@pytest.mark.parametrize(
    ("field", "value", "reason", "phase"),
    [
        ("scaleTargetRef", {"apiVersion": "apps/v1", "kind": "Deployment", "name": "no"}, "TargetMissing", "NotReady"),
        ("service", "no", "ServiceMissing", "NotReady"),
        ("enabledPeriod", {"schedule": "never", "duration": "1h"}, "InvalidSpec", "Awake"),
    ],
)  # fmt: skip
async def test_what_cannot_sleep_has_a_state_and_the_reason_of_ready(
    env: Environment, field: str, value: Any, reason: str, phase: str
):
    env.web(**{field: value})

    def reasons() -> dict[str, str]:
        conditions = env.status.get("conditions", ())
        return {one["type"]: one["reason"] for one in conditions}

    async with env.operator():
        await eventually(lambda: reasons().get("Ready") == reason, timeout=60.0)
        assert reasons()["MaySleep"] == reason
        assert env.status["phase"] == phase


async def test_a_client_that_wakes_it_at_a_steady_period_wakes_it_less_often(env: Environment):
    env.web()

    async def scrape(operator: Operator) -> None:
        while True:
            await asyncio.sleep(10)
            if env.state == "Proxy":
                await operator.waker.wake(NAMESPACE, "web", CLIENT)

    async def wakes_within(seconds: float) -> int:
        woken = env.reasons().count("SuccessToScale")
        await asyncio.sleep(seconds)
        return (env.reasons().count("SuccessToScale") - woken) // 2

    async with env.operator() as operator:
        await env.becomes("Proxy")
        scraper = asyncio.create_task(scrape(operator))
        first = await wakes_within(300)
        await eventually(lambda: "Flapping" in env.status["warnings"], timeout=600, every=1)
        assert await wakes_within(600) <= first, "half as often"
        await asyncio.sleep(600)
        assert "Flapping" in env.status["warnings"], "the longer period is no other"
        await finish([scraper])
        await env.becomes("Proxy", within=300)
        await asyncio.sleep(300)
        await operator.waker.wake(NAMESPACE, "web", CLIENT)
        await env.becomes("Serve")
        assert await env.becomes("Proxy") < 70, "the sleep lasted: the cooldown is as before"
