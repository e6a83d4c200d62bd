"""Whole cycles, on both servers, with exactly the rights that the operator's manifests give it."""

from __future__ import annotations

import contextlib

import aiohttp
import pytest
from tests.controllers.support import deployment, eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere

from elasti.api.names import private_service_name, resolver_slice_name
from kubeloop.client import AlreadyExists, Client
from kubeloop.client.errors import Forbidden
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere, pytest.mark.timeout(180)]


@pytest.mark.garbage_collector
async def test_a_whole_cycle_with_only_the_granted_rights(rig: Rig, prometheus: FakePrometheus):
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        assert await rig.addresses() == [rig.resolver.shown]
        code, _ = await rig.wake(operator, "web")
        assert code == 202
        prometheus.value = 9.0
        await rig.becomes("Serve")
        assert await rig.slice() is None
        prometheus.value = 0.0
        await rig.becomes("Proxy")
        await rig.elastiservices.delete("web", propagation="Foreground")

        async def gone() -> bool:
            return not [item async for item in rig.elastiservices.items()]

        await eventually(gone, timeout=60)
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        assert await rig.cluster.get("services", private_service_name("web")) is None


async def test_the_policy_of_an_installation_binds_this_operator_on_a_real_server(
    rig: Rig, request: pytest.FixtureRequest
):
    """So whatever these tests' operator does there passes it. The dev cluster has no policies."""
    is_real = request.node.get_closest_marker("controlplane") is not None
    await rig.service()
    async with Client(rig.config) as operator:
        services = operator.resource("v1/services", namespace=rig.namespace)

        async def is_bound() -> bool:
            try:
                await services.patch("web", MergePatch({"metadata": {"labels": {"a": "b"}}}))
            except Forbidden as error:
                return "the operator changes" in str(error)
            return not is_real

        await eventually(is_bound)


async def test_kubeelastis_objects_are_adopted_whatever_their_type(rig: Rig):
    await rig.cluster.deployments.create(deployment("web", 0))
    public = await rig.service()
    await rig.cluster.services.create(
        {
            "metadata": {"name": private_service_name("web"), "annotations": {"lb": "yes"}},
            "spec": {
                "type": "LoadBalancer",
                "selector": {"app": "web"},
                "ports": public["spec"]["ports"],
            },
        }
    )
    await rig.cluster.slices.create(
        {
            "metadata": {
                "name": resolver_slice_name("web"),
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8012, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.9.9.9"]}],
        }
    )
    await rig.elastiservice()
    async with rig.operator():
        await rig.becomes("Proxy")

        async def adopted() -> bool:
            return await rig.addresses() == [rig.resolver.shown]

        await eventually(adopted)
        private = await rig.cluster.services.get(private_service_name("web"))
        assert private["spec"]["type"] == "ClusterIP"
        assert "nodePort" not in private["spec"]["ports"][0]
        assert not private["metadata"].get("annotations")
        assert private["spec"]["clusterIP"]


async def test_private_slices_carry_the_label_and_show_pods_before_they_are_ready(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=1)
    async with rig.operator():
        await rig.becomes("Waking")

        async def shown() -> bool:
            slices = await rig.cluster.list(
                "slices", selector="elasti.truefoundry.com/private=true"
            )
            return any(piece.get("endpoints") for piece in slices)

        await eventually(shown)
        await eventually(rig.addresses)
        rig.cluster.kubelet.may_be_ready = lambda pod: True
        rig.cluster.kubelet.look_again()
        await rig.becomes("Serve")


async def test_tokens_are_reviewed_by_the_server(rig: Rig):
    await rig.web(replicas=0)
    accounts = rig.client.resource("v1/serviceaccounts", namespace="elasti")
    with contextlib.suppress(AlreadyExists):
        await accounts.create({"metadata": {"name": "resolver"}})

    async def token(namespace: str, name: str, audience: str) -> str:
        accounts = rig.client.resource("v1/serviceaccounts", namespace=namespace)
        request = {"spec": {"audiences": [audience], "expirationSeconds": 600}}
        made = await accounts.subresource("token").create(name, request)
        return f"Bearer {made['status']['token']}"

    async with rig.operator(authenticate=True) as operator:
        await rig.becomes("Proxy")
        attempts = {
            await token("elasti", "resolver", "https://elsewhere"): 401,
            await token(rig.namespace, "default", "elasti-operator"): 403,
            await token("elasti", "resolver", "elasti-operator"): 202,
        }
        url = f"http://127.0.0.1:{operator.server.port}/informer/incoming-request"
        body = {"count": 1, "svc": "web", "namespace": rig.namespace}
        async with aiohttp.ClientSession() as session:
            for authorization, expected in attempts.items():
                headers = {"Authorization": authorization}
                async with session.post(url, json=body, headers=headers) as response:
                    assert response.status == expected
        assert await rig.replicas() == 1
