"""A person's request to sleep: what it skips, what it never skips, and how it ends."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
from tests.controllers.support import eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.states import service_state

from elasti.api.conditions import Obstacle
from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.api.wire import ActivityReport
from elasti.operator.handover.machine import Activity, State
from elasti.operator.handover.observe import Facts
from elasti.operator.handover.requests import (
    SleepRequest,
    ending,
    is_in_force,
)
from elasti.operator.handover.state import ServiceState
from elasti.operator.idleness.decide import Decision, Verdict
from kubeloop.objects.core import EndpointConditions, ServiceEndpoint
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
        resolvers=(ServiceEndpoint(("10.1.0.1",), EndpointConditions(ready=True)),),
        decision=Decision(Verdict.SLEEP, "asked to sleep"),
    )
    return dataclasses.replace(base, **changes)


def remembering(state: State | None, **changes: Any) -> ServiceState:
    return service_state(state, **{"sleep": SleepRequest(1000.0), **changes})


def after(seen: Facts, known: ServiceState, *, now: float = 1010.0, active: bool = False) -> Any:
    return ending(seen, known, now=now, cooldown=900.0, triggers_active=active)


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
    (facts(target_problem="there is none"), {"state": None}, "not in order: there is none"),
    (facts(resolvers=()), {}, "no resolver is ready"),
    (facts(decision=Decision(Verdict.STAY, "no", Obstacle("X", "b"))), {}, "b"),
    (
        facts(decision=Decision(Verdict.WAKE, "", Obstacle("OutsidePeriod", "outside"))),
        {},
        "outside",
    ),
    (facts(), {"last_attempt": 1005.0, "attempt_ended": "traffic arrived"}, "traffic arrived"),
    (facts(), {"state": State.WAKING, "activity": Activity.BUSY}, "connections wait"),
    (facts(), {"sleep": SleepRequest(1000.0, superseded=True)}, "a wake-up was asked for"),
]


@pytest.mark.parametrize(("seen", "changes", "words"), REFUSALS)
def test_what_cannot_be_done_is_refused_with_the_reason(seen: Facts, changes: Any, words: str):
    ended = after(seen, remembering(**{"state": State.SERVE, **changes}))
    assert words in ended


def test_what_takes_too_long_is_given_up():
    assert after(facts(), remembering(State.ENGAGING), now=1899.0) is None
    ended = after(facts(), remembering(State.ENGAGING), now=1900.0)
    assert ended == "it could not be done in time"


def test_asleep_it_quiets_the_triggers_until_they_are_calm():
    known = remembering(State.PARKING)
    known.enter(State.PROXY, "parked")
    known.requests.note_asleep()
    assert after(facts(), known, active=True) is None
    assert is_in_force(known)
    assert after(facts(), known, active=False) == ""
    assert after(facts(), known, active=True, now=1900.0) == ""


def test_once_fulfilled_it_does_not_put_the_target_to_sleep_again():
    known = remembering(State.PARKING)
    known.enter(State.PROXY, "parked")
    known.requests.note_asleep()
    known.enter(State.WAKING, "wanted")
    assert not is_in_force(known)
    assert after(facts(), known, active=True) == ""


def test_a_wake_up_is_stronger():
    known = remembering(State.ENGAGING)
    known.requests.want_wake(0.0)
    assert not is_in_force(known)


# On a cluster


async def ask(rig: Rig, name: str = "web", **others: str) -> None:
    body = {"metadata": {"annotations": {**ASKED, **others}}}
    await rig.elastiservices.patch(name, MergePatch(body))


async def is_cleared(rig: Rig) -> bool:
    found = await rig.elastiservices.get("web")
    return SLEEP_ANNOTATION not in (found["metadata"].get("annotations") or {})


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
        await eventually(lambda: is_cleared(rig))
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
        assert "traffic arrived" in found["message"]
        (event,) = await eventually(lambda: events(rig, "SleepRefused"))
        assert event["message"] == ("Deployment web was not put to sleep as asked: traffic arrived")


async def test_without_a_resolver_the_request_is_refused(rig: Rig, prometheus: FakePrometheus):
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    await rig.list_resolvers()
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        (event,) = await eventually(lambda: events(rig, "SleepRefused"))
        assert "no resolver is ready" in event["message"]


async def test_outside_the_enabled_period_the_request_is_refused(rig: Rig):
    await rig.web(enabledPeriod={"schedule": "0 0 29 2 *", "duration": "1m"})
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        assert await rig.replicas() == 1
        assert (await rig.condition("MaySleep"))["reason"] == "OutsidePeriod"


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
        (event,) = await eventually(lambda: events(rig, "SleepRefused"))
        assert "ElastiService api has the same target" in event["message"]


async def test_an_autoscaler_that_cannot_be_paused_refuses(rig: Rig):
    await rig.web(cooldownPeriod=900, autoscaler={"type": "keda", "name": "nobody"})
    async with rig.operator():
        await rig.becomes("Serve")
        await ask(rig)
        await eventually(lambda: is_cleared(rig))
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        (event,) = await eventually(lambda: events(rig, "SleepRefused"))
        assert "the target could not be parked" in event["message"]
        (detail,) = await eventually(lambda: events(rig, "FailedToScale"))
        assert "there is no ScaledObject nobody" in detail["message"]


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


async def test_a_request_survives_a_change_of_leaders(rig: Rig, prometheus: FakePrometheus):
    await rig.web(cooldownPeriod=900, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")
    await ask(rig)
    async with rig.operator():
        await rig.becomes("Proxy")
        await eventually(lambda: is_cleared(rig))


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
