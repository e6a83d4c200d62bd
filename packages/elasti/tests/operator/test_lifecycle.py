"""Ends, crashes, replicas: what must hold whenever an operator goes away, and when objects do."""

from __future__ import annotations

import pytest
from tests.controllers.support import eventually
from tests.operator.recorder import Recorder
from tests.operator.rig import SLICES, FakePrometheus, Rig
from tests.operator.servers import everywhere

from elasti.api.names import FINALIZER, private_service_name, resolver_slice_name
from kubeloop.client import NotFound
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere, pytest.mark.timeout(240)]


async def _gone(rig: Rig, name: str = "web") -> bool:
    return await rig.cluster.get("deployments", name) is not None and (
        await _elastiservice(rig, name) is None
    )


async def _elastiservice(rig: Rig, name: str = "web"):
    try:
        return await rig.elastiservices.get(name)
    except NotFound:
        return None


@pytest.mark.garbage_collector
async def test_deleting_wakes_first_and_removes_everything_then(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        await rig.elastiservices.delete("web", propagation="Foreground")

        async def woken() -> bool:
            return await rig.replicas() == 1

        await eventually(woken)
        # No pod is ready: the resolver still holds.
        assert await rig.addresses() == [rig.resolver.shown]
        assert await _elastiservice(rig) is not None
        rig.cluster.kubelet.may_be_ready = lambda pod: True
        rig.cluster.kubelet.look_again()
        await eventually(lambda: _gone(rig))
        assert await rig.slice() is None
        assert await rig.cluster.get("services", private_service_name("web")) is None
        assert await rig.cluster.get("services", "web") is not None


async def test_the_resolver_learns_of_a_deletion_after_the_nodes(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(engage_settle=6.0):
        await rig.becomes("Proxy")
        await rig.elastiservices.delete("web")

        async def stepped_aside() -> bool:
            return await rig.slice() is None

        await eventually(stepped_aside)
        # Some node may not know, and sends its connections where they went.
        assert await _elastiservice(rig) is not None
        assert await rig.cluster.get("services", private_service_name("web")) is not None
        await eventually(lambda: _gone(rig))
        assert await rig.cluster.get("services", private_service_name("web")) is None


async def test_the_wait_of_a_deletion_is_bounded(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=0)
    async with rig.operator(finalize_wait=0.5):
        await rig.becomes("Proxy")
        await rig.elastiservices.delete("web")
        await eventually(lambda: _gone(rig))
        assert await rig.replicas() == 1
        assert await rig.slice() is None


async def test_leave_does_not_wake(rig: Rig):
    await rig.web(replicas=0, deletionPolicy="Leave")
    async with rig.operator():
        await rig.becomes("Proxy")
        await rig.elastiservices.delete("web")
        await eventually(lambda: _gone(rig))
        assert await rig.replicas() == 0
        assert await rig.slice() is None


async def test_a_deletion_does_not_wait_for_what_is_gone(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(finalize_wait=60.0):
        await rig.becomes("Proxy")
        await rig.cluster.deployments.delete("web")
        await rig.elastiservices.delete("web")

        async def gone() -> bool:
            return await _elastiservice(rig) is None

        await eventually(gone)
        assert await rig.slice() is None


async def test_a_terminating_namespace_is_not_waited_for(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=0)
    async with rig.operator(finalize_wait=60.0):
        await rig.becomes("Proxy")
        await rig.client.resource("v1/namespaces").delete(rig.namespace)

        async def gone() -> bool:
            return await _elastiservice(rig) is None

        await eventually(gone)


async def test_orphans_are_swept(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
    # Deleted behind the operator's back, its finalizer torn off.
    await rig.elastiservices.patch("web", MergePatch({"metadata": {"finalizers": None}}))
    await rig.elastiservices.delete("web")
    assert await rig.slice() is not None
    async with rig.operator():

        async def swept() -> bool:
            private = await rig.cluster.get("services", private_service_name("web"))
            return await rig.slice() is None and private is None

        await eventually(swept)
        assert await rig.cluster.get("services", "web") is not None


async def test_the_finalizer_is_there_before_anything_else(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        assert FINALIZER in (await rig.elastiservices.get("web"))["metadata"]["finalizers"]


# Cycles


_HASTE = {"engage_settle": 0.1, "release_settle": 0.05, "polling_interval": 0.05}


async def test_the_service_is_never_dark_through_cycles(rig: Rig, prometheus: FakePrometheus):
    await rig.web(triggers=[prometheus.trigger()])
    rig.hurry()
    async with Recorder(rig).running() as recorder:
        async with rig.operator(**_HASTE) as operator:
            for replicas in (1, 1, 3):
                prometheus.value = 0.0
                await rig.becomes("Proxy")
                await rig.wake(operator, "web")
                prometheus.value = 9.0
                await rig.becomes("Serve")
                await rig.scale(replicas)
            prometheus.value = 0.0
            await rig.becomes("Proxy")
        # The control: a slice that goes before pods are ready must show, or this proves nothing.
        assert recorder.dark_moments() == []
        await rig.client.resource(SLICES, namespace=rig.namespace).delete(
            resolver_slice_name("web")
        )

        async def dark() -> bool:
            return recorder.dark_moments() != []

        await eventually(dark)


# Replicas


async def test_a_standby_wakes_and_a_new_leader_goes_on(rig: Rig):
    await rig.web(replicas=0)
    lead = {"leader_elect": True, "operator_namespace": "elasti"}
    async with rig.operator(identity="one", **lead) as first:
        await rig.becomes("Proxy")
        async with rig.operator(identity="two", **lead) as second:
            assert first.manager.is_leader
            assert not second.manager.is_leader
            code, reply = await rig.wake(second, "web")
            assert (code, reply["outcome"]) == (202, "scaling")
            assert await rig.replicas() == 1
            await rig.becomes("Serve")
            first.stop()

            async def elected() -> bool:
                return second.manager.is_leader

            await eventually(elected)
            await rig.scale(0)
            await rig.becomes("Proxy")


@pytest.mark.slow
async def test_losing_the_lease_stops_the_work_and_not_the_waking(rig: Rig):
    await rig.web(replicas=0)
    leases = rig.client.resource("coordination.k8s.io/v1/leases", namespace="elasti")
    async with rig.operator(identity="one", leader_elect=True) as operator:
        await rig.becomes("Proxy")
        (lease,) = [item async for item in leases.items()]
        name = lease["metadata"]["name"]
        stolen = {"holderIdentity": "thief", "leaseDurationSeconds": 3600}
        await leases.patch(name, MergePatch({"spec": stolen}))

        async def deposed() -> bool:
            return not operator.manager.is_leader

        await eventually(deposed, timeout=30)
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "scaling")
        # Nobody leads: the slice stays, and nothing is released.
        assert await rig.addresses() == [rig.resolver.shown]
        assert await rig.state() == "Proxy"
        await leases.delete(name)
        await rig.becomes("Serve", timeout=30)
