"""KEDA, HPAs, other writers, other kinds: whoever else has a say in a target's replicas."""

from __future__ import annotations

import pytest
from tests.controllers.support import eventually
from tests.operator.keda import KEDA, keda_on
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from elasti.api.names import PAUSED, PAUSED_BY_US_ANNOTATION, PAUSED_REPLICAS
from elasti.operator.autoscalers.keda import Keda

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]


async def test_keda_is_paused_for_the_sleep_and_resumed_by_the_wake(
    rig: Rig, prometheus: FakePrometheus
):
    async with keda_on(rig) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            assert await keda.annotations() == {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}
            await rig.wake(operator, "web")
            prometheus.value = 9.0
            await rig.becomes("Serve")

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)


async def test_a_pause_of_another_writer_is_left_alone(rig: Rig):
    async with keda_on(rig, **{PAUSED: "true"}) as keda:
        await rig.web(replicas=0, autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            await rig.wake(operator, "web")
            await rig.becomes("Serve")
        assert await keda.annotations() == {PAUSED: "true"}


async def test_kubeelastis_pause_is_taken_back(rig: Rig):
    async with keda_on(rig, **{PAUSED: "true", PAUSED_REPLICAS: "0"}) as keda:
        await rig.web(replicas=0, autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            await rig.wake(operator, "web")
            await rig.becomes("Serve")

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)


async def test_a_pause_left_by_a_crash_is_taken_back(rig: Rig):
    async with keda_on(rig, **{PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}) as keda:
        await rig.web(replicas=1, autoscaler=KEDA)
        async with rig.operator():

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)


async def test_keda_that_does_not_pause_keeps_the_target_awake(
    rig: Rig, prometheus: FakePrometheus, monkeypatch
):
    monkeypatch.setattr(Keda, "pause_timeout", 0.4)
    async with keda_on(rig) as keda:
        keda.reports = False
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator():

            async def told() -> bool:
                return bool(await rig.events("FailedToScale"))

            await eventually(told)
            assert await rig.replicas() == 1
            prometheus.value = 9.0
            await rig.becomes("Serve")
            assert await rig.replicas() == 1
            assert PAUSED not in await keda.annotations()


async def test_a_missing_scaledobject_does_not_hold_up_a_wake(rig: Rig):
    await rig.web(replicas=0, autoscaler=KEDA)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        code, _ = await rig.wake(operator, "web")
        assert code == 202
        await rig.becomes("Serve")


async def test_wakes_of_our_own_are_not_a_contest(rig: Rig, prometheus: FakePrometheus):
    await rig.web(triggers=[prometheus.trigger()])
    rig.hurry()
    async with rig.operator() as operator:
        for _ in range(3):
            prometheus.value = 0.0
            await rig.becomes("Proxy")
            await rig.wake(operator, "web")
            prometheus.value = 9.0
            await rig.becomes("Serve")
        assert (await rig.condition("ScaleContested"))["status"] == "False"


async def test_wakes_by_another_replica_are_not_a_contest(rig: Rig, prometheus: FakePrometheus):
    """Half of the resolvers' calls reach a standby; a real server does not record who used /scale."""
    await rig.web(triggers=[prometheus.trigger()])
    rig.hurry()
    lead = {"leader_elect": True, "operator_namespace": "elasti"}
    async with rig.operator(identity="leads", **lead) as leader:
        await rig.becomes("Serve")
        async with rig.operator(identity="stands-by", **lead) as standby:
            assert (leader.manager.is_leader, standby.manager.is_leader) == (True, False)
            for _ in range(4):
                prometheus.value = 0.0
                await rig.becomes("Proxy")
                code, reply = await rig.wake(standby, "web")
                assert (code, reply["outcome"]) == (202, "scaling")
                prometheus.value = 9.0
                await rig.becomes("Serve")
            assert (await rig.condition("ScaleContested"))["status"] == "False"


async def test_an_unknown_writer_is_a_contest_even_if_not_recorded(
    rig: Rig, prometheus: FakePrometheus
):
    """Through /scale, as autoscalers do: the dev cluster names him, a real server does not."""
    await rig.web(triggers=[prometheus.trigger()])
    rig.hurry()
    async with rig.operator():
        for _ in range(3):
            prometheus.value = 0.0
            await rig.becomes("Proxy")
            await rig.scale(1)
            prometheus.value = 9.0
            await rig.becomes("Serve")
        prometheus.value = 0.0
        told = await rig.tells("ScaleContested", "UndoneRepeatedly")
        assert told["message"].startswith(("kubectl keeps", "another writer keeps"))
        await rig.becomes("Serve")
        assert await rig.replicas() == 1


async def test_kubeelastis_plural_kinds_still_work(rig: Rig):
    target = {"apiVersion": "apps/v1", "kind": "deployments", "name": "web"}
    await rig.web(replicas=0, scaleTargetRef=target)
    async with rig.operator():
        await rig.becomes("Proxy")


async def test_the_number_of_watches_does_not_depend_on_elastiservices(rig: Rig):
    async with rig.operator() as operator:
        await rig.web(replicas=0, name="first")
        await rig.becomes("Proxy", "first")
        before = operator.caches.manager.counts()
        for number in range(8):
            await rig.web(replicas=0, name=f"web-{number}")
        for number in range(8):
            await rig.becomes("Proxy", f"web-{number}")
        assert operator.caches.manager.counts() == before
        assert sum(before.values()) < 10


async def _more(prometheus: FakePrometheus, queries: int) -> bool:
    return len(prometheus.queries) >= queries
