"""EndpointSlices: which addresses a Service has, and in which state."""

from __future__ import annotations

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, eventually, names
from tests.conformance.kubelet import Kubelet
from tests.conformance.manifests import endpoint_slice, pod, service


async def slices_of(kube: Kube, name: str = "web") -> list[JsonObject]:
    selector = f"kubernetes.io/service-name={name}"
    return [item async for item in kube.slices.items(selector=selector)]


async def endpoints_of(kube: Kube, count: int, **conditions: bool) -> list[JsonObject]:
    """Wait until the Service has so many endpoints, all in these conditions."""
    found: list[JsonObject] = []

    async def settled() -> bool:
        found[:] = [e for s in await slices_of(kube) for e in s["endpoints"] or []]
        return len(found) == count and all(
            e["conditions"].get(key, False) == value
            for e in found
            for key, value in conditions.items()
        )

    await eventually(settled)
    return found


def web(name: str, **metadata: object) -> JsonObject:
    container = {"name": "main", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}
    return pod(name, metadata={"labels": {"app": "web"}, **metadata}, containers=[container])


@behaviour("endpoints.slice", "A Service's ready pods are endpoints of a slice that it owns")
async def test_ready_pods_are_endpoints(kube: Kube, kubelet: Kubelet) -> None:
    made = await kube.services.create(service(ports=[{"name": "http", "port": 80}]))
    await kube.pods.create(web("a"))
    (endpoint,) = await endpoints_of(kube, 1, ready=True)
    now = await kube.pods.get("a")
    assert endpoint["addresses"] == [now["status"]["podIP"]]
    assert endpoint["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert endpoint["nodeName"] == "pretended"
    assert endpoint["targetRef"] == {
        "kind": "Pod",
        "name": "a",
        "namespace": kube.namespace,
        "uid": now["metadata"]["uid"],
    }
    (found,) = await slices_of(kube)
    assert found["addressType"] == "IPv4"
    assert found["ports"] == [{"name": "http", "port": 80, "protocol": "TCP"}]
    assert found["metadata"]["generateName"] == "web-"
    labels = found["metadata"]["labels"]
    assert labels["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Service", made["metadata"]["uid"])


@behaviour("endpoints.not-ready", "A pod that is not ready is listed, and not ready")
async def test_unready_pods_are_listed(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_be_ready = lambda pod: False
    await kube.services.create(service())
    await kube.pods.create(web("a"))
    (endpoint,) = await endpoints_of(kube, 1, ready=False, serving=False)
    assert endpoint["conditions"]["terminating"] is False
    kubelet.may_be_ready = lambda pod: True
    kubelet.look_again()
    await endpoints_of(kube, 1, ready=True, serving=True)


@behaviour("endpoints.terminating", "A pod that ends is serving and terminating, and not ready")
async def test_terminating_pods_serve(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_end = lambda pod: False
    await kube.services.create(service())
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    await kube.pods.delete("a")
    await endpoints_of(kube, 1, ready=False, serving=True, terminating=True)
    kubelet.may_end = lambda pod: True
    kubelet.look_again()
    await endpoints_of(kube, 0)


@behaviour("endpoints.publish-not-ready", "publishNotReadyAddresses makes every endpoint ready")
async def test_not_ready_addresses_can_be_published(kube: Kube, kubelet: Kubelet) -> None:
    kubelet.may_be_ready = lambda pod: False
    await kube.services.create(service(publishNotReadyAddresses=True))
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)


@behaviour("endpoints.named-port", "A named target port is looked up in each pod")
async def test_named_ports(kube: Kube, kubelet: Kubelet) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    await kube.services.create(service(ports=ports))
    await kube.pods.create(web("a"))
    other = web("b")
    other["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090
    await kube.pods.create(other)
    await endpoints_of(kube, 2, ready=True)
    found = {s["ports"][0]["port"]: len(s["endpoints"]) for s in await slices_of(kube)}
    assert found == {8080: 1, 9090: 1}


@behaviour("endpoints.target-port", "A numeric target port is the endpoints' port")
async def test_target_ports(kube: Kube, kubelet: Kubelet) -> None:
    ports = [{"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "kubernetes.io/h2c"}]
    await kube.services.create(service(ports=ports))
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    (found,) = await slices_of(kube)
    assert found["ports"] == [
        {"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"}
    ]


@behaviour("endpoints.labels", "A Service's labels are copied onto its slices, also later")
async def test_labels_are_copied(kube: Kube, kubelet: Kubelet) -> None:
    made = service()
    made["metadata"]["labels"] = {"example.com/private": "true"}
    await kube.services.create(made)
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    assert len(await names(kube.slices, selector="example.com/private=true")) == 1
    await kube.services.patch("web", MergePatch({"metadata": {"labels": {"added": "later"}}}))

    async def copied() -> bool:
        return len(await names(kube.slices, selector="added=later")) == 1

    await eventually(copied)


@behaviour("endpoints.headless", "A headless Service has slices with its own label")
async def test_headless_services(kube: Kube, kubelet: Kubelet) -> None:
    await kube.services.create(service(clusterIP="None"))
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    (found,) = await slices_of(kube)
    assert "service.kubernetes.io/headless" in found["metadata"]["labels"]


@behaviour("endpoints.no-selector", "A Service without a selector gets no slices")
async def test_services_without_selectors(kube: Kube, kubelet: Kubelet) -> None:
    bare = service("bare")
    del bare["spec"]["selector"]
    await kube.services.create(bare)
    await kube.services.create(service())
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    assert await slices_of(kube, "bare") == []


@behaviour("endpoints.foreign-slice", "Slices that others manage are left alone")
async def test_foreign_slices_are_left(kube: Kube, kubelet: Kubelet) -> None:
    await kube.services.create(service())
    foreign = endpoint_slice("foreign")
    foreign["metadata"]["labels"] = {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "somebody-else",
    }
    await kube.slices.create(foreign)
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 2)
    left = await kube.slices.get("foreign")
    assert left["endpoints"][0]["addresses"] == ["10.200.3.4"]


@behaviour("endpoints.empty", "A Service that no pod matches has one slice without endpoints")
async def test_empty_services_have_a_slice(kube: Kube, kubelet: Kubelet) -> None:
    await kube.services.create(service())

    async def one() -> list[JsonObject]:
        return await slices_of(kube)

    (found,) = await eventually(one)
    assert not found["endpoints"]
    assert not found["ports"]


@behaviour("endpoints.repair", "A slice that was deleted is made again")
async def test_slices_are_made_again(kube: Kube, kubelet: Kubelet) -> None:
    await kube.services.create(service())
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    (found,) = await slices_of(kube)
    await kube.slices.delete(found["metadata"]["name"])

    async def another() -> bool:
        now = await slices_of(kube)
        return len(now) == 1 and now[0]["metadata"]["uid"] != found["metadata"]["uid"]

    await eventually(another)


@behaviour("endpoints.selector-change", "A change of the selector changes the endpoints")
async def test_selectors_can_change(kube: Kube, kubelet: Kubelet) -> None:
    await kube.services.create(service())
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    await kube.services.patch("web", MergePatch({"spec": {"selector": {"app": "none"}}}))
    await endpoints_of(kube, 0)


@behaviour(
    "endpoints.classic",
    "The older Endpoints object lists the same addresses",
    devcluster="No controller makes Endpoints, which are deprecated: read EndpointSlices.",
)
async def test_classic_endpoints(kube: Kube, kubelet: Kubelet) -> None:
    await kube.services.create(service())
    await kube.pods.create(web("a"))
    await endpoints_of(kube, 1, ready=True)
    address = (await kube.pods.get("a"))["status"]["podIP"]

    async def addresses() -> list[str]:
        found = [e async for e in kube.of("v1/endpoints").items()]
        subsets = [s for e in found for s in e.get("subsets") or []]
        return [a["ip"] for s in subsets for a in s.get("addresses") or []]

    if kube.is_dev:
        assert await addresses() == []
        return

    async def listed() -> bool:
        return await addresses() == [address]

    await eventually(listed)
