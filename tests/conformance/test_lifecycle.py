"""Garbage collection and namespaces: what goes with what, and what every namespace has."""

from __future__ import annotations

from typing import Any

from kubeloop.client import NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import shared_widgets
from tests.conformance.kube import Kube, eventually, gone, names, refused
from tests.conformance.kubelet import Kubelet
from tests.conformance.manifests import config_map, deployment, pod, replica_set, widget


def owned_by(owner: JsonObject, name: str, *, block: bool = False, **more: Any) -> JsonObject:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }
    return config_map(name, ownerReferences=[reference], **more)


@behaviour("gc.background", "A background delete removes the owner at once and what it owned after")
async def test_background_deletion(kube: Kube) -> None:
    owner = await kube.maps.create(config_map("owner"))
    await kube.maps.create(owned_by(owner, "child"))
    await kube.maps.delete("owner", propagation="Background")
    await gone(kube.maps, "child")


@behaviour("gc.foreground", "A foreground delete keeps the owner until all that blocks it is gone")
async def test_foreground_deletion(kube: Kube) -> None:
    owner = await kube.maps.create(config_map("owner"))
    await kube.maps.create(owned_by(owner, "child", block=True, finalizers=["example.com/hold"]))
    await kube.maps.delete("owner", propagation="Foreground")

    async def going() -> bool:
        return "deletionTimestamp" in (await kube.maps.get("child"))["metadata"]

    await eventually(going)
    left = await kube.maps.get("owner")
    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]
    await kube.maps.patch("child", MergePatch({"metadata": {"finalizers": None}}))
    await gone(kube.maps, "owner")


@behaviour("gc.orphan", "A delete that orphans leaves what was owned, without the reference")
async def test_orphaning_deletion(kube: Kube) -> None:
    owner = await kube.maps.create(config_map("owner"))
    await kube.maps.create(owned_by(owner, "child"))
    await kube.maps.delete("owner", propagation="Orphan")
    await gone(kube.maps, "owner")
    assert "ownerReferences" not in (await kube.maps.get("child"))["metadata"]


@behaviour("gc.absent-owner", "What refers to an owner that never was is collected")
async def test_absent_owners(kube: Kube) -> None:
    owner = await kube.maps.create(config_map("owner"))
    await kube.maps.delete("owner")
    await kube.maps.create(owned_by(owner, "child"))
    await gone(kube.maps, "child")


@behaviour("gc.uid", "An owner of the same name but another uid does not count")
async def test_owners_are_known_by_uid(kube: Kube) -> None:
    owner = await kube.maps.create(config_map("owner"))
    await kube.maps.delete("owner")
    await kube.maps.create(config_map("owner"))
    await kube.maps.create(owned_by(owner, "child"))
    await gone(kube.maps, "child")


@behaviour("gc.two-owners", "Who has two owners stays while one of them is there")
async def test_two_owners(kube: Kube) -> None:
    one = await kube.maps.create(config_map("one"))
    two = await kube.maps.create(config_map("two"))
    child = owned_by(one, "child")
    child["metadata"]["ownerReferences"] += owned_by(two, "x")["metadata"]["ownerReferences"]
    await kube.maps.create(child)
    await kube.maps.delete("one", propagation="Background")

    async def one_left() -> bool:
        found = (await kube.maps.get("child"))["metadata"]["ownerReferences"]
        return [reference["name"] for reference in found] == ["two"]

    await eventually(one_left)
    await kube.maps.delete("two", propagation="Background")
    await gone(kube.maps, "child")


@behaviour("gc.chain", "Collection goes on through chains: Deployment, ReplicaSet, pods")
async def test_chains(kube: Kube, kubelet: Kubelet) -> None:
    await kube.deployments.create(deployment("web", 2))

    async def two() -> bool:
        return len(await names(kube.pods)) == 2

    await eventually(two)
    await kube.deployments.delete("web", propagation="Background")

    async def none() -> bool:
        return not await names(kube.pods) and not await names(kube.replicasets)

    await eventually(none)


@behaviour(
    "gc.orphan-replicaset", "Orphaned pods outlive their ReplicaSet and can be adopted again"
)
async def test_orphans_can_be_adopted(kube: Kube, kubelet: Kubelet) -> None:
    await kube.replicasets.create(replica_set("web", 1))

    async def one() -> list[str]:
        return await names(kube.pods)

    (name,) = await eventually(one)
    await kube.replicasets.delete("web", propagation="Orphan")
    await gone(kube.replicasets, "web")
    assert await names(kube.pods) == [name]
    made = await kube.replicasets.create(replica_set("web", 1))

    async def adopted() -> bool:
        found = (await kube.pods.get(name))["metadata"].get("ownerReferences") or []
        return [reference["uid"] for reference in found] == [made["metadata"]["uid"]]

    await eventually(adopted)
    assert await names(kube.pods) == [name]


@behaviour("gc.custom-owner", "Custom resources own like any other")
async def test_custom_owners(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    owner = await widgets.create(widget(widgets.gvr.group))
    await kube.maps.create(owned_by(owner, "child"))
    # A collector learns of new kinds by looking again, at most every half minute.
    await widgets.delete("w", propagation="Background")
    await gone(kube.maps, "child", timeout=50)


@behaviour("namespace.phase", "A namespace is Active, labelled with its name")
async def test_new_namespaces(kube: Kube) -> None:
    found = await kube.cluster("v1/namespaces").get(kube.namespace)
    assert found["status"] == {"phase": "Active"}
    assert found["metadata"]["labels"] == {"kubernetes.io/metadata.name": kube.namespace}


@behaviour(
    "namespace.account", "Every namespace has a default ServiceAccount, made again if deleted"
)
async def test_default_accounts(kube: Kube) -> None:
    accounts = kube.of("v1/serviceaccounts")
    before = await accounts.get("default")
    await accounts.delete("default")

    async def again() -> bool:
        try:
            now = await accounts.get("default")
        except NotFound:
            return False
        return bool(now["metadata"]["uid"] != before["metadata"]["uid"])

    await eventually(again)


@behaviour("namespace.root-ca", "Every namespace has the cluster's certificate authority")
async def test_root_certificates(kube: Kube) -> None:
    async def published() -> bool:
        try:
            found = await kube.maps.get("kube-root-ca.crt")
        except NotFound:
            return False
        return "BEGIN CERTIFICATE" in found["data"]["ca.crt"]

    await eventually(published)
    await kube.maps.patch("kube-root-ca.crt", MergePatch({"data": {"ca.crt": "broken"}}))
    await eventually(published)


@behaviour("namespace.deletion", "Deleting a namespace deletes all that is in it, then itself")
async def test_namespaces_are_emptied(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    await kube.pods.create(pod("p", schedulerName="nobody"))
    widgets = await shared_widgets(kube)
    await widgets.create(widget(widgets.gvr.group))
    namespaces = kube.cluster("v1/namespaces")
    left = await namespaces.delete(kube.namespace)
    assert left is not None
    assert left["status"]["phase"] == "Terminating"
    await gone(namespaces, kube.namespace, timeout=40)
    assert await names(kube.maps) == []


@behaviour("namespace.terminating", "Nothing new can be made in a namespace that is going")
async def test_terminating_namespaces_take_nothing(kube: Kube) -> None:
    await kube.maps.create(config_map("held", finalizers=["example.com/hold"]))
    namespaces = kube.cluster("v1/namespaces")
    await namespaces.delete(kube.namespace)
    error = await refused(kube.maps.create(config_map("new")), 403, "Forbidden")
    assert (
        f"unable to create new content in namespace {kube.namespace} because it is being terminated"
        in str(error)
    )
    assert [cause.reason for cause in error.causes] == ["NamespaceTerminating"]

    async def told() -> bool:
        now = await namespaces.get(kube.namespace)
        conditions = {c["type"]: c for c in now["status"].get("conditions") or []}
        return conditions.get("NamespaceFinalizersRemaining", {}).get("status") == "True"

    await eventually(told)
    await kube.maps.patch("held", MergePatch({"metadata": {"finalizers": None}}))
    await gone(namespaces, kube.namespace, timeout=40)


@behaviour("namespace.protected", "The namespaces that a cluster needs cannot be deleted")
async def test_protected_namespaces(kube: Kube) -> None:
    for name in ("default", "kube-system", "kube-public"):
        error = await refused(kube.cluster("v1/namespaces").delete(name), 403, "Forbidden")
        assert "this namespace may not be deleted" in str(error)


@behaviour("pod.account-missing", "A pod that names a ServiceAccount that is not there is refused")
async def test_pods_need_their_account(kube: Kube) -> None:
    creation = kube.pods.create(pod("p", serviceAccountName="none"))
    error = await refused(creation, 403, "Forbidden")
    assert (
        f'error looking up service account {kube.namespace}/none: serviceaccount "none" not found'
        in str(error)
    )


@behaviour("pod.token-volume", "A pod gets a volume with its token, authority and namespace")
async def test_pods_get_a_token_volume(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    (volume,) = [v for v in made["spec"]["volumes"] if v["name"].startswith("kube-api-access-")]
    kinds = [next(iter(source)) for source in volume["projected"]["sources"]]
    assert kinds == ["serviceAccountToken", "configMap", "downwardAPI"]
    (mount,) = made["spec"]["containers"][0]["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert mount["readOnly"] is True
    without = await kube.pods.create(
        pod("q", schedulerName="nobody", automountServiceAccountToken=False)
    )
    assert "volumes" not in without["spec"]


@behaviour(
    "cluster.api-service", "The API server has a Service and a slice in the namespace default"
)
async def test_the_api_server_has_a_service(kube: Kube) -> None:
    service = await kube.client.resource("v1/services", namespace="default").get("kubernetes")
    assert service["spec"]["ports"][0]["port"] == 443
    assert service["metadata"]["labels"] == {
        "component": "apiserver",
        "provider": "kubernetes",
    }
    slices = kube.client.resource("discovery.k8s.io/v1/endpointslices", namespace="default")
    found = await slices.get("kubernetes")
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "kubernetes"
    (endpoint,) = found["endpoints"]
    assert endpoint["conditions"]["ready"] is True
    assert found["ports"][0]["name"] == "https"


@behaviour("cluster.namespaces", "A cluster begins with its four namespaces")
async def test_namespaces_of_a_cluster(kube: Kube) -> None:
    found = set(await names(kube.cluster("v1/namespaces")))
    assert found >= {"default", "kube-system", "kube-public", "kube-node-lease"}
