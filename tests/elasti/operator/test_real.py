"""The operator on Kubernetes' own control plane, with exactly the rights that its manifests give it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.controlplane.plugin import (
    controlplane,
    controlplane_binaries,
    controlplane_settings,
    namespaces,
)
from tests.controlplane.rig import ControlPlane
from tests.devcluster.controllers.support import NODE, cluster_at, deployment, eventually
from tests.elasti.operator.rig import FakePrometheus, Rig, rig_at

from elasti.api.names import private_service_name, resolver_slice_name
from elasti.operator.rbac import CLUSTER_RULES, LEASE_RULES, NAMESPACED_RULES
from kubeloop.client import AlreadyExists, Client, ClientConfig, NotFound
from kubeloop.objects.patches import MergePatch

__all__ = ["controlplane", "controlplane_binaries", "controlplane_settings", "namespaces"]

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(120)]

USER = "elasti-operator-under-test"


@pytest.fixture
async def real(controlplane: ControlPlane) -> AsyncIterator[Rig]:
    async with Client(ClientConfig.from_kubeconfig(controlplane.kubeconfig)) as client:
        try:
            await client.resource("v1/nodes").get(NODE)
        except NotFound:
            controlplane.create_node(NODE)
        await _grant(client)
        async with (
            cluster_at(client, controlplane.kubeconfig) as cluster,
            rig_at(cluster, shown="10.77.0.5") as rig,
        ):
            rig.config = ClientConfig.from_kubeconfig(controlplane.kubeconfig_for(USER))
            try:
                yield rig
            finally:
                for es in [item async for item in rig.elastiservices.items()]:
                    patch = MergePatch({"metadata": {"finalizers": None}})
                    await rig.elastiservices.patch(es["metadata"]["name"], patch)


async def _grant(client: Client) -> None:
    rules = [rule.to_json() for rule in (*NAMESPACED_RULES, *CLUSTER_RULES, *LEASE_RULES)]
    meta = {"metadata": {"name": USER}}
    subject = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
    group = "rbac.authorization.k8s.io/v1"
    try:
        await client.resource(f"{group}/clusterroles").create({**meta, "rules": rules})
        await client.resource(f"{group}/clusterrolebindings").create(
            {**meta, "subjects": [subject], "roleRef": role}
        )
    except AlreadyExists:
        return


async def test_a_whole_cycle_with_no_more_rights_than_granted(
    real: Rig, prometheus: FakePrometheus
):
    await real.web(triggers=[prometheus.trigger()])
    async with real.operator() as operator:
        await real.becomes("Proxy", timeout=30)
        assert await real.replicas() == 0
        assert await real.addresses() == ["10.77.0.5"]
        code, _ = await real.wake(operator, "web")
        assert code == 202
        await real.becomes("Serve", timeout=30)
        assert await real.slice() is None
        await real.becomes("Proxy", timeout=30)
        await real.elastiservices.delete("web", propagation="Foreground")

        async def gone() -> bool:
            return not [item async for item in real.elastiservices.items()]

        await eventually(gone, timeout=30)
        assert await real.replicas() == 1
        assert await real.slice() is None
        assert await real.cluster.get("services", private_service_name("web")) is None


async def test_kubeelastis_objects_are_adopted_by_a_real_server(real: Rig):
    await real.cluster.deployments.create(deployment("web", 0))
    public = await real.service()
    ports = [{**port, "nodePort": 0} for port in public["spec"]["ports"]]
    for port in ports:
        del port["nodePort"]
    await real.cluster.services.create(
        {
            "metadata": {"name": private_service_name("web"), "annotations": {"lb": "yes"}},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": ports},
        }
    )
    await real.cluster.slices.create(
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
    await real.elastiservice()
    async with real.operator():
        await real.becomes("Proxy", timeout=30)

        async def adopted() -> bool:
            return await real.addresses() == ["10.77.0.5"]

        await eventually(adopted, timeout=30)
        private = await real.cluster.services.get(private_service_name("web"))
        assert private["spec"]["type"] == "ClusterIP"
        assert "nodePort" not in private["spec"]["ports"][0]
        assert not private["metadata"].get("annotations")
        assert private["spec"]["clusterIP"]


async def test_private_slices_carry_the_label_and_show_pods_before_they_are_ready(real: Rig):
    real.cluster.kubelet.may_be_ready = lambda pod: False
    await real.web(replicas=1)
    async with real.operator():
        await real.becomes("Waking", timeout=30)

        async def shown() -> bool:
            slices = await real.cluster.list(
                "slices", selector="elasti.truefoundry.com/private=true"
            )
            return any(piece.get("endpoints") for piece in slices)

        await eventually(shown, timeout=30)
        await eventually(real.addresses, timeout=30)
        real.cluster.kubelet.may_be_ready = lambda pod: True
        real.cluster.kubelet.look_again()
        await real.becomes("Serve", timeout=30)


async def test_tokens_are_reviewed_by_a_real_server(real: Rig, controlplane: ControlPlane):
    await real.web(replicas=0)
    accounts = real.client.resource("v1/serviceaccounts", namespace="elasti")
    with contextlib.suppress(AlreadyExists):
        await accounts.create({"metadata": {"name": "resolver"}})

    async def token(namespace: str, name: str, audience: str) -> str:
        accounts = real.client.resource("v1/serviceaccounts", namespace=namespace)
        request = {"spec": {"audiences": [audience], "expirationSeconds": 600}}
        made = await accounts.subresource("token").create(name, request)
        return f"Bearer {made['status']['token']}"

    async with real.operator(authenticate=True) as operator:
        await real.becomes("Proxy", timeout=30)
        attempts = {
            await token("elasti", "resolver", "https://elsewhere"): 401,
            await token(real.namespace, "default", "elasti-operator"): 403,
            await token("elasti", "resolver", "elasti-operator"): 202,
        }
        url = f"http://127.0.0.1:{operator.server.port}/informer/incoming-request"
        body = {"count": 1, "svc": "web", "namespace": real.namespace}
        async with aiohttp.ClientSession() as session:
            for authorization, expected in attempts.items():
                headers = {"Authorization": authorization}
                async with session.post(url, json=body, headers=headers) as response:
                    assert response.status == expected
        assert await real.replicas() == 1
