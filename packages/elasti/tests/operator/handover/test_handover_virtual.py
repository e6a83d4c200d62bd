"""The hand-over in virtual time, on an API in memory: transitions, settles, conflicts, crashes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest
from tests.operator import environment
from tests.operator.environment import (
    LABELS,
    NAMESPACE,
    RESOLVER,
    Environment,
    FakeTrigger,
    Operator,
    subject,
)

from elasti.api.names import (
    DRAIN_KEY,
    FINALIZER,
    PAUSED,
    PAUSED_BY_US_ANNOTATION,
    PAUSED_OBJECTS_ANNOTATION,
    QUARANTINE_CONFIG_MAP,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.api.wire import ActivityReport, WakeOutcome
from elasti.operator import leader
from elasti.operator.autoscalers.base import Autoscaler
from elasti.operator.handover.ports import PortBook, PortOwner
from elasti.operator.model.children import slice_names
from elasti.operator.model.targets import PODS_ENDING
from elasti.operator.waking.waker import Waker
from elasti.operator.watch import informer_manager
from elasti.triggers.reader import ReadContext, TriggerReading
from kubeloop.client.request import Request
from kubeloop.informer import MutationDetector, SharedInformerFactory
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject
from kubeloop.testing.fake_errors import api_error
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

KEDA = {"type": "keda", "name": "web"}
OURS = {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}
BUSY = ActivityReport(held=0, open=1, last_arrival_age=0.0)


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


@pytest.fixture
async def env() -> Environment:
    return Environment()


@contextlib.asynccontextmanager
async def asleep(env: Environment) -> AsyncIterator[Operator]:
    """An operator that has put the target to sleep."""
    async with env.operator() as operator:
        await env.becomes("Proxy")
        yield operator


def forbid(method: str, resource: str) -> Callable[[Request, bool], None]:
    """Refuse writes, as a role that lacks the verb does."""

    def refuse(write: Request, done: bool) -> None:
        if not done and (write.method, subject(write)) == (method, resource):
            raise api_error(403, "Forbidden", "no")

    return refuse


# How soon it sleeps

SETTLE = 15.0


@pytest.mark.parametrize("cooldown", [15, 30, 60])
@pytest.mark.parametrize("load", [0.0, 47.0, 61.3])
async def test_a_target_sleeps_soon_after_its_cooldown(cooldown: int, load: float):
    env = Environment(polling_interval=30.0)
    env.web(cooldownPeriod=cooldown)
    loop = asyncio.get_running_loop()
    ends = loop.time() + load
    FakeTrigger.counter = lambda: 10.0 * min(loop.time(), ends)
    async with env.operator():
        await env.becomes("Proxy")
        late = loop.time() - ends - cooldown
    # Without load the cooldown begins with the object's creation. The settle takes at most half of it. The last use may be
    # as long before the reading that saw it as readings are apart. The readings of the look and of the end are up to 0.1 s
    # late each, and joining, parking and this test's own looks take the rest.
    between_readings = max(cooldown / 12, 2.5)
    assert -0.1 <= late <= max(SETTLE - cooldown / 2, 0.0) + between_readings + 2 * 0.1 + 0.2


async def engagements(env: Environment, seconds: float) -> int:
    """How often the resolver joins the pods in that time."""
    count, before = 0, env.published
    for _ in range(round(seconds / 0.5)):
        await asyncio.sleep(0.5)
        count, before = count + (env.published and not before), env.published
    return count


@pytest.mark.parametrize(("cooldown", "gap"), [(15, 6.0), (30, 14.0), (300, 270.0)])
async def test_the_resolver_never_joins_a_target_in_steady_use(cooldown: int, gap: float):
    """Its settle is the end of the cooldown: it never begins before half of that has passed without use."""
    env = Environment(polling_interval=30.0)
    env.web(cooldownPeriod=cooldown)
    loop = asyncio.get_running_loop()
    FakeTrigger.counter = lambda: 1e4 * (loop.time() // gap)
    async with env.operator():
        await env.becomes("Serve")
        assert await engagements(env, 3600.0) == 0
        assert env.state == "Serve"
    assert env.dark == []


@pytest.mark.parametrize("seen", [True, False])
async def test_use_during_the_settle_keeps_it_awake_for_another_cooldown(seen: bool):
    """Also what the resolver does not see, such as bytes on a connection that was open before it joined."""
    env = Environment(polling_interval=30.0)
    env.web(cooldownPeriod=300)
    loop = asyncio.get_running_loop()
    FakeTrigger.counter = lambda: 1e4 * (loop.time() // 297.0)
    if seen:
        env.resolvers.report_of = lambda: ActivityReport(
            held=0, open=0, last_arrival_age=loop.time() % 297.0
        )
    async with env.operator():
        await env.becomes("Serve")
        joined = await engagements(env, 6000.0)
        assert 10 <= joined <= 6000 / (300 - SETTLE), "at most once a cooldown"
        assert env.replicas == 1
        assert "SuccessToScale" not in env.reasons()
    assert env.dark == []


async def test_a_trigger_that_fails_at_the_end_of_the_cooldown_delays_the_park(env: Environment):
    env.web(cooldownPeriod=60)
    async with env.operator():
        await env.engages()
        FakeTrigger.error = "no answer"
        await asyncio.sleep(60)
        assert env.published
        assert env.replicas == 1
        FakeTrigger.error = ""
        await env.becomes("Proxy", within=90.0)
    assert env.dark == []


async def test_a_long_cooldown_costs_no_extra_readings():
    env = Environment(polling_interval=30.0)
    env.web(cooldownPeriod=900)
    FakeTrigger.value = 9.0
    async with env.operator():
        await env.becomes("Serve")
        FakeTrigger.reads = 0
        await asyncio.sleep(900)
        assert FakeTrigger.reads <= 31


async def test_a_failed_reading_pauses_the_cooldown():
    env = Environment(polling_interval=30.0)
    env.web(cooldownPeriod=900)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with env.operator():
        await asyncio.sleep(600)
        FakeTrigger.error = "timeout"
        await asyncio.sleep(60)
        FakeTrigger.error = ""
        await env.becomes("Proxy", within=900.0)
    assert 960 - 1 <= loop.time() - began <= 900 + 60 + 2 * 33 + 5


async def test_new_triggers_are_read_at_once(env: Environment):
    env = Environment(polling_interval=600.0)
    async with env.operator():
        await asyncio.sleep(5)
        env.web()
        await eventually(lambda: FakeTrigger.reads > 0, timeout=1.0, every=0.05)


# Transitions and settles


async def test_an_idle_target_is_parked_after_cooldown_and_settle(env: Environment):
    env.web()
    async with env.operator():
        took = await env.becomes("Proxy")
        assert 30.0 <= took < 35.0, "a cooldown of 30 s, which ends with the engage settle of 15 s"
        assert env.replicas == 0
        assert env.published
        assert env.resolvers.asked >= 2, "before the park and after it"
    assert env.dark == []


async def test_a_wake_up_releases_when_a_pod_has_been_ready(env: Environment):
    env.web()
    async with asleep(env) as operator:
        FakeTrigger.value = 9.0
        reply = await operator.waker.wake(NAMESPACE, "web")
        assert reply.outcome is WakeOutcome.SCALING
        assert 3.0 <= await env.becomes("Serve") < 6.0, "a pod's second, then the release settle"
        assert env.replicas == 1
        assert not env.published
    assert env.dark == []


async def test_a_scale_to_zero_during_a_release_is_repaired_at_once(env: Environment):
    """The DELETE of the slice is on its way, and nothing can call it back: the next reconcile comes with the event."""
    env.web()
    async with asleep(env) as operator:
        FakeTrigger.value = 9.0
        scaled_at: list[float] = []

        def scale_first(write: Request, done: bool) -> None:
            if (write.method, subject(write), done) == ("DELETE", "endpointslices", False):
                env.scale(0)
                scaled_at.append(asyncio.get_running_loop().time())

        operator.client.on_write = scale_first
        await operator.waker.wake(NAMESPACE, "web")
        await eventually(lambda: bool(scaled_at), timeout=30.0, every=0.05)
        operator.client.on_write = None
        assert len(env.dark) == 1, "neither the pod nor the resolver is in rotation"
        await eventually(lambda: env.published, timeout=1.0, every=0.01)
        assert asyncio.get_running_loop().time() - scaled_at[0] < 0.2, "it waited for a timer"
        await env.becomes("Proxy", within=5.0)


async def test_a_trigger_wakes_a_sleeping_target(env: Environment):
    env.web()
    async with asleep(env):
        FakeTrigger.value = 9.0
        await env.becomes("Serve", within=30.0)
    assert env.dark == []


@pytest.mark.parametrize("report", [BUSY, None])
async def test_traffic_or_silence_during_the_settle_keeps_it_awake(
    env: Environment, report: ActivityReport | None
):
    env.web()
    env.resolvers.report = report
    async with env.operator():
        await asyncio.sleep(300)
        assert env.replicas == 1
        assert "Releasing" in env.reasons()
        assert "SuccessToScale" not in env.reasons()
        env.resolvers.report = ActivityReport(held=0, open=0)
        await env.becomes("Proxy")
    assert env.dark == []


async def test_traffic_that_arrives_during_the_park_wakes_it(env: Environment):
    env.web()
    async with env.operator() as operator:

        def arrive(write: Request, done: bool) -> None:
            if done and subject(write) == "deployments/scale":
                env.resolvers.report = BUSY

        operator.client.on_write = arrive
        await env.becomes("Serve", within=5.0)
        woken = b'elasti_wakes_total{cause="Request"} 1'
        await eventually(lambda: woken in operator.metrics.render(), timeout=600.0, every=0.05)
        await env.becomes("Serve")
        assert env.replicas == 1
    assert env.dark == []


async def test_a_resolver_that_does_not_answer_is_not_listed(env: Environment):
    env.web(replicas=0)
    env.resolvers.answers = False
    async with env.operator():
        await env.becomes("Proxy")
        await asyncio.sleep(30)
        assert not env.published
        env.resolvers.answers = True
        await asyncio.sleep(6)
        assert env.published, "it is probed again within five seconds"


async def test_a_resolver_that_is_lost_leaves_the_slice_whatever_is_being_woken(
    env: Environment, monkeypatch: pytest.MonkeyPatch
):
    other = RESOLVER.replace("1", "2")
    env.web()
    env.list_resolvers(RESOLVER, other)

    def listed() -> int:
        return len(env.get("endpointslices", slice_names("web")["IPv4"])["endpoints"])

    async with asleep(env):
        assert listed() == 2
        monkeypatch.setattr(Waker, "wait_calm", lambda _self: asyncio.sleep(0.5))
        env.list_resolvers(RESOLVER)
        await asyncio.sleep(0.2)
        assert listed() == 1


async def test_a_sleeping_target_is_woken_where_no_resolver_is_left(env: Environment):
    env.web()
    async with asleep(env):
        env.list_resolvers()
        await asyncio.sleep(env.settings.resolver_loss_grace - 1)
        assert env.replicas == 0
        await asyncio.sleep(2)
        assert env.replicas == 1
        assert env.reasons().count("NoResolver") == 1
        env.list_resolvers(RESOLVER)


async def test_sleeping_targets_are_woken_one_after_another_where_no_resolver_is_left(
    env: Environment,
):
    """Ten a second: all of them at once would start every pod of the cluster."""
    for number in range(5):
        env.web(replicas=0, name=f"web-{number}")
    loop, woken = asyncio.get_running_loop(), list[tuple[str, float]]()

    def note(gvr: GroupVersionResource, obj: JsonObject, _gone: bool) -> None:
        if gvr.resource == "deployments" and obj["spec"]["replicas"]:
            woken.append((obj["metadata"]["name"], loop.time()))

    async with env.operator():
        await asyncio.sleep(30)
        env.server.on_change.append(note)
        env.list_resolvers()
        await asyncio.sleep(env.settings.resolver_loss_grace + 5)
    first = dict(reversed(woken))
    assert len(first) == 5
    assert all(b - a >= 0.09 for a, b in itertools.pairwise(sorted(first.values()))), first


async def test_requests_to_sleep_and_to_wake_are_acted_on_once(env: Environment):
    env.web(cooldownPeriod=3600)
    async with env.operator():
        await env.becomes("Serve")
        env.change("elastiservices", metadata={"annotations": {SLEEP_ANNOTATION: "now"}})
        assert await env.becomes("Proxy") < 20.0, "only the engage settle is waited for"
        await asyncio.sleep(100)  # triggers are read again a minute after the target fell asleep
        assert SLEEP_ANNOTATION not in env.annotations("elastiservices")
        assert env.state == "Proxy"
        asked = env.clock.now().isoformat().replace("+00:00", "Z")
        env.change("elastiservices", metadata={"annotations": {WAKE_ANNOTATION: asked}})
        await env.becomes("Serve", within=10.0)
        assert WAKE_ANNOTATION not in env.annotations("elastiservices")
        await asyncio.sleep(600)
        assert env.state == "Serve", "the cooldown counts from the wake-up"


async def test_nothing_is_read_or_written_when_nothing_changes(env: Environment):
    env.web()
    async with asleep(env) as operator:
        await asyncio.sleep(30)
        operator.client.requests.clear()
        await asyncio.sleep(240)
        env.list_resolvers(RESOLVER, "10.9.0.2")
        await asyncio.sleep(10)
        sent = [one for one in operator.client.requests if ("watch", "true") not in one.query]
        written = [f"{one.method} {subject(one)}" for one in sent]
        assert written == ["PUT endpointslices"], "another resolver is one write to the slice"


# The end


async def test_deleting_a_sleeping_elastiservice_wakes_before_it_lets_go(env: Environment):
    env.web()
    async with asleep(env):
        assert FINALIZER in env.get("elastiservices")["metadata"]["finalizers"]
        env.delete("elastiservices")
        await asyncio.sleep(60)
        assert env.es is None
        assert env.replicas == 1
        assert not env.published
        assert len(list(env.all("services"))) == 1, "the private Service goes"
    assert env.dark == []


async def test_a_finalizer_waits_two_minutes_for_pods_and_no_longer(env, monkeypatch):
    env.web()
    async with asleep(env):
        monkeypatch.setattr(environment, "POD_START", 3600.0)
        env.delete("elastiservices")
        await asyncio.sleep(115)
        assert env.es is not None
        assert env.replicas == 1
        [waits] = [text for reason, text in env.recorder.told if reason == "DeletionWaits"]
        assert "Deployment shop/web" in waits
        await asyncio.sleep(
            30
        )  # the rest, and until nodes know that the resolver is out of rotation
        assert env.es is None
        assert env.reasons().count("DeletionWaits") == 1


async def test_a_deletion_that_waits_ends_once_it_may_leave_the_target(env, monkeypatch):
    env.web()
    async with asleep(env):
        monkeypatch.setattr(environment, "POD_START", 3600.0)
        env.delete("elastiservices")
        await eventually(lambda: "DeletionWaits" in env.reasons(), timeout=10.0, every=0.05)
        assert env.es is not None
        env.change("elastiservices", spec={"deletionPolicy": "Leave"})
        await eventually(lambda: env.es is None, timeout=60.0, every=0.05)


async def test_a_deletion_that_need_not_wait_has_no_event_about_it(env: Environment):
    env.web()
    async with env.operator():
        await env.becomes("Serve")
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0, every=0.05)
        assert "DeletionWaits" not in env.reasons()


# Pods out of rotation before they are told to stop

DRAIN = {"drain": "Selector"}


async def test_pods_are_out_of_rotation_for_a_settle_before_they_stop(env: Environment):
    env.web(sleep=DRAIN)
    loop = asyncio.get_running_loop()
    moments: dict[str, float] = {}

    def note(write: Request, done: bool) -> None:
        if write.method == "POST":
            return
        moments.setdefault(subject(write), loop.time())
        if subject(write) == "deployments/scale" and not done and env.replicas:
            assert not env.pods_in_rotation
            assert env.resolvers.holds

    async with env.operator() as operator:
        operator.client.on_write = note
        took = await env.becomes("Proxy")
        assert 45.0 <= took < 60.0, (
            "a cooldown of 30 s with the engage settle, and a settle of 15 s"
        )
        assert moments["deployments/scale"] - moments["services"] >= SETTLE
        await asyncio.sleep(1)
        assert env.selector == LABELS, "no pod is left, so that none is listed again"
        assert not env.resolvers.holds
        FakeTrigger.value = 9.0
        assert await env.becomes("Serve", within=30.0)
        assert env.pods_in_rotation
    assert env.dark == []


async def test_without_the_option_a_selector_is_never_written(env: Environment):
    env.web()
    async with asleep(env) as operator:
        written = [write for write in operator.client.writes if "/services" in write]
        assert written == [f"POST /api/v1/namespaces/{NAMESPACE}/services"], "the private Service"


async def test_traffic_while_pods_are_out_of_rotation_brings_them_back(env: Environment):
    env.web(sleep=DRAIN)
    async with env.operator() as operator:
        await eventually(lambda: env.state == "Draining", timeout=600.0, every=0.05)
        env.resolvers.report = BUSY
        await env.becomes("Serve", within=SETTLE + 10)
        assert env.replicas == 1
        assert env.selector == LABELS
        assert env.pods_in_rotation
        text = operator.metrics.render().decode()
        assert 'elasti_parks_total{outcome="TrafficArrived"} 1' in text
    assert env.dark == []


async def test_traffic_at_the_last_moment_is_held_no_longer(env: Environment):
    env.web(sleep=DRAIN)
    # The question that ends the settle finds nothing, the one that holds finds something.
    env.resolvers.report_of = lambda: BUSY if env.resolvers.holds else env.resolvers.report
    async with env.operator():
        await eventually(lambda: "FailedToScale" in env.reasons(), timeout=600.0, every=0.05)
        await env.becomes("Serve", within=10.0)
        assert env.replicas == 1
        assert not env.resolvers.holds
        assert env.selector == LABELS
    assert env.dark == []


async def test_a_selector_that_cannot_be_written_keeps_the_target_awake(env: Environment):
    env.web(sleep=DRAIN)
    async with env.operator() as operator:
        operator.client.on_write = forbid("PATCH", "services")
        await asyncio.sleep(300)
        assert env.replicas == 1
        assert "FailedToScale" in env.reasons()
        operator.client.on_write = None
        await env.becomes("Proxy")
    assert env.dark == []


async def test_a_selector_that_another_writer_restores_ends_the_attempt(env: Environment):
    env.web(sleep=DRAIN)
    async with env.operator() as operator:
        await eventually(lambda: env.state == "Draining", timeout=600.0, every=0.05)
        await asyncio.sleep(3)
        env.change("services", spec={"selector": LABELS})
        await env.becomes("Serve", within=SETTLE)
        assert env.replicas == 1
        text = operator.metrics.render().decode()
        assert 'elasti_parks_total{outcome="NotDrained"} 1' in text
    assert env.dark == []


async def test_a_selector_that_argo_rollouts_leads_is_left_alone(env: Environment):
    # Argo refuses a Service with a key that the template lacks, and stops no pod while it is there.
    env.web(sleep=DRAIN)
    env.pod_labels = {"rollouts-pod-template-hash": "5b8d7f"}
    led = LABELS | env.pod_labels
    env.change("services", spec={"selector": led})
    async with asleep(env) as operator:
        assert "PATCH" not in {
            write.split()[0] for write in operator.client.writes if "/services" in write
        }
        assert env.selector == led
        assert "DrainIgnored" in env.reasons()


@pytest.mark.parametrize("asks_pods", [True, False], ids=["trigger of pods", "other trigger"])
async def test_a_preview_without_pods_lets_the_target_sleep_once_its_other_service_may(
    env: Environment, monkeypatch: pytest.MonkeyPatch, asks_pods: bool
):
    """As Argo Rollouts leaves it after an abort: a Service of a revision that has no pods."""

    async def read(self: FakeTrigger, _metadata: Any, context: ReadContext) -> TriggerReading:
        if asks_pods and not context.pods() and not context.asleep:
            return TriggerReading(error="there is no pod to ask", pending=True)
        return TriggerReading(FakeTrigger.value)

    monkeypatch.setattr(FakeTrigger, "read", read)
    env.web()
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    env.web(name="web-preview", scaleTargetRef=target)
    preview = env.get("services", "web-preview")
    preview["spec"]["selector"] = LABELS | {"rollouts-pod-template-hash": "aborted"}
    env.put("services", preview, "web-preview")
    async with env.operator():
        for _ in range(2):
            await env.becomes("Serve")
            await env.engages()
            # Pods stop once every node knows the resolver; both moments are looked for every 0.05 s.
            assert await env.becomes("Proxy") > SETTLE - 0.1
            assert env.replicas == 0
            env.scale(1)
    assert env.dark == []


@pytest.mark.parametrize("policy", ["ScaleUp", "Leave"])
async def test_pods_are_back_before_a_deleted_elastiservice_is_let_go(env, policy):
    env.web(sleep=DRAIN, deletionPolicy=policy)
    async with env.operator():
        await eventually(lambda: env.state == "Draining", timeout=600.0, every=0.05)
        await asyncio.sleep(3)
        assert not env.pods_in_rotation
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0, every=0.05)
        assert env.selector == LABELS
        assert env.pods_in_rotation
        assert not env.published
    assert env.dark == []


async def test_a_key_that_no_elastiservice_stands_for_is_removed(env: Environment):
    env.web()
    env.change("services", spec={"selector": LABELS | {DRAIN_KEY: "true"}})
    env.delete("elastiservices")
    async with env.operator():
        await eventually(lambda: env.selector == LABELS, timeout=120.0, every=0.5)


async def test_a_key_that_is_found_is_removed_once_pods_are_ready(env: Environment):
    env.web(cooldownPeriod=3600)
    env.change("services", spec={"selector": LABELS | {DRAIN_KEY: "true"}})
    async with env.operator():
        await env.becomes("Serve")
        assert env.selector == LABELS
        assert env.pods_in_rotation


# Requests to sleep


async def test_a_request_to_sleep_stands_where_the_target_was_woken_and_status_is_behind(
    env: Environment,
):
    env.web()
    async with asleep(env):
        pass
    # Another replica woke it, and the next leader finds the status of before.
    env.scale(1, manager="elasti")
    FakeTrigger.value = 9.0
    env.change("elastiservices", metadata={"annotations": {SLEEP_ANNOTATION: "now"}})
    async with env.operator():
        await eventually(lambda: env.replicas == 0, timeout=60.0, every=0.05)
        await env.becomes("Proxy")
        assert env.replicas == 0
    assert env.dark == []


# Pods that are still ending


def rendered(operator: Operator) -> list[str]:
    return operator.metrics.render().decode().splitlines()


@pytest.mark.parametrize("by", ["a request", "an annotation", "a trigger"])
async def test_a_deployment_that_recreates_wakes_when_its_pods_are_gone(env: Environment, by: str):
    env.pod_end = 40.0
    env.web(strategy="Recreate")
    beside: list[int] = []

    def count(gvr: GroupVersionResource, obj: JsonObject, _gone: bool) -> None:
        if gvr.resource == "deployments" and obj["spec"]["replicas"]:
            beside.append(len([*env.all("pods")]))

    async with asleep(env) as operator:
        env.server.on_change.append(count)
        loop = asyncio.get_running_loop()
        began = loop.time()
        match by:
            case "a request":
                reply = await operator.waker.wake(NAMESPACE, "web", "10.0.0.9")
                assert reply.outcome is WakeOutcome.WAITS
            case "an annotation":
                env.change("elastiservices", metadata={"annotations": {WAKE_ANNOTATION: "now"}})
            case _:
                FakeTrigger.value = 9.0
        await asyncio.sleep(20)
        assert env.replicas == 0
        assert env.es is not None
        conditions = {one["type"]: one["message"] for one in env.es["status"]["conditions"]}
        assert PODS_ENDING in conditions["MaySleep"]
        await eventually(lambda: env.replicas == 1, timeout=60.0, every=0.05)
        assert loop.time() - began < 41.0
        await env.becomes("Serve")
        again = await operator.waker.wake(NAMESPACE, "web", "10.0.0.9")
        assert again.outcome is WakeOutcome.ALREADY_UP
        cause = {"a request": "Request", "an annotation": "Manual", "a trigger": "Trigger"}[by]
        counted = [line for line in rendered(operator) if line.startswith("elasti_wakes_total{")]
        assert counted == [f'elasti_wakes_total{{cause="{cause}"}} 1']
    assert beside[0] == 0
    assert env.dark == []
    assert {"FailedToScale", "ScaleContested"}.isdisjoint(env.reasons())


async def test_other_deployments_wake_beside_pods_that_are_ending(env: Environment):
    env.pod_end = 40.0
    env.web()
    async with asleep(env) as operator:
        reply = await operator.waker.wake(NAMESPACE, "web", "10.0.0.9")
        assert (reply.outcome, env.replicas) == (WakeOutcome.SCALING, 1)
        assert len([*env.all("pods")]) == 1


# Other writers


async def test_a_status_that_names_the_port_of_another_is_corrected_and_reported(
    env: Environment, monkeypatch: pytest.MonkeyPatch
):
    book = PortBook()
    book.claim(PortOwner("2020-01-01T00:00:00Z", "other", "elsewhere"), {80: 23456})
    monkeypatch.setattr(leader, "PortBook", lambda *_range: book)
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        ports = env.status["resolverPorts"]
        env.change(
            "elastiservices", status={"resolverPorts": [{"port": 80, "resolverPort": 23456}]}
        )
        await eventually(lambda: env.status["resolverPorts"] == ports, timeout=60.0, every=0.05)
        assert env.reasons().count("PortContested") == 1
        assert "23456" in env.messages()


async def test_parks_that_another_writer_undoes_end_in_a_backoff(env: Environment):
    env.web()
    async with env.operator():
        for _ in range(3):
            await env.becomes("Proxy")
            env.scale(2, manager="argocd")
            await env.becomes("Serve")
        assert "ScaleContested" in env.reasons()
        contested = next(
            message for reason, message in env.recorder.told if reason == "ScaleContested"
        )
        assert "argocd" in contested
        await asyncio.sleep(100)
        assert env.state == "Serve", "it is left alone for twice the longer of cooldown and minute"
        await env.becomes("Proxy")
    assert env.dark == []


async def test_parks_that_a_writer_without_a_name_undoes_end_in_a_backoff_too(env: Environment):
    """Who it was is found out before the next sleep: no wake-up by us is in status since the park."""
    env.web()
    async with env.operator():
        for _ in range(3):
            await env.becomes("Proxy")
            env.change("deployments", spec={"replicas": 2}, metadata={"managedFields": []})
            await env.becomes("Serve")
        await eventually(lambda: "ScaleContested" in env.reasons(), timeout=300.0, every=0.05)
    assert env.dark == []


async def test_a_target_that_changes_before_the_park_is_not_parked(env: Environment):
    env.web()
    async with env.operator():
        await env.becomes("Serve")
        await env.engages()
        env.scale(3)
        await eventually(lambda: not env.published, timeout=600.0, every=0.05)
        assert "FailedToScale" in env.reasons()
        assert env.replicas == 3
    assert env.dark == []


# Autoscalers


async def test_keda_is_paused_for_the_sleep_and_resumed_by_the_wake(env: Environment):
    env.put("scaledobjects", {})
    env.web(autoscaler=KEDA)
    async with asleep(env) as operator:
        assert env.annotations("scaledobjects") == OURS
        assert env.annotations("elastiservices")[PAUSED_OBJECTS_ANNOTATION] == "web"
        FakeTrigger.value = 9.0
        await operator.waker.wake(NAMESPACE, "web")
        await env.becomes("Serve")
        await asyncio.sleep(5)
        assert env.annotations("scaledobjects") == {}
        assert PAUSED_OBJECTS_ANNOTATION not in env.annotations("elastiservices")


@pytest.mark.parametrize("named", [True, False])
async def test_keda_scales_up_what_sleeps_where_it_was_not_paused_before(
    env: Environment, named: bool
):
    env.put("scaledobjects", {})
    env.web(autoscaler=KEDA if named else None)

    def scale(gvr: GroupVersionResource, obj: JsonObject, _gone: bool) -> None:
        # As it is in this moment: a pause that comes later is too late.
        is_paused = PAUSED in env.annotations("scaledobjects")
        if gvr.resource == "deployments" and not obj["spec"]["replicas"] and not is_paused:
            asyncio.get_running_loop().call_later(1.0, env.scale, 1, "keda-operator")

    env.server.on_change.append(scale)
    async with env.operator():
        await asyncio.sleep(300)
        assert (env.state == "Proxy") is named
        assert ("ScaleContested" in env.reasons()) is not named
    assert env.dark == []


async def test_keda_that_does_not_pause_keeps_the_target_awake(env: Environment):
    env.put("scaledobjects", {})
    env.keda_pauses = False
    env.web(autoscaler=KEDA)
    async with env.operator():
        await asyncio.sleep(120)
        assert env.replicas == 1
        assert "ScaledObject" in env.messages()
        FakeTrigger.value = 9.0
        await asyncio.sleep(60)
        assert env.annotations("scaledobjects") == {}


async def test_a_resume_that_fails_is_tried_again_ever_later(env: Environment):
    env.put(
        "scaledobjects", {"metadata": {"name": "web", "namespace": NAMESPACE, "annotations": OURS}}
    )
    env.web(autoscaler=KEDA)
    FakeTrigger.value = 9.0
    async with env.operator() as operator:
        operator.client.on_write = forbid("PATCH", "scaledobjects")
        await asyncio.sleep(300)
        failures = env.reasons().count("FailedToResumeKEDA")
        assert 8 <= failures <= 14, "half a second, doubled, at most a minute"
        operator.client.on_write = None
        await asyncio.sleep(61)
        assert env.annotations("scaledobjects") == {}


async def test_a_resume_that_failed_is_retried_after_suspension(env: Environment):
    env.put("scaledobjects", {})
    env.web(autoscaler=KEDA)
    async with asleep(env) as operator:
        operator.client.on_write = forbid("PATCH", "scaledobjects")
        env.change("elastiservices", spec={"suspend": True})
        await asyncio.sleep(300)
        assert env.replicas == 1
        failures = env.reasons().count("FailedToResumeKEDA")
        assert 8 <= failures <= 14, "half a second, doubled, at most a minute"
        operator.client.on_write = None
        await asyncio.sleep(61)
        assert env.annotations("scaledobjects") == {}


async def test_one_that_is_no_longer_named_is_resumed_by_the_next_leader(env: Environment):
    env.put("scaledobjects", {})
    env.web(autoscaler=KEDA)
    async with asleep(env):
        pass
    env.change("elastiservices", spec={"autoscaler": None})
    FakeTrigger.value = 9.0
    async with env.operator():
        await env.becomes("Serve")
        await asyncio.sleep(5)
        assert env.annotations("scaledobjects") == {}


class Rota(Autoscaler):
    """An autoscaler that only this test knows."""

    type = "hpa"  # the API names the types; this one takes the place of one of them
    pauses = True
    calls: ClassVar[list[str]] = []

    async def pause(self, namespace: str, name: str) -> str:
        self.calls.append(f"pause {namespace}/{name}")
        return ""

    async def resume(self, namespace: str, name: str) -> None:
        self.calls.append(f"resume {namespace}/{name}")


async def test_a_new_autoscaler_is_one_class(env: Environment):
    Rota.calls.clear()
    env.web(autoscaler={"type": "hpa", "name": "nights"})
    async with env.operator(autoscalers=(Rota,)) as operator:
        await env.becomes("Proxy")
        assert Rota.calls == [f"resume {NAMESPACE}/nights", f"pause {NAMESPACE}/nights"]
        assert env.annotations("elastiservices")[PAUSED_OBJECTS_ANNOTATION] == "hpa/nights"
        await operator.waker.wake(NAMESPACE, "web")
        FakeTrigger.value = 9.0
        await env.becomes("Serve")
        assert Rota.calls[-1] == f"resume {NAMESPACE}/nights"
    # A restart finds it by the annotation, also where it is named no more.
    FakeTrigger.value = 0.0
    async with env.operator(autoscalers=(Rota,)):
        await env.becomes("Proxy")
    env.change("elastiservices", spec={"autoscaler": None})
    Rota.calls.clear()
    FakeTrigger.value = 9.0
    async with env.operator(autoscalers=(Rota,)):
        await env.becomes("Serve")
        assert Rota.calls == [f"resume {NAMESPACE}/nights"]


# Crashes


async def life(env: Environment) -> None:
    """Sleep, wake by a trigger, be deleted while asleep again."""
    await env.becomes("Proxy")
    FakeTrigger.value = 9.0
    await env.becomes("Serve")
    FakeTrigger.value = 0.0
    await env.becomes("Proxy")
    env.delete("elastiservices")
    await eventually(lambda: env.es is None, timeout=600.0, every=0.05)


async def test_what_is_in_the_caches_is_never_changed(env: Environment, monkeypatch):
    """It is shared by all who read it."""
    made: list[MutationDetector] = []

    def detector() -> MutationDetector:
        made.append(MutationDetector(retain=3600.0))
        return made[-1]

    watching = functools.partial(SharedInformerFactory, mutation_detector=detector)
    monkeypatch.setattr(informer_manager, "SharedInformerFactory", watching)
    env.put("scaledobjects", {})
    env.web(autoscaler=KEDA, sleep={"drain": "Selector"})
    async with env.operator():
        await life(env)
        assert sum(map(len, made)) > 20
        for one in made:
            one.check()


async def test_a_former_leader_does_not_end_the_park_that_it_began(
    env: Environment, monkeypatch: pytest.MonkeyPatch
):
    """The manager asks twice, at once: when the lease is lost, and when the election has ended."""
    env.web()
    asked, answered = asyncio.Event(), asyncio.Event()
    ask = env.resolvers.activity

    async def late(*args: Any, **options: Any) -> ActivityReport | None:
        asked.set()
        await answered.wait()
        return await ask(*args, **options)

    async with env.operator() as former:
        await env.engages()
        # The last question before the park, not one of the settle.
        await asyncio.sleep(env.settings.engage_settle - 0.2)
        monkeypatch.setattr(env.resolvers, "activity", late)
        await asyncio.wait_for(asked.wait(), 60)
        former.lose_the_lease()
        await asyncio.sleep(0.01)
        former.lose_the_lease()
        answered.set()
        before = len(former.client.writes)
        await asyncio.sleep(60)
        assert len(former.client.writes) == before
        assert env.replicas == 1


@pytest.mark.parametrize(
    ("drain", "number"),
    [
        (drain, number)
        for drain, last in (("None", 28), ("Selector", 36))
        for number in range(1, last + 1)
    ],
)
async def test_a_crash_after_any_write_is_made_good_by_the_next_leader(
    env: Environment, drain: str, number: int
):
    """Whatever the writes so far left behind, the state is found again and traffic goes on."""
    env.put("scaledobjects", {})
    env.web(autoscaler=KEDA, sleep={"drain": drain})
    story = asyncio.create_task(life(env))
    async with env.operator() as first:
        first.kill_at(number)
        killed = asyncio.create_task(first.killed.wait())
        await asyncio.wait([story, killed], return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
    if story.done():
        pytest.skip(f"a whole life takes {len(first.client.writes)} writes")
    async with env.operator():
        await story
        await asyncio.sleep(5)
    assert env.dark == []
    assert env.replicas == 1
    assert not env.published
    assert env.selector == LABELS
    assert env.annotations("scaledobjects") == {}
    assert [service["metadata"]["name"] for service in env.all("services")] == ["web"]


# A range of ports that changes


def listed_port(env: Environment) -> int:
    return int(env.get("endpointslices", slice_names("web")["IPv4"])["ports"][0]["port"])


@pytest.mark.parametrize("number", [None, *range(1, 5)])
async def test_another_range_moves_what_sleeps_and_empties_no_rotation(
    env: Environment, number: int | None
):
    """Also if an operator dies after any write of the move, and if one of the former range leads again."""
    env.web()
    async with asleep(env):
        former = listed_port(env)
    ranges = (40000, 40999), env.settings.port_range
    ports = [former]
    for first, last in ranges:
        env.settings = dataclasses.replace(env.settings, port_range=(first, last))
        async with env.operator() as mover:
            if number is not None:
                mover.kill_at(number)
            moved = asyncio.create_task(
                eventually(lambda: listed_port(env) in range(first, last + 1), timeout=60.0)  # noqa: B023
            )
            killed = asyncio.create_task(mover.killed.wait())
            await asyncio.wait([moved, killed], return_when=asyncio.FIRST_COMPLETED)
            killed.cancel()
        async with env.operator():
            await moved
            await asyncio.sleep(5)
            assert env.status["resolverPorts"][0]["resolverPort"] == listed_port(env)
        ports.append(listed_port(env))
        assert str(ports[-2]) in quarantined(env)
    assert len({*ports}) == 3, "what was left is quarantined, also outside of the range"
    assert (env.state, env.replicas) == ("Proxy", 0)
    assert env.dark == []


def quarantined(env: Environment) -> dict[str, str]:
    found = env.server.find(
        "v1/configmaps", QUARANTINE_CONFIG_MAP, namespace=env.settings.operator_namespace
    )
    return found["data"] if found else {}


async def test_resolvers_that_do_not_open_the_new_port_keep_the_former_one_in_rotation(env):
    env.web()
    async with asleep(env):
        former = listed_port(env)
    env.settings = dataclasses.replace(env.settings, port_range=(40000, 40999))
    env.resolvers.answers = False
    async with env.operator():
        await asyncio.sleep(120)
        assert (listed_port(env), env.state) == (former, "Proxy")
        env.resolvers.answers = True
        await eventually(lambda: listed_port(env) >= 40000, timeout=60.0)
    assert env.dark == []


# Names that cannot be, in objects that an older definition let pass

TRAVERSAL = "../../x"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


@pytest.mark.parametrize(
    "spec",
    [
        {"service": "alice/web"},
        {"service": "web\r\nx"},
        {"service": "web\n"},
        {"autoscaler": KEDA | {"name": ".."}},
        {"autoscaler": KEDA | {"name": TRAVERSAL}},
        {"scaleTargetRef": TARGET | {"name": TRAVERSAL}},
        {"scaleTargetRef": TARGET | {"apiVersion": "../v1"}},
        {"scaleTargetRef": TARGET | {"kind": "../Secret"}},
    ],
)
async def test_a_name_that_cannot_be_is_reported_and_let_go(env: Environment, spec: Any):
    env.web(**spec)
    async with env.operator():
        await eventually(lambda: "InvalidSpec" in env.reasons(), timeout=60.0, every=0.05)
        await eventually(
            lambda: "InvalidSpec" in str(env.es and env.es.get("status")), timeout=60.0, every=0.05
        )
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0, every=0.05)


async def test_an_annotation_with_names_that_cannot_be_keeps_no_finalizer(env: Environment):
    env.web()
    env.change("elastiservices", metadata={"annotations": {PAUSED_OBJECTS_ANNOTATION: ".."}})
    async with env.operator():
        await env.becomes("Proxy")
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0, every=0.05)


async def test_an_object_that_validation_fails_for_delays_no_other(env, monkeypatch):
    def fail(_schedule: str) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("elasti.api.validation._schedule_complaint", fail)
    env.web(enabledPeriod={"schedule": "0 0 * * *"})
    async with env.operator():
        await eventually(lambda: "InvalidSpec" in env.reasons(), timeout=5.0, every=0.05)
