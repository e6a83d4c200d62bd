"""Several operators: who leads works, who does not is ready all the same, and whoever lost the lease stops."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.controllers.support import eventually
from tests.operator.accounts import confined_operator
from tests.operator.api_relay import ApiRelay
from tests.operator.keda import KEDA, keda_on
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere

from elasti.api.names import LEASE_NAME, PAUSED, PAUSED_BY_US_ANNOTATION
from elasti.operator.app import OperatorApp
from kubeloop.client import ClientConfig, NotFound
from kubeloop.controller.manager.runnables import Group
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere, pytest.mark.timeout(240)]

OURS = {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}


@pytest.fixture(autouse=True)
async def free_lease(rig: Rig) -> None:
    """Nobody leads: a server may have been used by another test."""
    with contextlib.suppress(NotFound):
        await leases(rig).delete(LEASE_NAME)


def leases(rig: Rig):
    return rig.client.resource("coordination.k8s.io/v1/leases", namespace="elasti")


async def get(operator: OperatorApp, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{operator.server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


@contextlib.asynccontextmanager
async def relayed(rig: Rig, directory: Path) -> AsyncIterator[ApiRelay]:
    """Let the operators that start in the block go through a relay that sees their writes."""
    account = await confined_operator(rig, directory, rig.namespace)
    relay = ApiRelay.to(rig.cluster.kubeconfig, token=await account.token())
    before = rig.config
    async with relay.running():
        rig.config = ClientConfig.from_kubeconfig(relay.kubeconfig(directory / "relayed"))
        try:
            yield relay
        finally:
            rig.config = before


async def test_a_standby_is_ready_and_wakes_with_all_that_belongs_to_it(rig: Rig, tmp_path: Path):
    async with keda_on(rig, **OURS) as keda, contextlib.AsyncExitStack() as stack:
        await rig.web(replicas=0, autoscaler=KEDA)
        first = await stack.enter_async_context(rig.operator(identity="one", leader_elect=True))
        await rig.becomes("Proxy")
        relay = await stack.enter_async_context(relayed(rig, tmp_path))
        standby = await stack.enter_async_context(rig.operator(identity="two", leader_elect=True))
        assert (first.manager.is_leader, standby.manager.is_leader) == (True, False)
        assert (await get(standby, "/readyz"))[0] == 200
        assert relay.writes == []
        code, reply = await rig.wake(standby, "web")
        assert (code, reply["outcome"]) == (202, "scaling")
        await rig.becomes("Serve")

        async def all_done() -> bool:
            status = await rig.status()
            return await keda.annotations() == {} and "lastScaledUpTime" in status

        await eventually(all_done)
        kinds = {(call.method, call.path.rsplit("/", 2)[-2:][0]) for call in relay.writes}
        assert ("PUT", "web") in kinds
        assert all(
            call.path.endswith(("/scale", "/status")) or "scaledobjects" in call.path
            for call in relay.writes
        ), relay.writes


async def test_a_replica_that_lost_the_lease_writes_nothing_but_wakes(
    rig: Rig, prometheus: FakePrometheus, tmp_path: Path
):
    await rig.web(replicas=0, triggers=[prometheus.trigger()])
    async with relayed(rig, tmp_path) as relay, rig.operator(leader_elect=True) as operator:
        await rig.becomes("Proxy")
        stolen = {"holderIdentity": "thief", "leaseDurationSeconds": 3600}
        await leases(rig).patch(LEASE_NAME, MergePatch({"spec": stolen}))

        async def deposed() -> bool:
            # The lease is kept on a thread of its own: the work stops a moment after it is lost.
            leading = operator.manager._groups[Group.LEADER].running
            return not operator.manager.is_leader and leading == []

        await eventually(deposed, timeout=60)
        queries, relay.calls[:] = len(prometheus.queries), []
        ports = [{"name": "http", "port": 8080, "targetPort": 8080}]
        await rig.cluster.services.patch("web", MergePatch({"spec": {"ports": ports}}))
        await rig.scale(1)

        async def noticed() -> bool:
            found = operator.caches.services.find(rig.namespace, "web")
            return found is not None and [port.port for port in found.tcp_ports] == [8080]

        await eventually(noticed)
        await rig.scale(0)
        assert (await get(operator, "/readyz"))[0] == 200
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "scaling")
        assert [
            call for call in relay.writes if not call.path.endswith(("/scale", "/status"))
        ] == []
        scaled = [call for call in relay.writes if call.path.endswith("/scale")]
        assert [call.status for call in scaled if call.status != 409] == [200]
        assert len(prometheus.queries) <= queries + 1
        await leases(rig).delete(LEASE_NAME)
        prometheus.value = 9.0
        await rig.becomes("Serve")
        assert operator.manager.is_leader
