"""The end of an ElastiService where the server refuses for a while."""

from __future__ import annotations

import pytest
from tests.controllers.support import deployment, eventually
from tests.operator.rig import Rig

from devkube.apiserver.faults import InjectedFault
from kubeloop.client import NotFound

pytestmark = pytest.mark.virtual_time


async def gone(rig: Rig) -> bool:
    try:
        await rig.elastiservices.get("web")
    except NotFound:
        return True
    return False


async def test_a_target_that_cannot_be_woken_at_once_is_woken_before_it_is_let_go(rig: Rig):
    await rig.cluster.deployments.create(deployment("web", 0))
    await rig.service(clusterIP="None")  # refused, so that there is never a slice to wait for
    await rig.elastiservice()
    path = f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/web/scale"
    async with rig.operator():
        await rig.tells("Ready", "HeadlessService")
        rig.cluster.faults.add(InjectedFault(code=500, path=path))
        await rig.elastiservices.delete("web")
        await eventually(lambda: rig.events("FailedToScale"))
        assert (await rig.elastiservices.get("web"))["metadata"]["deletionTimestamp"]
        rig.cluster.faults.clear()

        await eventually(lambda: gone(rig))
        assert await rig.replicas() == 1


async def test_the_wait_for_a_server_that_refuses_has_an_end(rig: Rig):
    await rig.cluster.deployments.create(deployment("web", 0))
    await rig.service(clusterIP="None")
    await rig.elastiservice()
    path = f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/web/scale"
    async with rig.operator(finalize_wait=1.0):
        await rig.tells("Ready", "HeadlessService")
        rig.cluster.faults.add(InjectedFault(code=500, path=path))
        await rig.elastiservices.delete("web")

        await eventually(lambda: gone(rig))
