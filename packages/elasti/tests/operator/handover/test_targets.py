"""What may happen to the target of an ElastiService, and who else may write it, on both servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.controllers.support import deployment, template
from tests.operator.recorder import Recorder
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from elasti.operator.model.targets import ScaleTarget, ScaleView
from elasti.operator.scale_handler import ScaleDown, ScaleHandler
from kubeloop.aio.tasks import finish
from kubeloop.client import Conflict, NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]

WEB = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


async def test_a_target_at_zero_is_held_for_from_the_first_moment(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        assert await rig.addresses() == [rig.resolver.shown]
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "scaling")
        await rig.becomes("Serve")
        assert await rig.slice() is None


@pytest.mark.garbage_collector
@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_target_that_is_deleted_and_made_again_is_looked_after_again(
    rig: Rig, replicas: int
):
    await rig.web(replicas=replicas)
    async with rig.operator() as operator:
        await rig.becomes("Serve" if replicas else "Proxy")
        await rig.cluster.deployments.delete("web")
        told = await rig.tells("Ready", "TargetMissing")
        assert (await rig.condition("TargetFound"))["status"] == "False"
        assert "Deployment web" in told["message"]
        await eventually(lambda: rig.events("TargetMissing"))
        assert (await rig.wake(operator, "web"))[0] == 503
        await rig.cluster.deployments.create(deployment("web", 1))
        await rig.becomes("Serve")
        await rig.scale(0)
        await rig.becomes("Proxy")
        await eventually(rig.addresses)


async def test_scaling_by_hand_is_followed_both_ways_and_never_dark(rig: Rig):
    await rig.web(replicas=1)
    async with rig.operator(), Recorder(rig).running() as recorder:
        await rig.becomes("Serve")
        # Nothing of ours is in the rotation then, and a hand asks nobody: this one may be dark.
        await rig.scale(0)
        await rig.becomes("Proxy")
        assert await rig.addresses() == [rig.resolver.shown]
        before = len(recorder.dark_moments())
        await rig.scale(2)
        await rig.becomes("Serve")
        assert await rig.replicas() == 2
        assert await rig.slice() is None
        assert len(recorder.dark_moments()) == before


async def test_a_target_that_crash_loops_does_not_stay_up_indefinitely(
    rig: Rig, prometheus: FakePrometheus
):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=0, triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        await rig.wake(operator, "web")
        # While somebody waits at the resolver it stays up, ready or not.
        rig.resolver.waiting(rig.namespace, "web")
        await rig.becomes("Waking")
        asked = len(rig.resolver.asked)
        await eventually(lambda: len(rig.resolver.asked) > asked + 2)
        assert await rig.replicas() == 1
        rig.resolver.reports.clear()
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        assert await rig.addresses() == [rig.resolver.shown]


async def test_services_of_one_target_sleep_only_together_and_any_wakes(
    rig: Rig, prometheus: FakePrometheus
):
    async with FakePrometheus().running() as other:
        other.value = 5.0
        await rig.web(triggers=[prometheus.trigger()])
        await rig.service("api", selector={"app": "web"})
        await rig.elastiservice("api", scaleTargetRef=WEB, triggers=[other.trigger()])
        async with rig.operator() as operator, Recorder(rig).running() as recorder:
            await eventually(lambda: len(prometheus.queries) >= 16)
            assert await rig.replicas() == 1
            other.value = 0.0
            await rig.becomes("Proxy")
            await rig.becomes("Proxy", "api")
            for name in ("web", "api"):
                assert await rig.addresses(name) == [rig.resolver.shown]
            other.value = prometheus.value = 9.0
            assert (await rig.wake(operator, "api"))[0] == 202
            await rig.becomes("Serve")
            await rig.becomes("Serve", "api")
            assert recorder.dark_moments("web") == recorder.dark_moments("api") == []


# Others who write


async def test_a_gitops_writer_that_undoes_every_park_is_named_and_left_alone(
    rig: Rig, prometheus: FakePrometheus
):
    """Applies its manifest, replicas and all, as soon as the target differs from it."""
    await rig.cluster.deployments.apply(deployment("web", 1), field_manager="argocd-controller")
    await rig.service()
    await rig.elastiservice(triggers=[prometheus.trigger()])
    rig.hurry()
    async with _gitops(rig) as undone, rig.operator(), Recorder(rig).running() as recorder:
        told = await rig.tells("ScaleContested", "UndoneRepeatedly")
        assert told["status"] == "True"
        assert "argocd-controller" in told["message"]
        assert len(undone) == 3
        await eventually(lambda: rig.events("ScaleContested"))
        await rig.becomes("Serve")
        before = len(prometheus.queries)
        await eventually(lambda: len(prometheus.queries) > before + 8)
        assert len(undone) == 3
        assert recorder.dark_moments() == []


@contextlib.asynccontextmanager
async def _gitops(rig: Rig) -> AsyncIterator[list[int]]:
    undone: list[int] = []

    async def sync() -> None:
        while True:
            if await rig.replicas() == 0:
                undone.append(0)
                await rig.cluster.deployments.apply(
                    deployment("web", 1), field_manager="argocd-controller", force=True
                )
            await asyncio.sleep(0.1)

    task = asyncio.create_task(sync(), name="gitops")
    try:
        yield undone
    finally:
        await finish([task])
        if not task.cancelled():
            await task


async def test_a_park_that_is_undone_before_anybody_sees_it_is_undone_all_the_same(
    rig: Rig, prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
):
    """It must not be parked again and again: it counts, and a cooldown passes."""
    park, undone = ScaleHandler.park, []

    async def park_in_vain(
        self: ScaleHandler, target: ScaleTarget, seen: ScaleView
    ) -> tuple[ScaleDown, ScaleView]:
        outcome = await park(self, target, seen)
        if outcome[0] is ScaleDown.PARKED:
            undone.append(1)
            await rig.cluster.deployments.apply(
                deployment("web", 1), field_manager="argocd-controller", force=True
            )
            # The cache must have it before the operator goes on.
            await asyncio.sleep(0.3)
        return outcome

    monkeypatch.setattr(ScaleHandler, "park", park_in_vain)
    await rig.web(triggers=[prometheus.trigger()])
    rig.hurry()
    async with rig.operator():
        told = await rig.tells("ScaleContested", "UndoneRepeatedly")
        assert "argocd-controller" in told["message"]
        assert len(undone) == 3
        await rig.becomes("Serve")


async def test_a_storm_of_conflicts_delays_nothing_that_matters(
    rig: Rig, prometheus: FakePrometheus
):
    """Somebody writes the target all the time; replicas are not what he writes."""
    prometheus.value = 9.0
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        await rig.becomes("Serve")
        async with _storm(rig) as writes:
            await eventually(lambda: len(writes) > 5)
            prometheus.value = 0.0
            await rig.becomes("Proxy")
            assert (await rig.wake(operator, "web"))[0] == 202
            prometheus.value = 9.0
            await rig.becomes("Serve")
            assert await rig.replicas() == 1
        assert (await rig.condition("ScaleContested"))["status"] == "False"
        assert len(writes) > 20


@contextlib.asynccontextmanager
async def _storm(rig: Rig) -> AsyncIterator[list[int]]:
    writes: list[int] = []

    async def write() -> None:
        while True:
            note = {"metadata": {"annotations": {"storm": str(len(writes))}}}
            with contextlib.suppress(Conflict, NotFound):
                await rig.cluster.deployments.patch("web", MergePatch(note))
            writes.append(1)
            await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(write(), name=f"storm {number}") for number in range(2)]
    try:
        yield writes
    finally:
        await finish(tasks)


async def test_a_target_that_changes_during_the_settle_is_not_parked(
    rig: Rig, prometheus: FakePrometheus
):
    await rig.web(triggers=[prometheus.trigger()], cooldownPeriod=3)
    async with rig.operator(engage_settle=1.5):
        await eventually(rig.addresses)
        await rig.scale(3)

        async def told() -> bool:
            return bool(await rig.events("FailedToScale"))

        await eventually(told)
        prometheus.value = 9.0
        await rig.becomes("Serve")
        assert await rig.replicas() == 3


async def test_a_stateful_set_sleeps_and_wakes(rig: Rig, prometheus: FakePrometheus):
    labels = {"app": "db"}
    await rig.cluster.statefulsets.create(
        {
            "metadata": {"name": "db"},
            "spec": {
                "replicas": 2,
                "serviceName": "db",
                "selector": {"matchLabels": labels},
                "template": template(labels),
            },
        }
    )
    await rig.service("db")
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"}
    await rig.elastiservice(
        "db", scaleTargetRef=target, minTargetReplicas=2, triggers=[prometheus.trigger()]
    )
    async with rig.operator() as operator, Recorder(rig).running() as recorder:
        await rig.becomes("Proxy", "db")
        assert await _replicas(rig.cluster.statefulsets) == 0
        prometheus.value = 9.0
        assert (await rig.wake(operator, "db"))[0] == 202
        assert await _replicas(rig.cluster.statefulsets) == 2
        await rig.becomes("Serve", "db")
        assert recorder.dark_moments("db") == []


async def _replicas(resource: Any) -> int:
    found: JsonObject = await resource.get("db")
    return int(found["spec"]["replicas"])
