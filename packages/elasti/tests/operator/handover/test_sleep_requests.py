"""A person's request to sleep: what it skips, what it never skips, and how it ends."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from typing import Any

import pytest
from tests.controllers.support import eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.states import service_state

from elasti.api.conditions import Obstacle
from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.states import State
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef, ScaleTrigger
from elasti.api.wire import ActivityReport
from elasti.operator.handover.status_report import SleepEnd, sleep_end
from elasti.operator.idleness.decide import Evidence
from elasti.operator.model.facts import Decision, Facts, Verdict
from elasti.operator.model.requests import SleepRequest, WakeOrigin
from elasti.operator.model.state import Activity, ServiceState, is_in_force
from elasti.operator.model.targets import UpdateObjInfo
from elasti.triggers.reader import TriggerReading
from kubeloop.objects.core import EndpointConditions, Service, ServiceEndpoint
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

pytestmark = pytest.mark.virtual_time

ASKED = {SLEEP_ANNOTATION: "2030-01-01T00:00:00.000000Z"}


# The request by itself


def facts(**changes: Any) -> Facts:
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    base = Facts(
        es=ElastiService(ElastiServiceSpec(ref, "web")),
        now=0.0,
        service=Service(),
        target=UpdateObjInfo(spec_replicas=1, uid="t", version="1"),
        resolvers=(ServiceEndpoint(("10.1.0.1",), EndpointConditions(ready=True)),),
        decision=Decision(Verdict.SLEEP, "asked to sleep"),
    )
    return dataclasses.replace(base, **changes)


def remembering(state: State | None, **changes: Any) -> ServiceState:
    return service_state(state, **{"sleep": SleepRequest(1000.0), **changes})


def after(
    seen: Facts, known: ServiceState, *evidence: Evidence, now: float = 1010.0
) -> SleepEnd | None:
    return sleep_end(seen, known, evidence, now=now, cooldown=900.0)


def test_a_request_is_noted_once_and_may_be_taken_back():
    known = service_state(State.SERVE)
    known.requests.take_in(ASKED, 5.0)
    assert known.requests.sleep == SleepRequest(5.0)
    assert is_in_force(known)
    known.requests.sleep = None
    known.requests.take_in(ASKED, 6.0)
    assert known.requests.sleep is None
    known.requests.take_in({}, 7.0)
    known.requests.take_in(ASKED, 8.0)
    assert known.requests.sleep == SleepRequest(8.0)
    known.requests.take_in(None, 9.0)
    assert known.requests.sleep is None


@pytest.mark.parametrize("state", [State.ENGAGING, State.PARKING, State.SERVE, State.WAKING])
def test_it_stays_in_force_while_the_hand_over_goes_on(state: State):
    known = remembering(state)
    assert after(facts(), known) is None
    assert is_in_force(known)


REFUSALS = [
    (facts(target=None, target_problem="there is none"), {"state": None}, "TargetMissing"),
    (facts(resolvers=()), {}, "NoResolver"),
    (facts(decision=Decision(Verdict.STAY, "no", Obstacle("X", "b"))), {}, "X"),
    (
        facts(decision=Decision(Verdict.WAKE, "", Obstacle("OutsidePeriod", "o"))),
        {},
        "OutsidePeriod",
    ),
    (
        facts(),
        {"last_attempt": 1005.0, "attempt_ended": Obstacle("TrafficArrived", "t")},
        "TrafficArrived",
    ),
    (facts(), {"state": State.WAKING, "activity": Activity.BUSY}, "TrafficArrived"),
    (facts(), {"sleep": SleepRequest(1000.0, superseded=True)}, "Superseded"),
]


@pytest.mark.parametrize(("seen", "changes", "reason"), REFUSALS)
def test_what_cannot_be_done_is_refused_with_the_reason(seen: Facts, changes: Any, reason: str):
    ended = after(seen, remembering(**{"state": State.SERVE, **changes}))
    assert ended is not None
    assert ended.refusal is not None
    assert ended.refusal.reason == reason


def test_what_takes_too_long_is_given_up():
    assert after(facts(), remembering(State.ENGAGING), now=1899.0) is None
    ended = after(facts(), remembering(State.ENGAGING), now=1900.0)
    assert ended is not None
    assert ended.refusal is not None
    assert ended.refusal.reason == "Expired"


def with_trigger() -> Facts:
    spec = ElastiServiceSpec(
        ScaleTargetRef("apps/v1", "Deployment", "web"), "web", given_triggers=(ScaleTrigger("x"),)
    )
    return facts(es=ElastiService(spec))


def shown(value: float, *, at: float, span: float = 0.0, error: str = "") -> Evidence:
    return Evidence(1.0, TriggerReading(value, error, span=span), read_at=at)


LAGGING = [
    (),
    (shown(9.0, at=1200.0),),
    (shown(0.0, at=1009.0),),
    (shown(0.0, at=1060.0),),
    (shown(0.0, at=1200.0, span=150.0),),
    (shown(math.nan, at=1200.0, error="no"),),
]


@pytest.mark.parametrize("evidence", LAGGING)
def test_asleep_it_quiets_triggers_until_each_shows_the_sleep(evidence: tuple[Evidence, ...]):
    known = remembering(State.PARKING)
    known.enter(State.PROXY, "parked")
    known.requests.note_asleep(1010.0)
    assert after(with_trigger(), known, *evidence, now=1200.0) is None
    assert is_in_force(known)
    assert after(with_trigger(), known, *evidence, now=1900.0) == SleepEnd()
    assert after(with_trigger(), known, shown(0.0, at=1080.0, span=5.0)) == SleepEnd()


def test_without_triggers_it_is_over_when_the_target_sleeps():
    known = remembering(State.PROXY)
    known.requests.note_asleep(1010.0)
    assert after(facts(), known) == SleepEnd()


def test_once_fulfilled_it_does_not_put_the_target_to_sleep_again():
    known = remembering(State.PARKING)
    known.enter(State.PROXY, "parked")
    known.requests.note_asleep(1010.0)
    known.enter(State.WAKING, "wanted")
    assert not is_in_force(known)
    assert after(with_trigger(), known, shown(9.0, at=1200.0)) == SleepEnd()


def test_a_wake_up_is_stronger():
    known = remembering(State.ENGAGING)
    known.requests.want_wake(0.0, WakeOrigin.request())
    assert not is_in_force(known)


# On a cluster


async def ask(rig: Rig, name: str = "web", **others: str) -> None:
    body = {"metadata": {"annotations": {**ASKED, **others}}}
    await rig.elastiservices.patch(name, MergePatch(body))


async def is_cleared(rig: Rig) -> bool:
    found = await rig.elastiservices.get("web")
    return SLEEP_ANNOTATION not in (found["metadata"].get("annotations") or {})


async def refusal(rig: Rig) -> str:
    found: JsonObject = (await rig.elastiservices.get("web"))["status"]["sleepRequest"]
    assert (found["request"], found["outcome"]) == (ASKED[SLEEP_ANNOTATION], "Refused")
    return str(found["reason"])


async def is_ready(rig: Rig) -> bool:
    found = await rig.cluster.list("slices", selector="kubernetes.io/service-name=web")
    return any(one["conditions"]["ready"] for piece in found for one in piece["endpoints"])


async def events(rig: Rig, reason: str) -> list[JsonObject]:
    return [event for event in await rig.cluster.list("events") if event["reason"] == reason]


async def test_a_busy_target_in_its_cooldown_sleeps_when_asked(
    rig: Rig, prometheus: FakePrometheus
):
    prometheus.value = 7.0
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        assert await rig.addresses() == [rig.resolver.address]
        # It went through the hand-over: the resolvers were asked before and after the park.
        assert len(rig.resolver.asked) >= 2
        # The metric still shows the use of before; it does not wake, and the request waits for it.
        seen = len(prometheus.queries)
        await eventually(lambda: _more(prometheus, seen + 6))
        assert await rig.state() == "Proxy"
        prometheus.value = 0.0
        await eventually(lambda: is_cleared(rig), timeout=120.0)
        # From then on it is a trigger like any other.
        prometheus.value = 7.0
        await rig.becomes("Serve")


async def test_traffic_during_the_settle_refuses_the_request(rig: Rig, prometheus: FakePrometheus):
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    key = (rig.namespace, "web")
    rig.resolver.reports[key] = ActivityReport(held=0, open=1, last_arrival_age=0.1)
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1
        found = await rig.condition("MaySleep")
        assert (found["status"], found["reason"]) == ("False", "AttemptEnded")
        assert await eventually(lambda: events(rig, "SleepRefused"))
        assert await refusal(rig) == "TrafficArrived"


async def test_without_a_resolver_the_request_is_refused(rig: Rig, prometheus: FakePrometheus):
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    await rig.list_resolvers()
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        assert await refusal(rig) == "NoResolver"


async def test_outside_the_enabled_period_the_request_is_refused(rig: Rig):
    await rig.web(enabledPeriod={"schedule": "0 0 29 2 *", "duration": "1m"})
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1
        assert await refusal(rig) == "OutsidePeriod"


async def test_another_elastiservice_on_the_target_may_refuse(rig: Rig, prometheus: FakePrometheus):
    prometheus.value = 7.0
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    await rig.service("api", selector={"app": "web"})
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    await rig.elastiservice("api", scaleTargetRef=target, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")
        await rig.becomes("Serve", "api")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1
        assert await refusal(rig) == "SharedTarget"


async def test_an_autoscaler_that_cannot_be_paused_refuses(rig: Rig):
    await rig.web(cooldownPeriod=900, autoscaler={"type": "keda", "name": "nobody"})
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        assert await refusal(rig) == "Refused"
        assert await eventually(lambda: events(rig, "FailedToScale"))


async def test_a_wake_request_beside_it_wins(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        await ask(rig, **{WAKE_ANNOTATION: "2030-01-01T00:00:00Z"})
        await rig.becomes("Serve")
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1


async def test_a_target_that_never_gets_ready_sleeps_when_asked(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=1, cooldownPeriod=900)
    async with rig.operator():
        await rig.becomes("Waking")
        await eventually(rig.addresses)
        await ask(rig)
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        await eventually(lambda: is_cleared(rig))


async def test_a_client_that_left_before_the_request_does_not_refuse_it(rig: Rig):
    left_at = time.monotonic()

    class Left(dict[tuple[str, str], ActivityReport | None]):
        def get(self, *_: object) -> ActivityReport:
            return ActivityReport(held=0, open=0, last_arrival_age=time.monotonic() - left_at)

    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=1, cooldownPeriod=900)
    async with rig.operator():
        await rig.becomes("Waking")
        await eventually(rig.addresses)
        rig.resolver.reports, left_at = Left(), time.monotonic()
        await ask(rig)
        await rig.becomes("Proxy")


async def test_a_client_that_refused_an_earlier_request_does_not_refuse_one_when_pods_are_ready(
    rig: Rig,
):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=1, cooldownPeriod=900)
    key = (rig.namespace, "web")
    rig.resolver.reports[key] = ActivityReport(held=1, open=1, last_arrival_age=0.1)
    async with rig.operator(release_settle=5.0):
        await rig.becomes("Waking")
        await eventually(rig.addresses)
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await refusal(rig) == "TrafficArrived"
        rig.resolver.reports[key] = ActivityReport(held=0, open=0, last_arrival_age=60.0)
        rig.cluster.kubelet.may_be_ready = lambda pod: True
        rig.cluster.kubelet.look_again()
        await eventually(lambda: is_ready(rig))
        assert await rig.state() == "Waking"
        await ask(rig, **{SLEEP_ANNOTATION: "2030-01-01T00:01:00.000000Z"})
        await rig.becomes("Proxy")


async def test_a_request_survives_a_change_of_leaders(rig: Rig, prometheus: FakePrometheus):
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")
    await ask(rig)
    async with rig.operator():
        await rig.becomes("Proxy")
        await eventually(lambda: is_cleared(rig), timeout=120.0)


async def test_status_says_why_it_does_not_sleep(rig: Rig, prometheus: FakePrometheus):
    prometheus.value = 7.0
    await rig.web(triggers=[prometheus.trigger()])

    async def says(reason: str) -> bool:
        return (await rig.condition("MaySleep")).get("reason") == reason

    async with rig.operator():
        await eventually(lambda: says("InUse"))
        prometheus.value = 0.0
        await eventually(lambda: says("Asleep"))


async def test_a_trigger_that_goes_up_and_down_costs_no_write(rig: Rig, prometheus: FakePrometheus):
    prometheus.value = 7.0
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")

        async def settled() -> bool:
            # Healthy is the last word of the first polls.
            return (await rig.condition("TriggersHealthy")).get("reason") == "Healthy"

        await eventually(settled)
        before = await rig.elastiservices.get("web")
        for turn in range(6):
            prometheus.value = 7.0 * (turn % 2)
            wanted = len(prometheus.queries) + 4
            await eventually(functools.partial(_more, prometheus, wanted))
        after = await rig.elastiservices.get("web")
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def _more(prometheus: FakePrometheus, queries: int) -> bool:
    return len(prometheus.queries) >= queries
