"""Observed ElastiServices in virtual time: the same decisions as enforced ones, and no writes."""

from __future__ import annotations

import asyncio
import datetime as dt
import random

import pytest
from tests.operator.environment import (
    NAMESPACE,
    Environment,
    FakeTrigger,
    Operator,
    subject,
)

from elasti.api.names import FINALIZER, SLEEP_ANNOTATION
from elasti.api.types import CapacityStatus
from elasti.operator.idleness.decide import Evidence, Situation, decide
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.model.facts import Decision
from elasti.operator.model.observing import ObservingState, would_sleep
from elasti.operator.observing.report import forbids
from elasti.operator.watch.targets import TargetWatcher
from elasti.triggers.reader import TriggerReading
from kubeloop.client.request import Request as Write
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import JsonObject
from kubeloop.testing.fake_errors import api_error
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

OBSERVE: JsonObject = {"policy": "Observe", "suspend": True}
ENFORCE: JsonObject = {"policy": "Enforce", "suspend": False}
WEB = Request(NAMESPACE, "web")
STATUS = "PATCH /apis/elasti.truefoundry.com/v1alpha1/namespaces/shop/elastiservices/web/status"
MONDAY = dt.datetime(2026, 10, 19, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def observed(env: Environment) -> JsonObject:
    return dict(env.status.get("observed") or {})


def record(operator: Operator) -> ObservingState:
    state = operator._leader._states.find(WEB)
    assert state is not None
    return state.observing


def decisions(operator: Operator) -> Decisions:
    poller = operator._leader._poller
    assert poller is not None
    return poller.decisions


def started(env: Environment, seconds: float = 7.0) -> None:
    """Let the pod say how long its start took."""
    ready = env.clock.now() - dt.timedelta(hours=1)
    made = ready - dt.timedelta(seconds=seconds)
    env.put(
        "pods",
        {
            "metadata": {"labels": {"app": "web"}, "creationTimestamp": f"{made:%FT%TZ}"},
            "status": {
                "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": f"{ready:%FT%TZ}"}
                ]
            },
        },
        "web-0",
    )


def probed(env: Environment, **pod: object) -> None:
    """Give the target a readiness probe and requests."""
    found = env.get("deployments")
    container = {
        "name": "c",
        "readinessProbe": {"tcpSocket": {"port": 1}},
        "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}},
    }
    found["spec"]["template"]["spec"] = {"containers": [container], **pod}
    env.put("deployments", found)


async def test_nothing_is_written_but_status_and_that_once_an_hour():
    env = Environment(polling_interval=60.0)
    env.web(autoscaler={"type": "keda", "name": "web"}, **OBSERVE)
    env.put("scaledobjects", {})
    probed(env)
    started(env)
    async with env.operator() as operator:
        await asyncio.sleep(4 * 3600)
        assert set(operator.client.writes) == {STATUS}
        # The beginning, the first readings, and then at most one an hour.
        assert 4 <= len(operator.client.writes) <= 6
        assert record(operator).asleep
    assert FINALIZER not in (env.es or {})["metadata"].get("finalizers", ())
    assert (env.replicas, env.published, env.state) == (1, False, "Serve")
    assert env.status.get("resolverPorts", []) == []
    assert observed(env)["asleepSeconds"] > 2 * 3600
    assert observed(env)["coldStartSeconds"] == {"p50": 7.0, "p95": 7.0, "basis": "Rollouts"}
    why = next(one for one in env.status["conditions"] if one["type"] == "MaySleep")
    assert why["reason"] == "Observed"
    assert "elasti enable --observed" in why["message"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"minAvailable": "100%"}, True),
        ({"maxUnavailable": 0}, True),
        ({"maxUnavailable": "0%"}, True),
        ({"minAvailable": 1}, False),
        ({"maxUnavailable": 1}, False),
        ({"minAvailable": "50%"}, False),
        ({}, False),
    ],
)
def test_a_budget_forbids_if_it_allows_nothing_at_any_size(spec: JsonObject, expected: bool):
    assert forbids(spec) is expected


async def test_a_budget_that_forbids_is_unsafe_and_read_once_an_hour():
    env = Environment(polling_interval=60.0)
    env.web(**OBSERVE)
    env.web(name="api", **OBSERVE)
    probed(env)
    started(env)
    chosen = {"selector": {"matchLabels": {"app": "web"}}}
    env.put("poddisruptionbudgets", {"spec": {"minAvailable": "100%", **chosen}})
    async with env.operator() as operator:
        await asyncio.sleep(2 * 3600)
        asked = [one for one in operator.client.requests if "poddisruptionbudgets" in str(one)]
        assert 1 <= len(asked) <= 2
    assert observed(env)["verdict"] == "Unsafe"
    assert observed(env)["reasons"] == ["DisruptionBudget"]
    other = env.get("elastiservices", "api")["status"]["observed"]
    assert "DisruptionBudget" not in other["reasons"]


async def test_an_observed_one_is_forgotten_when_it_is_deleted():
    env = Environment()
    env.web(**OBSERVE)
    async with env.operator() as operator:
        await eventually(lambda: bool(observed(env)))
        env.delete("elastiservices")
        await asyncio.sleep(60)
        assert operator._leader._states.find(WEB) is None
        assert set(operator.client.writes) == {STATUS}


@pytest.mark.parametrize("seed", range(20))
async def test_observe_decides_as_enforce_until_the_first_engaging(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("elasti.operator.idleness.poller.random.random", lambda: 0.5)
    script = random.Random(seed)
    cooldown, enforced, watched = script.choice([20, 60]), Environment(), Environment()
    enforced.web(cooldownPeriod=cooldown)
    watched.web(cooldownPeriod=cooldown, **OBSERVE)
    steps: list[tuple[Decision, Decision]] = []
    async with enforced.operator() as one, watched.operator() as other:
        await eventually(lambda: enforced.state == "Serve" and watched.state == "Serve")
        while not enforced.published and len(steps) < 600:
            FakeTrigger.value = script.choice([0.0, 0.0, 0.0, 0.5, 9.0])
            FakeTrigger.error = script.choice(["", "", "", "", "refused"])
            for _ in range(script.randrange(1, 40)):
                await asyncio.sleep(1.0)
                if enforced.published:
                    break
                found = [decisions(operator).together(WEB) for operator in (one, other)]
                steps.append((found[0], found[1]))
        assert len(steps) > cooldown / 4
        assert [a for a, _ in steps] == [b for _, b in steps]
        if enforced.published:
            # The resolver joins before the end of the cooldown: then it only has to stay quiet. A failure before may have stopped the clock.
            FakeTrigger.value, FakeTrigger.error = 0.0, ""
            await eventually(lambda: record(other).asleep, timeout=60.0)


async def test_a_fortnight_is_the_closed_form():
    """Office hours on workdays; the rest is quiet. A look every 30 s, by the operator's own decision."""
    step, cooldown, record = 30, 900.0, ObservingState()
    record.begin(None, MONDAY)
    record.note_target(can_sleep=True, capacity=CapacityStatus(100, 2**20))
    evidence, start = Evidence(threshold=1.0), MONDAY.timestamp()
    for passed in range(0, 14 * 86400 + 1, step):
        day, second = divmod(passed, 86400)
        busy = day % 7 < 5 and 8 * 3600 <= second < 18 * 3600
        now = start + passed
        evidence = evidence.after(TriggerReading(9.0 if busy else 0.0), now, stale_after=120.0)
        seen = Situation(now=now, cooldown=cooldown, created_at=start, triggers=(evidence,))
        used = evidence.is_active()
        record.look(now, would_sleep(decide(seen), used=used), used=used, longest=120.0)
    found = record.totals()
    # Each quiet time lacks its cooldown; the look that finds use counts as awake.
    quiet = 14 * 86400 - 10 * 10 * 3600 - 11 * cooldown - 10 * step
    assert (found.observed_seconds, found.asleep_seconds) == (14 * 86400, quiet)
    assert found.wakes == 10
    assert found.cpu_millicore_seconds == 100 * quiet
    assert found.memory_byte_seconds == 2**20 * quiet


async def test_a_restart_goes_on_from_status_and_counts_no_time_without_a_leader():
    env = Environment(polling_interval=60.0)
    env.web(**OBSERVE)
    async with env.operator():
        await asyncio.sleep(3 * 3600)
    before = observed(env)
    await asyncio.sleep(20 * 3600)
    async with env.operator() as operator:
        await asyncio.sleep(3 * 3600)
        assert record(operator).wakes == 0
    after = observed(env)
    assert after["since"] == before["since"]
    gained = after["observedSeconds"] - before["observedSeconds"]
    assert 1.5 * 3600 < gained <= 3 * 3600
    assert after["asleepSeconds"] - before["asleepSeconds"] <= gained


async def test_readings_that_fail_count_for_nothing():
    env = Environment(polling_interval=60.0)
    env.web(**OBSERVE)
    async with env.operator() as operator:
        await asyncio.sleep(3600)
        FakeTrigger.error = "refused"
        await asyncio.sleep(120)
        at_first = record(operator).totals()
        await asyncio.sleep(3600)
        assert record(operator).totals() == at_first
        FakeTrigger.error = ""
        await asyncio.sleep(600)
        assert record(operator).totals().asleep_seconds > at_first.asleep_seconds
        assert record(operator).wakes == 0


async def test_set_on_a_sleeping_one_it_wakes_once_and_everything_of_ours_goes():
    env = Environment()
    env.put("scaledobjects", {})
    env.web(autoscaler={"type": "keda", "name": "web"}, deletionPolicy="Leave")
    async with env.operator() as operator:
        await env.becomes("Proxy")
        assert (env.replicas, env.published) == (0, True)
        env.dark.clear()
        env.change("elastiservices", spec=OBSERVE)
        await eventually(lambda: bool(observed(env)), timeout=120.0)
        assert (env.replicas, env.published) == (1, False)
        assert [one["metadata"]["name"] for one in env.all("services")] == ["web"]
        assert FINALIZER not in (env.es or {})["metadata"].get("finalizers", ())
        assert env.annotations("scaledobjects") == {}
        assert env.status.get("resolverPorts", []) == []
        assert env.dark == []
        made = len(operator.client.writes)
        await asyncio.sleep(1800)
        assert set(operator.client.writes[made:]) <= {STATUS}
        # What another writer does is left alone, too.
        env.delete("scaledobjects")
        env.scale(0)
        await asyncio.sleep(600)
        assert env.replicas == 0


async def test_back_to_enforce_it_sleeps_and_counts_no_longer():
    env = Environment()
    env.web(**OBSERVE)
    async with env.operator() as operator:
        await asyncio.sleep(600)
        assert env.replicas == 1
        env.change("elastiservices", spec=ENFORCE)
        await env.becomes("Proxy")
        assert (env.replicas, env.published) == (0, True)
        assert FINALIZER in (env.es or {})["metadata"]["finalizers"]
        assert env.status["resolverPorts"]
        assert env.status.get("observed") is None
        assert not record(operator).began


async def test_a_deletion_long_after_it_was_enforced_again_wakes_the_target():
    """The time that the end of enforcing took is not the deletion's."""
    env = Environment()
    env.put("deployments", {"spec": {"replicas": 1, "selector": {}, "template": {}}}, "worker")
    env.web(targets=[{"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"}])

    def refuse(write: Write, done: bool) -> None:
        if subject(write) == "deployments/scale" and "/worker/" in write.path and not done:
            raise api_error(403, "Forbidden", "not now")

    async with env.operator() as operator:
        await env.becomes("Proxy")
        await eventually(lambda: env.get("deployments", "worker")["spec"]["replicas"] == 0)
        operator.client.on_write = refuse
        env.change("elastiservices", spec=OBSERVE)
        await eventually(lambda: env.replicas == 1 and not env.published, timeout=120.0)
        await asyncio.sleep(5.0)
        operator.client.on_write = None
        env.change("elastiservices", spec=ENFORCE)
        await asyncio.sleep(env.settings.finalize_wait)
        await env.becomes("Proxy")
        env.dark.clear()
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0)
        assert (env.replicas, env.published, env.dark) == (1, False, [])


async def test_a_sleeping_one_whose_kind_cannot_be_read_for_a_while_is_woken_later(
    monkeypatch: pytest.MonkeyPatch,
):
    async def refuse(*_: object) -> None:
        raise api_error(403, "Forbidden", "not now")

    env = Environment()
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        with monkeypatch.context() as patched:
            patched.setattr(TargetWatcher, "follow", refuse)
            env.change("elastiservices", spec=OBSERVE)
            await asyncio.sleep(600.0)
            assert env.published
        await eventually(lambda: bool(observed(env)), timeout=120.0)
        assert (env.replicas, env.published) == (1, False)


async def test_one_that_is_deleted_before_it_could_wake_is_woken():
    env = Environment()
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        env.dark.clear()
        env.change("elastiservices", spec=OBSERVE)
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0)
        assert (env.replicas, env.published, env.dark) == (1, False, [])


async def test_a_request_to_sleep_is_refused_and_not_counted():
    env = Environment()
    env.web(cooldownPeriod=3600, **OBSERVE)
    async with env.operator() as operator:
        await eventually(lambda: bool(observed(env)))
        env.change("elastiservices", metadata={"annotations": {SLEEP_ANNOTATION: "now"}})
        await asyncio.sleep(60)
        assert env.reasons().count("SleepRefused") == 1
        assert (env.replicas, record(operator).asleep) == (1, False)
        assert set(operator.client.writes) == {STATUS}


@pytest.mark.parametrize(
    ("spec", "pod", "verdict", "reason"),
    [
        ({}, {"hostNetwork": True}, "Unsafe", "HostNetwork"),
        ({"triggers": []}, {}, "NotEnoughData", "NoTriggers"),
        ({"triggers": [{"type": "traffic"}]}, {}, "NotEnoughData", "TrafficTrigger"),
        ({}, {}, "NotEnoughData", "LessThanADay"),
        ({"service": "nowhere"}, {}, "Unsafe", "ServiceMissing"),
    ],
)
async def test_what_cannot_be_recommended_says_why(
    spec: JsonObject, pod: JsonObject, verdict: str, reason: str
):
    env = Environment(polling_interval=60.0)
    env.web(**OBSERVE | spec)
    probed(env, **pod)
    async with env.operator() as operator:
        await asyncio.sleep(2 * 3600)
        assert observed(env)["verdict"] == verdict
        assert reason in observed(env)["reasons"]
        if reason != "LessThanADay":
            assert observed(env).get("asleepSeconds", 0) == 0 or pod
        assert set(operator.client.writes) == {STATUS}


async def test_one_that_is_not_stored_as_suspended_stays_awake_with_a_warning():
    env = Environment()
    env.web(policy="Observe")
    async with env.operator():
        await asyncio.sleep(600)
        assert "NotSuspended" in env.status["warnings"]
        assert (env.replicas, env.published) == (1, False)


async def test_an_enforced_one_on_the_same_target_stays_awake():
    env = Environment()
    env.web()
    service = env.get("services")
    env.put("services", {"spec": service["spec"]}, "admin")
    spec = env.get("elastiservices")["spec"]
    env.put("elastiservices", {"spec": spec | OBSERVE | {"service": "admin"}}, "admin")
    async with env.operator():
        await asyncio.sleep(600)
        assert env.replicas == 1
        why = next(one for one in env.status["conditions"] if one["type"] == "MaySleep")
        assert why["reason"] == "SharedTarget"
        assert "Observe" in why["message"]
