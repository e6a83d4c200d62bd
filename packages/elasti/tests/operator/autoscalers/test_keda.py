"""What is promised about KEDA, sentence by sentence; crashes between the steps are `test_crashes`'."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.controllers.support import eventually
from tests.operator import kinds
from tests.operator.accounts import Account, confined_operator
from tests.operator.fakes import RESOLVER_NAMESPACE
from tests.operator.keda import KEDA, keda_on
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import define, everywhere_fast

from elasti.api.names import (
    PAUSED,
    PAUSED_BY_US_ANNOTATION,
    PAUSED_OBJECTS_ANNOTATION,
    PAUSED_REPLICAS,
)
from elasti.operator.autoscalers.keda import Keda
from elasti.operator.rbac import NAMESPACED_RULES, OWN_RULES, RESOLVER_NAMESPACE_RULES
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]

OURS = {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}


async def test_a_pause_of_another_writer_stays_through_sleep_and_wake(
    rig: Rig, prometheus: FakePrometheus
):
    async with keda_on(rig, **{PAUSED: "true"}) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            assert await keda.annotations() == {PAUSED: "true"}
            prometheus.value = 9.0
            await rig.wake(operator, "web")
            await rig.becomes("Serve")
        assert await keda.annotations() == {PAUSED: "true"}


async def test_replicas_of_a_pause_go_with_the_wake_for_any_writer(rig: Rig):
    async with keda_on(rig, **{PAUSED_REPLICAS: "0"}) as keda:
        await rig.web(replicas=0, autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            await rig.wake(operator, "web")
            await rig.becomes("Serve")

            async def gone() -> bool:
                return await keda.annotations() == {}

            await eventually(gone)


async def test_replicas_that_another_writer_keeps_are_left_to_him(
    rig: Rig, prometheus: FakePrometheus
):
    async with keda_on(rig, **{PAUSED_REPLICAS: "2"}) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator():
            told = await rig.says("MaySleep", "keeps 2 replicas")
            assert PAUSED_REPLICAS in told["message"]
            assert await rig.replicas() == 1
            assert await keda.annotations() == {PAUSED_REPLICAS: "2"}


async def without_rights_to_keda(rig: Rig, directory: Path) -> None:
    """Let the rig's operators do everything but touch ScaledObjects."""
    account = await Account(rig, "without-keda").create()
    without = [rule for rule in NAMESPACED_RULES if rule.group != "keda.sh"]
    await account.grant(without, namespace=rig.namespace)
    own = (*OWN_RULES, *RESOLVER_NAMESPACE_RULES)
    await account.grant(own, namespace=RESOLVER_NAMESPACE)
    await confined_operator(rig, directory, rig.namespace)
    rig.config = await account.config(directory)


async def test_where_keda_cannot_be_paused_nothing_sleeps(
    rig: Rig, prometheus: FakePrometheus, tmp_path: Path
):
    await without_rights_to_keda(rig, tmp_path)
    async with keda_on(rig) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator():

            async def told() -> bool:
                events = await rig.cluster.list("events")
                return any("scaledobjects" in event["message"] for event in events)

            await eventually(told)
            await rig.becomes("Serve")
            assert await rig.replicas() == 1
            assert await keda.annotations() == {}


async def test_where_keda_cannot_be_resumed_the_wake_goes_on_and_it_is_tried_again(
    rig: Rig, tmp_path: Path
):
    await without_rights_to_keda(rig, tmp_path)
    async with keda_on(rig, **OURS) as keda:
        await rig.web(replicas=0, autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            code, reply = await rig.wake(operator, "web")
            assert (code, reply["outcome"]) == (202, "scaling")
            await rig.becomes("Serve")
            # Nothing else happens from now on: it is tried again until it is allowed.
            await Account(rig, "without-keda").grant(
                NAMESPACED_RULES, namespace=rig.namespace, name="with-keda"
            )

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)


async def test_a_scaledobject_that_is_no_longer_named_is_resumed_by_the_wake(
    rig: Rig, prometheus: FakePrometheus
):
    async with keda_on(rig) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator() as operator:
            await rig.becomes("Proxy")
            assert await keda.annotations() == OURS
            await rig.elastiservices.patch("web", MergePatch({"spec": {"autoscaler": None}}))
            prometheus.value = 9.0
            await rig.wake(operator, "web")
            await rig.becomes("Serve")

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)


@pytest.mark.parametrize("autoscaler", [None, {"type": "hpa", "name": "web"}])
async def test_one_that_is_no_longer_named_is_resumed_by_the_next_leader(
    rig: Rig, prometheus: FakePrometheus, autoscaler: JsonObject | None
):
    async with keda_on(rig) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator():
            await rig.becomes("Proxy")
            assert await keda.annotations() == OURS
        await rig.elastiservices.patch("web", MergePatch({"spec": {"autoscaler": autoscaler}}))
        prometheus.value = 9.0
        async with rig.operator() as operator:
            await rig.wake(operator, "web")
            await rig.becomes("Serve")

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)

            async def forgotten() -> bool:
                found = await rig.elastiservices.get("web")
                return PAUSED_OBJECTS_ANNOTATION not in (found["metadata"].get("annotations") or {})

            await eventually(forgotten)


async def test_the_end_of_an_elastiservice_resumes_one_that_it_no_longer_names(
    rig: Rig, prometheus: FakePrometheus
):
    async with keda_on(rig) as keda:
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator():
            await rig.becomes("Proxy")
        await rig.elastiservices.patch("web", MergePatch({"spec": {"autoscaler": None}}))
        await rig.elastiservices.delete("web")
        async with rig.operator():

            async def gone() -> bool:
                return not [item async for item in rig.elastiservices.items()]

            await eventually(gone)
            assert await keda.annotations() == {}


async def test_the_end_of_an_elastiservice_resumes_keda(rig: Rig):
    async with keda_on(rig, **OURS) as keda:
        await rig.web(replicas=0, autoscaler=KEDA)
        async with rig.operator():
            await rig.becomes("Proxy")
            await rig.elastiservices.delete("web")

            async def gone() -> bool:
                return not [item async for item in rig.elastiservices.items()]

            await eventually(gone)
            assert await keda.annotations() == {}


async def test_a_keda_that_does_not_confirm_is_named_in_the_condition(
    rig: Rig, prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Keda, "pause_timeout", 0.5)
    async with keda_on(rig) as keda:
        keda.reports = False
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator():
            told = await rig.tells("MaySleep", "AttemptEnded")
            assert "KEDA" in told["message"]
            assert await keda.annotations() == {}


async def test_a_wake_during_the_pause_leaves_nothing_paused(
    rig: Rig, prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
):
    """Traffic comes while KEDA is being paused: whoever ends last, KEDA works."""
    monkeypatch.setattr(Keda, "pause_timeout", 2.0)
    async with keda_on(rig) as keda:
        keda.reports = False
        await rig.web(triggers=[prometheus.trigger()], autoscaler=KEDA)
        async with rig.operator() as operator:

            async def pausing() -> bool:
                return await keda.annotations() == OURS

            await eventually(pausing)
            prometheus.value = 9.0
            await rig.wake(operator, "web")
            keda.reports = True

            async def resumed() -> bool:
                return await keda.annotations() == {}

            await eventually(resumed)
            await rig.becomes("Serve")
            assert await rig.replicas() == 1
            assert await keda.annotations() == {}


async def test_a_scaled_objects_condition_lets_its_target_sleep(rig: Rig):
    await define(rig.client, kinds.scaled_object())
    await rig.web(triggers=[{"type": "keda", "metadata": {"scaledObject": "web"}}])
    async with rig.operator():
        await rig.becomes("Serve")
        await rig.says("TriggersHealthy", "ScaledObject web in namespace")
        async with keda_on(rig) as keda:
            await rig.says("TriggersHealthy", "kubectl describe scaledobject web")
            keda.reports = False
            await keda.set_active(True)
            await rig.tells("MaySleep", "InUse")
            await keda.set_active(False)
            await rig.becomes("Proxy")
            await keda.set_active(True)
            await rig.becomes("Serve")
