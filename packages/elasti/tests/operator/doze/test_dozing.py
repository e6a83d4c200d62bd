"""Dozes in virtual time, with the whole operator: what is written, when, and what a crash leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from typing import Any, cast

import msgspec
import pytest
from tests.operator.doze.dozing import ORIGINAL, DozingCluster, container
from tests.operator.environment import NAMESPACE, FakeTrigger, subject

from elasti.api.names import DOZE_GUARD, KEEP_AWAKE_ANNOTATION, WAKE_ANNOTATION
from elasti.api.types import ElastiService
from elasti.operator.doze.dozer import Dozer
from elasti.operator.doze.machine import Resize
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.model.state import ServiceState
from elasti.operator.rbac import DOZE_RULES
from elasti.operator.scale_handler import ScaleHandler
from kubeloop.client.errors import Conflict, KubeError
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.virtual_time import VirtualClock
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

DOZED = "1m"


@pytest.fixture(autouse=True)
def _trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def refuse_growth(write: Any, done: bool) -> None:
    """A quota that is used up."""
    if subject(write) == "pods/resize" and not done and b"900m" in (write.body or b""):
        raise api_error(403, "Forbidden", "exceeded quota: team, requested: cpu=899m")


async def test_requests_shrink_after_the_cooldown_and_grow_back_on_use():
    env = DozingCluster()
    env.dozes(2)
    async with env.operator():
        await env.reaches("Dozing")
        assert set(env.requests.values()) == {DOZED}
        assert env.replicas == 2
        assert not env.published
        (entry,) = env.doze["containers"]
        assert entry == {"template": "abc", "name": "app", "cpu": ORIGINAL, "dozedCpu": DOZED}
        await eventually(lambda: "capacity" in env.status, timeout=5)
        assert env.status["capacity"]["cpuMillicores"] == 2 * 899
        assert env.condition("MaySleep")["reason"] == "Dozing"
        # Usage is counted in whole seconds.
        await asyncio.sleep(2)
        began = asyncio.get_running_loop().time()
        FakeTrigger.value = 9.0
        await eventually(lambda: set(env.requests.values()) == {ORIGINAL}, timeout=30, every=0.01)
        # A round of triggers is five seconds; nothing else is waited for.
        assert asyncio.get_running_loop().time() - began <= 5.5
        await env.reaches("Awake")
        assert "doze" not in env.status
        assert env.status["lastWake"]["cause"] == "Trigger"
        assert env.status["usage"]["cpuMillicoreSeconds"] > 0
        assert env.status["usage"]["dozingSeconds"] > 0
    assert env.seen == {ORIGINAL, DOZED}
    assert env.dark == []


async def test_the_originals_are_in_status_before_the_first_request_changes():
    env = DozingCluster()
    env.dozes()
    order: list[str] = []
    async with env.operator() as operator:
        operator.client.on_write = lambda write, done: (
            order.append(subject(write)) if done else None
        )
        await env.reaches("Dozing")
    first = order.index("pods/resize")
    assert "elastiservices/status" in order[:first]
    assert env.doze["containers"]


async def test_a_person_wakes_it_and_it_dozes_again_only_after_a_cooldown():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        now = env.clock.now().isoformat()
        env.change("elastiservices", metadata={"annotations": {WAKE_ANNOTATION: now}})
        await eventually(lambda: env.requests["web-0"] == ORIGINAL, timeout=30, every=0.05)
        began = asyncio.get_running_loop().time()
        await env.reaches("Dozing")
        assert asyncio.get_running_loop().time() - began >= 28
    assert env.status["lastWake"]["cause"] == "Manual"


async def test_a_request_to_sleep_dozes_at_once_and_says_so():
    env = DozingCluster()
    env.dozes(cooldownPeriod=600)
    async with env.operator():
        await env.reaches("Awake")
        asked = {"elasti.truefoundry.com/sleep-requested-at": "2030-01-01T00:00:00Z"}
        env.change("elastiservices", metadata={"annotations": asked})
        await env.reaches("Dozing", within=20)
        await eventually(lambda: env.status.get("sleepRequest") is not None, timeout=20)
    assert env.status["sleepRequest"]["outcome"] == "Asleep"


async def test_a_request_to_sleep_is_not_decided_by_pods_that_were_starting():
    env = DozingCluster()
    env.dozes(cooldownPeriod=600)

    def ready(status: str) -> None:
        pod = env.get("pods", "web-0")
        pod["status"]["conditions"] = [{"type": "Ready", "status": status}]
        env.put("pods", pod, "web-0")

    await eventually(lambda: "web-0" in env.requests, timeout=20)
    ready("False")
    async with env.operator():
        await eventually(lambda: bool(env.phase), timeout=20)
        await asyncio.sleep(5)
        ready("True")
        asked = {"elasti.truefoundry.com/sleep-requested-at": "2030-01-01T00:00:00Z"}
        env.change("elastiservices", metadata={"annotations": asked})
        await env.reaches("Dozing", within=20)


async def test_suspending_gives_requests_back():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.change("elastiservices", spec={"suspend": True})
        await eventually(lambda: "doze" not in env.status, timeout=30)
    assert env.requests == {"web-0": ORIGINAL}


@pytest.mark.parametrize("dozes", [True, False])
async def test_a_request_that_cannot_be_read_is_named_and_keeps_it_awake(dozes: bool):
    """A server that checks no CEL lets it pass."""
    env = DozingCluster()
    if dozes:
        env.dozes()
    async with env.operator():
        if dozes:
            await env.reaches("Dozing")
        env.dozes(sleep={"doze": {"cpu": "2Gb"}})
        await eventually(lambda: env.condition("Ready").get("reason") == "InvalidSpec", timeout=60)
        assert "spec.sleep.doze.cpu: '2Gb' is not" in env.condition("Ready")["message"]
        await asyncio.sleep(120)
        assert (env.phase, env.requests) == ("Awake", {"web-0": ORIGINAL})


async def test_deleting_gives_requests_back_before_the_object_goes():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60)
    assert env.requests == {"web-0": ORIGINAL}


async def test_one_that_is_to_be_observed_gets_its_requests_back_however_long_that_takes():
    env = DozingCluster()
    env.dozes()
    async with env.operator() as operator:
        await env.reaches("Dozing")
        operator.client.on_write = refuse_growth
        env.change("elastiservices", spec={"policy": "Observe", "suspend": True})
        await asyncio.sleep(2 * env.settings.finalize_wait)
        assert env.requests == {"web-0": DOZED}
        assert env.condition("DozeStuck")["reason"] == "QuotaExceeded"
        operator.client.on_write = None
        await eventually(lambda: "observed" in env.status, timeout=60)
        assert "doze" not in env.status
        assert env.requests == {"web-0": ORIGINAL}
        assert not env.get("elastiservices")["metadata"].get("finalizers")
        assert KEEP_AWAKE_ANNOTATION not in env.annotations("elastiservices")


@pytest.mark.parametrize("mode", ["Doze", "Zero"])
async def test_an_observed_one_has_no_guard_against_older_operators(mode: str):
    """They leave it alone because it is suspended; the guard would count as a wish to keep it awake."""
    env = DozingCluster()
    env.dozes(mode=mode, policy="Observe", suspend=True)
    guard = {KEEP_AWAKE_ANNOTATION: DOZE_GUARD}
    env.change("elastiservices", metadata={"annotations": guard})
    async with env.operator() as operator:
        await eventually(lambda: "observed" in env.status, timeout=60)
        assert KEEP_AWAKE_ANNOTATION not in env.annotations("elastiservices")
        made = len(operator.client.writes)
        await asyncio.sleep(600)
        assert all(write.endswith("/status") for write in operator.client.writes[made:])


async def test_mode_zero_gives_requests_back_and_then_sleeps_at_zero():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        assert env.annotations("elastiservices")[KEEP_AWAKE_ANNOTATION] == DOZE_GUARD
        env.change("elastiservices", spec={"sleep": {"mode": "Zero"}})
        await eventually(lambda: env.requests.get("web-0") == ORIGINAL, timeout=30)
        await env.reaches("Asleep")
        assert KEEP_AWAKE_ANNOTATION not in env.annotations("elastiservices")


async def test_doze_then_zero_parks_after_its_time_by_the_ordinary_hand_over():
    env = DozingCluster()
    env.dozes(mode="DozeThenZero", sleep={"doze": {"zeroAfter": "10m"}})
    async with env.operator():
        await env.reaches("Dozing")
        await asyncio.sleep(500)
        assert env.phase == "Dozing"
        await env.reaches("Asleep")
        assert env.replicas == 0
        assert env.published
        assert "doze" not in env.status
    assert env.dark == []


async def test_use_begins_the_time_until_zero_again():
    env = DozingCluster()
    env.dozes(mode="DozeThenZero", sleep={"doze": {"zeroAfter": "10m"}})
    async with env.operator() as operator:
        await env.reaches("Dozing")
        await asyncio.sleep(500)
        operator.client.on_write = refuse_growth
        FakeTrigger.value = 9.0
        await env.reaches("Waking")
        FakeTrigger.value = 0.0
        await env.reaches("Dozing")
        assert env.status["usage"]["dozingSeconds"] >= 500
        await asyncio.sleep(500)
        assert env.phase == "Dozing"
        await env.reaches("Asleep")


async def test_doze_never_parks():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        await asyncio.sleep(1800)
    assert env.phase == "Dozing"
    assert env.replicas == 1


async def test_a_new_pod_keeps_its_originals_for_a_cooldown():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.pod_labels = {"pod-template-hash": "new"}
        env.scale(2)
        await eventually(lambda: "web-1" in env.requests, timeout=10)
        await asyncio.sleep(20)
        assert env.requests == {"web-0": DOZED, "web-1": ORIGINAL}
        await eventually(lambda: env.requests["web-1"] == DOZED, timeout=120)
        assert {entry["template"] for entry in env.doze["containers"]} == {"abc", "new"}


async def test_a_request_that_another_writer_set_is_left_alone():
    env = DozingCluster()
    env.dozes(2)
    async with env.operator():
        await env.reaches("Dozing")
        pod = env.get("pods", "web-0")
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "300m"
        env.put("pods", pod, "web-0")
        FakeTrigger.value = 9.0
        await env.reaches("Awake")
    assert env.requests == {"web-0": "300m", "web-1": ORIGINAL}


async def test_a_restart_keeps_a_doze():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
    FakeTrigger.error = "unreachable"
    written = env.seen.copy()
    env.seen.clear()
    async with env.operator():
        await asyncio.sleep(120)
    assert env.phase == "Dozing"
    assert env.seen <= {DOZED}
    assert written == {ORIGINAL, DOZED}


async def test_a_doze_that_a_new_leader_learns_of_late_is_not_forgotten():
    """Its cache may be older than what the former leader wrote last."""
    env = DozingCluster()
    env.dozes(cooldownPeriod=3600)
    async with env.operator():
        await env.reaches("Awake")
        pod = env.get("pods", "web-0")
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = DOZED
        env.put("pods", pod, "web-0")
        entry = {"template": "abc", "name": "app", "cpu": ORIGINAL, "dozedCpu": DOZED}
        doze = {"state": "Dozing", "since": "2030-01-01T00:00:00Z", "selector": "app=web"}
        env.change("elastiservices", status={"doze": {**doze, "containers": [entry]}})
        await asyncio.sleep(70)
        assert env.doze["containers"] == [entry]
        FakeTrigger.value = 9.0
        await eventually(lambda: env.requests == {"web-0": ORIGINAL}, timeout=30)


async def test_originals_are_not_written_over_a_version_that_is_not_known():
    """The cache of a new leader may not show yet what the former one wrote last."""
    env = DozingCluster()
    env.dozes()
    stale = msgspec.convert(env.get("elastiservices"), ElastiService)
    state = ServiceState(stale.metadata.uid, "web")
    env.change("elastiservices", status={"doze": {"state": "Shrinking"}})
    writer = ElastiServiceWriter(env.server, env.settings, env.clock)
    with pytest.raises(Conflict):
        await writer.patch_status(stale, state, {"doze": None})
    assert env.doze == {"state": "Shrinking"}
    # What it wrote itself, it knows.
    await writer.patch_status(stale, state, {"state": "Serve"})
    await writer.patch_status(stale, state, {"doze": None})
    assert env.doze == {}


async def test_an_installation_that_no_longer_enables_it_wakes_what_dozes():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
    env.settings = dataclasses.replace(env.settings, doze=False)
    env.granted = DOZE_RULES
    async with env.operator():
        await eventually(lambda: env.requests == {"web-0": ORIGINAL}, timeout=30)
        await eventually(
            lambda: env.condition("Ready").get("reason") == "DozeNotEnabled", timeout=60
        )


async def test_a_schedule_keeps_nothing_dozing_that_is_used():
    """The resolver does not see its traffic, so its triggers count, and not only until it is awake."""
    env = DozingCluster()
    FakeTrigger.value = 9.0
    always = {"keep": "Asleep", "during": "Mon-Sun 00:00-24:00", "timezone": "UTC"}
    env.dozes(schedules=[{"name": "night", **always}])
    async with env.operator():
        await asyncio.sleep(300)
        assert env.seen == {ORIGINAL}
        FakeTrigger.value = 0.0
        await env.reaches("Dozing")
        FakeTrigger.value = 9.0
        await env.reaches("Awake")
        await asyncio.sleep(300)
        assert env.phase == "Awake"


async def test_templates_that_are_gone_are_forgotten():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.pod_labels = {"pod-template-hash": "new"}
        env.delete("pods", "web-0")
        await eventually(lambda: set(env.requests.values()) == {DOZED}, timeout=200)
        await eventually(
            lambda: {one["template"] for one in env.doze["containers"]} == {"new"}, timeout=120
        )


# What is refused


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("DozeBestEffort", "BestEffort", {}),
    ("DozeGuaranteed", "Guaranteed", {}),
]


@pytest.mark.parametrize(("reason", "qos", "spec"), REFUSED)
async def test_pods_of_these_classes_are_refused(reason: str, qos: str, spec: dict[str, Any]):
    env = DozingCluster(qos=qos)
    env.dozes(**spec)
    async with env.operator():
        await eventually(lambda: env.condition("Ready").get("reason") == reason, timeout=60)
        await asyncio.sleep(300)
    assert env.seen == {ORIGINAL}


async def test_an_installation_that_does_not_enable_it_leaves_the_target_awake():
    env = DozingCluster(doze=False)
    env.dozes()
    async with env.operator():
        await eventually(
            lambda: env.condition("Ready").get("reason") == "DozeNotEnabled", timeout=60
        )
        await asyncio.sleep(300)
    assert "elasti install --doze" in env.condition("Ready")["message"]
    assert env.replicas == 1
    assert env.seen == {ORIGINAL}


async def test_a_container_that_would_restart_is_refused():
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    env = DozingCluster(container(resizePolicy=policy))
    env.dozes()
    async with env.operator():
        await eventually(
            lambda: env.condition("Ready").get("reason") == "DozeRestartsContainer", timeout=60
        )


async def test_an_hpa_on_utilization_that_comes_during_a_doze_ends_it():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        utilization = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
        metrics = [{"type": "Resource", "resource": utilization}]
        env.put(
            "horizontalpodautoscalers", {"spec": {"scaleTargetRef": target, "metrics": metrics}}
        )
        await eventually(lambda: env.requests["web-0"] == ORIGINAL, timeout=120)
        await eventually(lambda: env.condition("Ready").get("reason") == "DozeHPA", timeout=60)


async def test_a_limit_range_raises_what_a_dozing_container_requests():
    env = DozingCluster()
    env.put("limitranges", {"spec": {"limits": [{"type": "Container", "min": {"cpu": "50m"}}]}})
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
    assert env.requests == {"web-0": "50m"}


async def test_a_refused_shrink_is_undone_and_tried_again_after_a_cooldown():
    env = DozingCluster()
    env.dozes(2)

    def refuse(write: Any, done: bool) -> None:
        if subject(write) == "pods/resize" and "web-1" in write.path and not done:
            raise api_error(403, "Forbidden", "minimum cpu usage per Pod is 100m")

    async with env.operator() as operator:
        operator.client.on_write = refuse
        await eventually(lambda: "DozeRefused" in env.reasons(), timeout=120)
        await eventually(lambda: set(env.requests.values()) == {ORIGINAL}, timeout=60)
        operator.client.on_write = None
        await env.reaches("Dozing")


async def test_nothing_shrinks_if_an_older_definition_drops_the_originals():
    env = DozingCluster()
    env.dozes()

    def prune(write: Any, done: bool) -> None:
        body = json.loads(write.body or b"{}")
        if subject(write) == "elastiservices/status" and not done and body["status"].pop("doze", 0):
            object.__setattr__(write, "body", json.dumps(body).encode())

    async with env.operator() as operator:
        operator.client.on_write = prune
        await eventually(lambda: "status.doze" in env.messages(), timeout=120)
        await asyncio.sleep(300)
        assert env.seen == {ORIGINAL}
        assert env.condition("MaySleep")["status"] == "False"
        assert env.reasons().count("DozeRefused") < 15
        operator.client.on_write = None
        await env.reaches("Dozing")


async def test_no_resize_is_left_running_after_another_failed(monkeypatch: pytest.MonkeyPatch):
    unused: Any = None
    client, done = FakeClient(), list[str]()
    clock = VirtualClock()
    parts = {"scales": unused, "waker": unused, "reporter": unused, "note": unused}
    dozer = Dozer(client=client, clock=clock, **parts)

    async def change(write: Any, _state: ServiceState) -> None:
        if write.pod == "bad":
            raise api_error(500, "InternalError", "the server ends")
        await asyncio.sleep(1)
        done.append(write.pod)

    writes: Any = (Resize(cast("Any", "bad"), ()), Resize(cast("Any", "good"), ()))
    monkeypatch.setattr(dozer, "_change", change)
    with pytest.raises(KubeError):
        await dozer._make(writes, unused, ServiceState("", ""))
    assert done == ["good"]


async def test_two_elastiservices_of_one_target_are_refused():
    env = DozingCluster()
    env.dozes()
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    env.web(1, name="blog", scaleTargetRef=ref, triggers=[])
    async with env.operator():
        await eventually(lambda: "DozeSharedTarget" in env.status.get("warnings", ()), timeout=60)
        await asyncio.sleep(120)
    assert env.seen == {ORIGINAL}


async def test_a_server_without_the_subresource_is_refused(monkeypatch: pytest.MonkeyPatch):
    env = DozingCluster()
    env.dozes()
    async with env.operator() as operator:
        mapper = operator.client.mapper
        pods = await mapper.by_kind("v1", "Pod")
        older = dataclasses.replace(pods, subresources=pods.subresources - {"resize"})

        async def found(api_version: str, kind: str) -> Any:
            return older if kind == "Pod" else await known(api_version, kind)

        known = mapper.by_kind
        monkeypatch.setattr(mapper, "by_kind", found)
        await eventually(
            lambda: env.condition("Ready").get("reason") == "DozeUnsupported", timeout=120
        )
        await asyncio.sleep(120)
    assert "1.33 or newer" in env.condition("Ready")["message"]
    assert env.seen == {ORIGINAL}


# The way out


async def test_a_pod_whose_node_is_full_is_replaced_elsewhere_and_then_evicted():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.full_nodes = lambda pod: pod == "web-0" and not stuck_gone
        stuck_gone = False
        FakeTrigger.value = 9.0
        await eventually(lambda: env.condition("DozeStuck").get("status") == "True", timeout=60)
        assert env.condition("DozeStuck")["reason"] == "Deferred"
        await eventually(lambda: env.replicas == 2, timeout=60)
        assert env.doze["replicas"] == 1
        stuck_gone = True
        await eventually(lambda: "StuckPodEvicted" in env.reasons(), timeout=60)
        await env.reaches("Awake")
        assert env.replicas == 1
    assert set(env.requests.values()) == {ORIGINAL}
    assert env.dark == []


async def test_a_pod_whose_node_never_has_room_gets_a_spare_too():
    """Another node may have it, and the pod serves until that is so."""
    env = DozingCluster()
    env.dozes()
    env.pending = "Infeasible"
    async with env.operator():
        await env.reaches("Dozing")
        env.full_nodes = lambda pod: pod == "web-0"
        FakeTrigger.value = 9.0
        await eventually(lambda: env.condition("DozeStuck").get("status") == "True", timeout=60)
        assert env.condition("DozeStuck")["reason"] == "Infeasible"
        assert env.doze["replicas"] == 1, "a spare pod was requested"
        assert "web-0" in env.requests, "it serves until another one does"
        await eventually(lambda: "StuckPodEvicted" in env.reasons(), timeout=60)
        env.full_nodes = lambda _pod: False
        await env.reaches("Awake")
        assert env.replicas == 1
    assert env.dark == []


@pytest.mark.parametrize(("pending", "may_get_room"), [("Deferred", True), ("Infeasible", False)])
async def test_a_pod_that_must_be_alone_gets_no_spare_and_the_condition_names_it(
    pending: str, may_get_room: bool
):
    env = DozingCluster()
    env.dozes(strategy="Recreate")
    env.pending = pending
    async with env.operator():
        await env.reaches("Dozing")
        env.full_nodes = lambda pod: pod == "web-0"
        FakeTrigger.value = 9.0
        await eventually(lambda: env.condition("DozeStuck").get("reason") == pending, timeout=60)
        assert "Node didn't have enough resource: cpu" in env.condition("DozeStuck")["message"]
        assert env.condition("DozeStuck")["message"].endswith("delete pod web-0")
        assert ("room" in env.condition("DozeStuck")["message"]) is may_get_room
        await asyncio.sleep(300)
        assert (env.replicas, set(env.requests)) == (1, {"web-0"})
        assert env.reasons().count("DozeStuck") == 1
        env.full_nodes = lambda _pod: False
        env._confirm("web-0")
        await env.reaches("Awake")
    assert env.dark == []


def refuse_resize(write: Any, done: bool) -> None:
    """The operator has lost the right."""
    if subject(write) == "pods/resize" and not done:
        who = 'User "system:serviceaccount:elasti:elasti-operator"'
        raise api_error(403, "Forbidden", f'{who} cannot patch resource "pods/resize"')


async def loses_the_right(env: DozingCluster, operator: Any) -> None:
    operator.client.on_write = refuse_resize
    FakeTrigger.value = 9.0
    await eventually(
        lambda: env.condition("DozeStuck").get("reason") == "ResizeRefused", timeout=60
    )
    stuck = env.condition("DozeStuck")["message"]
    assert 'cannot patch resource "pods/resize"' in stuck
    assert "elasti install --doze" in stuck
    assert env.phase == "Waking"


async def test_without_the_right_the_events_have_the_commands_and_it_grows_back_with_it():
    env = DozingCluster(container(), container("side", "200m"))
    env.dozes(2)
    async with env.operator() as operator:
        await env.reaches("Dozing")
        await loses_the_right(env, operator)
        requests = ",".join(
            f'{{"name":"{name}","resources":{{"requests":{{"cpu":"{cpu}"}}}}}}'
            for name, cpu in (("app", ORIGINAL), ("side", "200m"))
        )
        commands = [
            f"kubectl patch pod web-{number} -n shop"
            f""" --subresource resize -p '{{"spec":{{"containers":[{requests}]}}}}'"""
            for number in range(2)
        ]
        told = [message for reason, message in env.recorder.told if reason == "DozeNotRestored"]
        assert [message[message.index("kubectl") :] for message in told] == commands
        await asyncio.sleep(300)
        assert env.reasons().count("DozeNotRestored") == 2, "they are not repeated"
        assert (env.replicas, set(env.requests.values())) == (2, {DOZED})
        operator.client.on_write = None
        await env.reaches("Awake")
    assert set(env.requests.values()) == {ORIGINAL}
    assert env.condition("DozeStuck")["status"] == "False"


async def test_a_person_who_runs_the_commands_ends_it():
    env = DozingCluster()
    env.dozes(2)
    async with env.operator() as operator:
        await env.reaches("Dozing")
        await loses_the_right(env, operator)
        for name in env.requests:
            pod = env.get("pods", name)
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = ORIGINAL
            env.put("pods", pod, name)
        await env.reaches("Awake")
        assert "doze" not in env.status
        assert env.reasons().count("DozeStuck") == 1, "what kubelets have to confirm is no news"


async def test_an_operator_that_starts_without_doze_and_its_rights_says_what_to_patch():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
    env.settings = dataclasses.replace(env.settings, doze=False)
    env.granted = DOZE_RULES  # it asks, and is refused
    async with env.operator() as operator:
        operator.client.on_write = refuse_resize
        await eventually(lambda: "DozeNotRestored" in env.reasons(), timeout=120)
        assert "kubectl patch pod web-0 -n shop --subresource resize" in env.messages()
        assert env.condition("DozeStuck")["reason"] == "ResizeRefused"
        assert env.condition("Ready")["reason"] == "DozeNotEnabled"
        operator.client.on_write = None
        await env.reaches("Awake")
    assert env.requests == {"web-0": ORIGINAL}


async def test_room_that_comes_back_ends_the_way_out():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.full_nodes = lambda pod: pod == "web-0"
        FakeTrigger.value = 9.0
        await eventually(
            lambda: env.phase == "Waking" and bool(env.doze.get("replicas")), timeout=60
        )
        env.full_nodes = lambda _pod: False
        env._confirm("web-0")
        await env.reaches("Awake")
    assert env.replicas == 1


async def test_a_leader_that_only_noted_the_replicas_leaves_the_way_out_to_the_next_one():
    """A crash between the note in status and the write of the scale."""
    env = DozingCluster()
    env.dozes()

    def refuse(write: Any, done: bool) -> None:
        if subject(write) == "deployments/scale" and not done:
            raise api_error(500, "InternalError", "the server ends")

    async with env.operator() as operator:
        await env.reaches("Dozing")
        env.full_nodes = lambda pod: pod == "web-0"
        FakeTrigger.value = 9.0
        operator.client.on_write = refuse
        await eventually(lambda: env.doze.get("replicas") == 1, timeout=60)
        assert env.replicas == 1
    async with env.operator():
        await eventually(lambda: "StuckPodEvicted" in env.reasons(), timeout=120)
        env.full_nodes = lambda _pod: False
        await env.reaches("Awake")
    assert env.replicas == 1


async def test_the_spare_goes_although_the_first_writes_meet_others():
    env = DozingCluster()
    env.dozes()
    refused: list[bytes] = []

    def refuse(write: Any, done: bool) -> None:
        shrinks = subject(write) == "deployments/scale" and b'"replicas":1' in (write.body or b"")
        if shrinks and not done and len(refused) < 4:
            refused.append(write.body)
            raise api_error(409, "Conflict", "the object has been modified")

    async with env.operator() as operator:
        await env.reaches("Dozing")
        env.full_nodes = lambda pod: pod == "web-0"
        FakeTrigger.value = 9.0
        operator.client.on_write = refuse
        await eventually(lambda: env.replicas == 2, timeout=60)
        env.full_nodes = lambda _pod: False
        env._confirm("web-0")
        await env.reaches("Awake")
    assert len(refused) == 4
    assert env.replicas == 1


async def test_the_spare_goes_although_the_scale_could_not_be_read_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    async def refuse(*_: object) -> None:
        raise api_error(403, "Forbidden", "not now")

    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.full_nodes = lambda _pod: True
        env.pod_status = {**env.pod_status, "phase": "Pending"}
        FakeTrigger.value = 9.0
        await eventually(lambda: env.replicas == 2, timeout=60)
        with monkeypatch.context() as patched:
            for name in ("selector", "park"):
                patched.setattr(ScaleHandler, name, refuse)
            env.full_nodes = lambda _pod: False
            env._confirm("web-0")
            await asyncio.sleep(120)
            assert env.doze["replicas"] == 1
            assert env.reasons().count("DozeSpareStays") == 1
        await env.reaches("Awake")
    assert env.replicas == 1


async def test_a_deletion_that_gives_up_has_a_command_for_each_pod():
    env = DozingCluster()
    env.dozes(5)
    async with env.operator() as operator:
        await env.reaches("Dozing")
        operator.client.on_write = refuse_growth
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=300)
    assert all(f"kubectl patch pod web-{number} " in env.messages() for number in range(5))
    assert env.reasons().count("DeletionWaits") == 1


async def test_a_deletion_that_gives_up_takes_the_spare_with_it():
    env = DozingCluster()
    env.dozes()
    async with env.operator():
        await env.reaches("Dozing")
        env.full_nodes = lambda _pod: True
        env.pod_status = {**env.pod_status, "phase": "Pending"}
        FakeTrigger.value = 9.0
        await eventually(lambda: env.doze.get("replicas") == 1, timeout=60)
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=300)
    assert env.replicas == 1


async def test_a_quota_that_refuses_the_growth_is_named_and_nothing_is_evicted():
    env = DozingCluster()
    env.dozes()
    async with env.operator() as operator:
        await env.reaches("Dozing")
        operator.client.on_write = refuse_growth
        FakeTrigger.value = 9.0
        await eventually(
            lambda: env.condition("DozeStuck").get("reason") == "QuotaExceeded", timeout=60
        )
        assert env.replicas == 1
        assert "kubectl patch pod web-0 -n shop --subresource resize" in env.messages()
        assert '"cpu":"900m"' in env.messages()
        operator.client.on_write = None
        await env.reaches("Awake")
    assert env.requests == {"web-0": ORIGINAL}


# Crashes


async def crashed_at(number: int, *, wakes: bool) -> tuple[bool, DozingCluster]:
    """Kill the operator at a write of a cycle; then the next leader makes it so."""
    env = DozingCluster(container(), container("side", "200m"))
    FakeTrigger.value = 0.0
    env.dozes(3)
    if wakes:
        async with env.operator():
            await env.reaches("Dozing")
        FakeTrigger.value = 9.0
    async with env.operator() as first:
        first.kill_at(number)
        done = asyncio.create_task(env.reaches("Awake" if wakes else "Dozing"))
        dead = asyncio.create_task(first.killed.wait())
        await asyncio.wait({done, dead}, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        dead.cancel()
        killed = first.killed.is_set()
        assert await asyncio.gather(done, dead, return_exceptions=True)
    for pod in env.all("pods"):
        for one in pod["spec"]["containers"]:
            original = ORIGINAL if one["name"] == "app" else "200m"
            assert one["resources"]["requests"]["cpu"] in (original, DOZED), number
    return killed, env


def is_decided(env: DozingCluster, *, wakes: bool) -> bool:
    want = {"app": ORIGINAL, "side": "200m"} if wakes else {"app": DOZED, "side": DOZED}
    return all(
        one["resources"]["requests"]["cpu"] == want[one["name"]]
        for pod in env.all("pods")
        for one in pod["spec"]["containers"]
    )


@pytest.mark.parametrize("wakes", [False, True])
async def test_after_a_crash_at_any_write_the_next_leader_makes_all_equal_to_the_decision(
    wakes: bool,
):
    for number in range(1, 60):
        killed, env = await crashed_at(number, wakes=wakes)
        async with env.operator():
            await env.reaches("Awake" if wakes else "Dozing")
            what = f"the decision, after write {number}"
            await eventually(functools.partial(is_decided, env, wakes=wakes), what, timeout=30)
        if not killed:
            assert number > 4
            return
    raise AssertionError("the cycle never ends")


WORKER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"}


def workers(env: DozingCluster) -> int:
    return int(env.get("deployments", "worker")["spec"]["replicas"])


async def test_workers_beside_a_target_stay_while_it_dozes():
    env = DozingCluster()
    env.put("deployments", {"spec": {"replicas": 3}}, "worker")
    env.dozes(targets=[WORKER])
    async with env.operator():
        await env.reaches("Dozing")
        await asyncio.sleep(300)
        assert workers(env) == 3
        assert "targets" not in env.status
        FakeTrigger.value = 9.0
        await env.reaches("Awake")
        assert workers(env) == 3


async def test_workers_sleep_when_a_doze_ends_at_zero_and_wake_with_the_target():
    env = DozingCluster()
    env.put("deployments", {"spec": {"replicas": 3}}, "worker")
    env.dozes(mode="DozeThenZero", sleep={"doze": {"zeroAfter": "2m"}}, targets=[WORKER])
    async with env.operator() as operator:
        await env.reaches("Dozing")
        assert workers(env) == 3
        await env.reaches("Asleep")
        await eventually(lambda: workers(env) == 0, timeout=30, every=0.1)
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await env.reaches("Awake")
        await eventually(lambda: workers(env) == 3, timeout=30, every=0.1)


async def test_a_dozing_dependent_keeps_what_it_needs_awake():
    env = DozingCluster()
    env.web(1, name="db", triggers=[])
    env.dozes(mode="DozeThenZero", sleep={"doze": {"zeroAfter": "10m"}}, dependsOn=[{"name": "db"}])

    def database() -> int:
        return int(env.get("deployments", "db")["spec"]["replicas"])

    async with env.operator():
        await env.reaches("Dozing")
        await asyncio.sleep(300)
        assert (env.phase, database()) == ("Dozing", 1)
        await env.reaches("Asleep", within=600)
        await eventually(lambda: database() == 0, timeout=120, every=0.5)
