from __future__ import annotations

import pytest
from tests.controllers.support import Cluster, deployment, eventually

from kubeloop.objects.meta import JsonObject


async def namespace(cluster: Cluster, name: str) -> JsonObject | None:
    found = [item async for item in cluster.client.resource("v1/namespaces").items()]
    return next((item for item in found if item["metadata"]["name"] == name), None)


async def is_gone(cluster: Cluster) -> bool:
    return await namespace(cluster, cluster.namespace) is None


async def delete(cluster: Cluster) -> None:
    await cluster.client.resource("v1/namespaces").delete(cluster.namespace)


async def test_four_namespaces_are_there_from_the_start(cluster: Cluster) -> None:
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        found = await namespace(cluster, name)
        assert found is not None
        assert found["status"]["phase"] == "Active"
        assert found["spec"]["finalizers"] == ["kubernetes"]


async def test_a_namespace_has_an_account_and_the_servers_certificate(cluster: Cluster) -> None:
    await eventually(lambda: cluster.get("serviceaccounts", "default"))
    found = await eventually(lambda: cluster.get("configmaps", "kube-root-ca.crt"))
    assert found["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    await cluster.serviceaccounts.delete("default")
    await cluster.configmaps.delete("kube-root-ca.crt")
    await eventually(lambda: cluster.get("serviceaccounts", "default"))
    await eventually(lambda: cluster.get("configmaps", "kube-root-ca.crt"))


@pytest.mark.any_server
async def test_a_deleted_namespace_takes_everything_along(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=2))
    await cluster.configmaps.create({"metadata": {"name": "one"}})

    async def two_pods() -> bool:
        return len(await cluster.list("pods")) == 2

    await eventually(two_pods)
    await delete(cluster)
    await eventually(lambda: is_gone(cluster), timeout=30)
    assert await cluster.list("pods") == []
    assert await cluster.list("configmaps") == []


@pytest.mark.any_server
async def test_conditions_report_what_a_namespace_waits_for(cluster: Cluster) -> None:
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    await cluster.configmaps.create(held)
    await delete(cluster)

    async def told() -> JsonObject | None:
        found = await namespace(cluster, cluster.namespace)
        assert found is not None
        listed = found["status"].get("conditions") or []
        true = {c["type"]: c["message"] for c in listed if c["status"] == "True"}
        return true if "NamespaceFinalizersRemaining" in true else None

    assert await eventually(told) == {
        "NamespaceContentRemaining": (
            "Some resources are remaining: configmaps. has 1 resource instances"
        ),
        "NamespaceFinalizersRemaining": (
            "Some content in the namespace has finalizers remaining:"
            " example.com/hold in 1 resource instances"
        ),
    }
    found = await namespace(cluster, cluster.namespace)
    assert found is not None
    assert found["status"]["phase"] == "Terminating"
    obj = await cluster.get("configmaps", "held")
    assert obj is not None
    obj["metadata"]["finalizers"] = []
    await cluster.configmaps.replace(obj)
    await eventually(lambda: is_gone(cluster), timeout=30)


async def test_pods_end_before_what_they_may_need(cluster: Cluster) -> None:
    cluster.kubelet.may_end = lambda pod: False
    await cluster.deployments.create(deployment(replicas=1))
    await cluster.configmaps.create({"metadata": {"name": "needed"}})

    async def running() -> bool:
        pods = await cluster.list("pods")
        return bool(pods) and pods[0]["status"].get("phase") == "Running"

    await eventually(running)
    await delete(cluster)

    async def ending() -> bool:
        return all(p["metadata"].get("deletionTimestamp") for p in await cluster.list("pods"))

    await eventually(ending)
    assert await cluster.get("configmaps", "needed") is not None
    cluster.kubelet.may_end = lambda pod: True
    cluster.kubelet.look_again()
    await eventually(lambda: is_gone(cluster), timeout=30)
