"""Workers without a Service in virtual time: they sleep and wake with an ElastiService's target."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import msgspec
import pytest
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger

from elasti.api.types import ElastiService
from elasti.api.view import worker_lines
from kubeloop.client.errors import Forbidden, Status
from kubeloop.client.request import Request
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

WORKER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"}
MAIL = WORKER | {"name": "mail"}


class WithWorkers(Environment):
    """An app, a worker with three replicas and one with two."""

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.worker("worker", 3)
        self.worker("mail", 2)
        self.web(1, **{"targets": [WORKER, MAIL], **spec})

    def worker(self, name: str, replicas: int) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}}
        selector = {"matchLabels": labels}
        spec = {"replicas": replicas, "selector": selector, "template": template}
        self.put("deployments", {"spec": spec}, name)

    def replicas_of(self, *names: str) -> list[int]:
        return [int(self.get("deployments", name)["spec"]["replicas"]) for name in names]

    @property
    def workers(self) -> list[int]:
        return self.replicas_of("worker", "mail")

    @property
    def record(self) -> list[JsonObject]:
        return list(self.status.get("targets") or ())

    async def asleep(self) -> None:
        await eventually(
            lambda: self.state == "Proxy" and not any(self.workers), timeout=120, every=0.5
        )
        # The report follows the writes.
        await asyncio.sleep(5.0)

    async def awake(self) -> None:
        await eventually(lambda: self.state == "Serve", timeout=120, every=0.5)
        await asyncio.sleep(5.0)

    async def restored(self) -> None:
        await eventually(lambda: self.workers == [3, 2], timeout=120, every=0.5)

    async def ended(self) -> None:
        await eventually(lambda: self.es is None, timeout=120, every=0.5)

    def edit(self, **spec: Any) -> None:
        es = self.get("elastiservices")
        self.put("elastiservices", es | {"spec": es["spec"] | spec})


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


@pytest.mark.virtual_time
async def test_workers_sleep_after_the_target_and_get_their_replicas_back():
    env = WithWorkers()
    orders: list[str] = []
    env.server.on_change.append(
        lambda gvr, obj, _gone: (
            orders.append(f"{obj['metadata']['name']}={obj['spec']['replicas']}")
            if gvr.resource == "deployments"
            else None
        )
    )
    async with env.operator() as operator:
        await env.asleep()
        assert [item["replicas"] for item in env.record] == [3, 2]
        assert all(item["asleep"] for item in env.record)
        orders.clear()
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await env.awake()
        scaled = list(dict.fromkeys(orders))
        assert scaled.index("web=1") < scaled.index("worker=3")
        assert env.workers == [3, 2]
        assert env.record == []


@pytest.mark.virtual_time
async def test_an_object_without_workers_has_no_record_of_them():
    env = Environment()
    env.web(1)
    async with env.operator():
        await eventually(lambda: env.state == "Proxy", timeout=120, every=0.5)
        await asyncio.sleep(5.0)
        assert "targets" not in env.status


@pytest.mark.virtual_time
async def test_a_worker_that_another_writer_scales_up_is_left_alone():
    env = WithWorkers()
    async with env.operator() as operator:
        await env.asleep()
        env.worker("worker", 1)
        await asyncio.sleep(700.0)
        assert env.workers == [1, 0]
    async with env.operator() as operator:
        await asyncio.sleep(700.0)
        assert env.workers == [1, 0], "a new leader leaves it alone, too"
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await env.awake()
        assert env.workers == [1, 2]
        assert env.record == []


@pytest.mark.virtual_time
async def test_a_worker_that_was_at_zero_wakes_with_one():
    env = WithWorkers()
    env.worker("mail", 0)
    async with env.operator() as operator:
        await env.asleep()
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await env.awake()
        assert env.workers == [3, 1]


@pytest.mark.virtual_time
@pytest.mark.parametrize("change", ["removed", "suspended", "deleted", "left", "shared"])
async def test_workers_wake_when_the_spec_no_longer_lets_them_sleep(change: str):
    env = WithWorkers(**({"deletionPolicy": "Leave"} if change == "left" else {}))
    async with env.operator():
        await env.asleep()
        match change:
            case "removed":
                env.edit(targets=[MAIL])
            case "suspended":
                env.edit(suspend=True)
            case "deleted" | "left":
                env.delete("elastiservices")
            case "shared":
                env.web(1, name="other", targets=[WORKER])
        wanted = {"removed": [3, 0], "shared": [3, 0], "left": [0, 0]}.get(change, [3, 2])
        await asyncio.sleep(60.0)
        assert env.workers == wanted
        if change in ("deleted", "left"):
            assert env.es is None
        if change == "shared":
            assert "TargetIgnored" in env.status["warnings"]


@pytest.mark.virtual_time
async def test_a_worker_that_does_not_exist_is_named_and_sleeps_once_it_does():
    env = WithWorkers(targets=[WORKER, MAIL | {"name": "post"}, MAIL | {"kind": "Mailer"}])
    async with env.operator():
        await eventually(lambda: env.state == "Proxy", timeout=120, every=0.5)
        await asyncio.sleep(5.0)
        assert env.workers == [0, 2]
        (ready,) = [one for one in env.status["conditions"] if one["type"] == "Ready"]
        assert ready["status"] == "True"
        assert "spec.targets[1] names Deployment post" in ready["message"]
        assert "Mailer" in ready["message"]
        assert "TargetIgnored" in env.status["warnings"]
        assert worker_lines(msgspec.convert(env.es, ElastiService)) == [
            "Deployment/worker: asleep, wakes with 3",
            "Deployment/post: ignored",
            "Mailer/mail: ignored",
        ]
        env.worker("post", 2)
        await eventually(lambda: env.replicas_of("post") == [0], timeout=700, every=1.0)


@pytest.mark.virtual_time
async def test_workers_stay_awake_if_an_older_definition_drops_their_record():
    env = WithWorkers()

    def prune(write: Request, _done: bool) -> None:
        body = json.loads(write.body or b"{}")
        if write.path.endswith("/status") and body["status"].pop("targets", None):
            object.__setattr__(write, "body", json.dumps(body).encode())

    async with env.operator() as operator:
        operator.client.on_write = prune
        await eventually(lambda: env.state == "Proxy", timeout=120, every=0.5)
        await asyncio.sleep(30.0)
        assert env.workers == [3, 2]
        told = [message for reason, message in env.recorder.told if reason == "FailedToScale"]
        assert any("status.targets" in message for message in told)


@pytest.mark.virtual_time
async def test_a_worker_that_cannot_be_scaled_delays_nothing_and_is_tried_again():
    # The try that succeeds, some 32 s after the wake-up, comes before the next sleep.
    env = WithWorkers(cooldownPeriod=60)
    async with env.operator() as operator:
        await env.asleep()
        began = asyncio.get_running_loop().time()

        def refuse(write: Request, _done: bool) -> None:
            if "worker" in write.path and asyncio.get_running_loop().time() < began + 20.0:
                raise Forbidden(Status(code=403))

        operator.client.on_write = refuse
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await eventually(lambda: env.state == "Serve", timeout=60, every=0.1)
        assert asyncio.get_running_loop().time() - began < 15.0
        await env.restored()


@pytest.mark.virtual_time
async def test_a_deletion_names_the_worker_that_it_waits_for():
    def refuse(write: Request, _done: bool) -> None:
        if "worker" in write.path:
            raise Forbidden(Status(code=403))

    env = WithWorkers()
    async with env.operator() as operator:
        await env.asleep()
        operator.client.on_write = refuse
        env.delete("elastiservices")
        await eventually(lambda: "DeletionWaits" in env.reasons(), timeout=60, every=0.1)
        [waits] = [text for reason, text in env.recorder.told if reason == "DeletionWaits"]
        assert "Deployment shop/worker" in waits
        assert env.es is not None
        operator.client.on_write = None
        await eventually(lambda: env.es is None, timeout=200, every=0.5)
        assert env.workers[0] == 3


@pytest.mark.virtual_time
@pytest.mark.parametrize("behind", ["status", "spec"])
async def test_a_new_leader_whose_watch_is_behind_keeps_the_record(behind: str):
    env = WithWorkers()
    async with env.operator():
        await env.asleep()
    found = env.get("elastiservices")
    status = {name: value for name, value in found["status"].items() if name != "targets"}
    spec = found["spec"] | ({"targets": []} if behind == "spec" else {})
    env.put("elastiservices", found | {"spec": spec, "status": status})
    async with env.operator() as operator:
        # Its caches are filled, and it has not begun to lead: from here on they stay behind.
        watches = env.server.source("elasti.truefoundry.com/v1alpha1/elastiservices").open_streams
        for watch in watches:
            watch.stall()
        env.put("elastiservices", found)
        await asyncio.sleep(20.0)
        assert env.record == found["status"]["targets"]
        for watch in watches:
            watch.stall(stall=False)
        await asyncio.sleep(20.0)
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await env.awake()
        assert env.workers == [3, 2]
        assert env.record == []


@pytest.mark.virtual_time
async def test_a_park_that_fails_again_and_again_does_not_delay_a_wake_up():
    env = WithWorkers()

    def refuse(write: Request, _done: bool) -> None:
        if "mail" in write.path:
            now = asyncio.get_running_loop().time()
            refused.extend([now] if not refused or now > refused[-1] else [])
            raise Forbidden(Status(code=403))

    refused: list[float] = []
    async with env.operator() as operator:
        operator.client.on_write = refuse
        # It was refused just now, and not for the first time.
        await eventually(
            lambda: len(refused) > 1 and refused[-1] - refused[-2] > 20.0, timeout=1200, every=0.5
        )
        began = asyncio.get_running_loop().time()
        await operator.waker.wake(NAMESPACE, "web", "GET /")
        await env.restored()
        assert asyncio.get_running_loop().time() - began < 5.0


@pytest.mark.virtual_time
@pytest.mark.parametrize("phase", ["sleep", "wake", "end"])
async def test_the_leader_is_killed_between_any_two_writes(phase: str):
    for number in itertools.count(1):
        env = WithWorkers()
        async with env.operator() as operator:
            if phase != "sleep":
                await env.asleep()
            operator.kill_at(number)
            if phase == "wake":
                asking = asyncio.create_task(operator.waker.wake(NAMESPACE, "web", "GET /"))
                await asyncio.sleep(30.0)
                asking.cancel()
                await asyncio.wait([asking])
            else:
                if phase == "end":
                    env.delete("elastiservices")
                await asyncio.sleep(90.0)
            killed = operator.killed.is_set()
        async with env.operator() as operator:
            if phase == "end":
                await env.ended()
            else:
                if phase == "wake":
                    await operator.waker.wake(NAMESPACE, "web", "GET /")
                    await env.restored()
                await env.asleep()
                assert [item["replicas"] for item in env.record] == [3, 2]
                await operator.waker.wake(NAMESPACE, "web", "GET /")
                await env.awake()
                assert env.record == []
            assert env.workers == [3, 2], (phase, number)
        if not killed:
            assert number > 4
            return
