from __future__ import annotations

import pytest
from tests.controllers.support import Cluster, deployment, eventually, template
from tests.controllers.workloads import endpoints_of, ready_endpoints, service, slices

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch


@pytest.mark.any_server
async def test_a_service_gets_a_slice_with_its_labels_and_its_pods(cluster: Cluster) -> None:
    made = await cluster.services.create(service())
    await cluster.deployments.create(deployment(replicas=2))
    (item,) = await ready_endpoints(cluster, 2)
    assert item["metadata"]["name"].startswith("web-")
    assert item["metadata"]["labels"] == {
        "team": "red",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert item["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "name": "web",
            "uid": made["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert item["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    endpoint = item["endpoints"][0]
    assert endpoint["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert endpoint["nodeName"] == "node-1"
    assert endpoint["targetRef"]["kind"] == "Pod"


async def test_an_address_is_listed_before_its_pod_is_ready(cluster: Cluster) -> None:
    cluster.kubelet.may_be_ready = lambda pod: False
    await cluster.services.create(service())
    await cluster.deployments.create(deployment(replicas=1))

    async def listed() -> list[JsonObject]:
        return endpoints_of(await slices(cluster))

    (endpoint,) = await eventually(listed)
    assert endpoint["conditions"] == {"ready": False, "serving": False, "terminating": False}
    cluster.kubelet.may_be_ready = lambda pod: True
    cluster.kubelet.look_again()
    await ready_endpoints(cluster, 1)


@pytest.mark.any_server
async def test_a_pod_that_ends_is_listed_as_terminating_until_it_is_gone(cluster: Cluster) -> None:
    await cluster.services.create(service())
    await cluster.deployments.create(deployment(replicas=1))
    await ready_endpoints(cluster, 1)
    cluster.kubelet.may_end = lambda pod: False
    await cluster.deployments.patch("web", MergePatch({"spec": {"replicas": 0}}))

    async def terminating() -> list[JsonObject]:
        found = endpoints_of(await slices(cluster))
        return [e for e in found if e["conditions"]["terminating"]]

    (endpoint,) = await eventually(terminating)
    assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}
    cluster.kubelet.may_end = lambda pod: True
    cluster.kubelet.look_again()

    async def empty() -> bool:
        return not endpoints_of(await slices(cluster))

    await eventually(empty)
    (item,) = await slices(cluster)
    assert not item.get("ports")


async def _has(cluster: Cluster, number: int) -> bool:
    found = await slices(cluster)
    return len(found) == number and len(endpoints_of(found)) == number


async def test_pods_that_mean_another_port_by_a_name_are_listed_apart(cluster: Cluster) -> None:
    await cluster.services.create(service())
    await cluster.deployments.create(deployment("one", replicas=1, **named_port(8080)))
    await cluster.deployments.create(deployment("two", replicas=1, **named_port(9090)))
    found = await ready_endpoints(cluster, 2)
    assert sorted(item["ports"][0]["port"] for item in found) == [8080, 9090]
    assert [len(item["endpoints"]) for item in found] == [1, 1]


def named_port(number: int) -> JsonObject:
    labels = {"app": "web", "port": str(number)}
    made = template(labels)
    made["spec"]["containers"][0]["ports"][0]["containerPort"] = number
    return {"selector": {"matchLabels": labels}, "template": made}


async def test_slices_go_with_their_service(cluster: Cluster) -> None:
    await cluster.services.create(service())
    await eventually(lambda: slices(cluster))
    await cluster.services.delete("web")

    async def gone() -> bool:
        return not await slices(cluster)

    await eventually(gone)


async def test_an_endless_number_of_pods_fills_several_slices(dev_cluster: Cluster) -> None:
    await dev_cluster.client.resource("v1/nodes").patch(
        "node-1", MergePatch({"status": {"allocatable": {"pods": "1000"}}})
    )
    await (
        dev_cluster.client.resource("v1/nodes")
        .subresource("status")
        .patch("node-1", MergePatch({"status": {"allocatable": {"pods": "1000"}}}))
    )
    await dev_cluster.services.create(service())
    await dev_cluster.deployments.create(deployment(replicas=130))
    found = await ready_endpoints(dev_cluster, 130)
    assert sum(len(item["endpoints"]) for item in found) == 130
    assert all(len(item["endpoints"]) <= 100 for item in found)
    await dev_cluster.deployments.patch("web", MergePatch({"spec": {"replicas": 5}}))
    await ready_endpoints(dev_cluster, 5)
