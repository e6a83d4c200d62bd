"""Reading pods for their probes."""

from __future__ import annotations

import asyncio

import pytest
from tests.resolver.cluster import FakeCluster, pod

from elasti.resolver.projections import PodName
from elasti.resolver.readiness.plan import ProbePlan
from elasti.resolver.readiness.pods import KubePods
from kubeloop.client.errors import ConnectionRefused, Forbidden, Status

pytestmark = pytest.mark.virtual_time
NAME = PodName("shop", "web-1", "uid-web-1")
PROBED = {"readinessProbe": {"tcpSocket": {"port": 80}}}


class Failing(FakeCluster):
    """A cluster whose next reads fail."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)

    def resource(self, resource, kind=dict, *, namespace=""):
        inner = super().resource(resource, kind, namespace=namespace)
        cluster = self

        class Pods:
            async def get(self, name, *, namespace, timeout):
                await asyncio.sleep(0.01)
                if cluster.errors:
                    raise cluster.errors.pop(0)
                return await inner.get(name, namespace=namespace, timeout=timeout)

        return Pods()


async def test_a_pod_is_read_once_however_many_ask():
    cluster = Failing()
    cluster.pods["web-1"] = pod("web-1", PROBED)
    pods = KubePods(cluster)  # type: ignore[arg-type]
    plans = await asyncio.gather(*(pods.plan(NAME) for _ in range(5)))
    assert {len(plan.questions) for plan in plans} == {1}
    assert await pods.plan(NAME) == plans[0]
    assert cluster.pod_reads == ["web-1"]
    assert not pods._locks


async def test_a_server_that_is_away_is_asked_again():
    cluster = Failing(ConnectionRefused("no"), ConnectionRefused("no"))
    cluster.pods["web-1"] = pod("web-1", PROBED)
    assert (await KubePods(cluster).plan(NAME)).questions  # type: ignore[arg-type]


async def test_a_pod_that_cannot_be_read_is_left_to_kubernetes():
    refusal = Forbidden(Status(code=403, reason="Forbidden", message="no"))
    assert (await KubePods(Failing(refusal)).plan(NAME)).only_ready  # type: ignore[arg-type]
    assert (await KubePods(Failing()).plan(NAME)).only_ready == "it is gone"  # type: ignore[arg-type]


async def test_another_pod_of_the_same_name_is_not_taken_for_it():
    cluster = Failing()
    cluster.pods["web-1"] = pod("web-1", PROBED)
    plan = await KubePods(cluster).plan(NAME._replace(uid="older"))  # type: ignore[arg-type]
    assert plan == ProbePlan(only_ready="another pod has its name")


async def test_an_address_is_a_pods_own_as_the_pod_says():
    cluster = Failing()
    cluster.pods["web-1"] = pod("web-1", address="10.0.0.1")
    pods = KubePods(cluster)  # type: ignore[arg-type]
    assert await pods.owns(NAME, "10.0.0.1")
    assert not await pods.owns(NAME, "10.0.0.2")
    assert not await pods.owns(NAME._replace(uid="older"), "10.0.0.1")
    assert not await pods.owns(NAME._replace(name="none"), "10.0.0.1")
    # Its sandbox was made again.
    cluster.pods["web-1"] = pod("web-1", address="10.0.0.2")
    assert await pods.owns(NAME, "10.0.0.2")


async def test_slices_are_believed_where_pods_cannot_be_read():
    refusal = Forbidden(Status(code=403, reason="Forbidden", message="no"))
    assert await KubePods(Failing(refusal)).owns(NAME, "10.0.0.1")  # type: ignore[arg-type]
    began = asyncio.get_running_loop().time()
    away = Failing(*[ConnectionRefused("no")] * 100)
    assert await KubePods(away).owns(NAME, "10.0.0.1")  # type: ignore[arg-type]
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0, abs=0.1)
