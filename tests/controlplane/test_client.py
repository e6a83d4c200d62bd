"""kubeloop's REST client against the real API server: what it assumes of servers is true."""

from __future__ import annotations

import dataclasses
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from kubeloop.client.auth.credentials import Anonymous
from kubeloop.client.auth.identity import Impersonation
from kubeloop.client.client import Client
from kubeloop.client.config.client_config import ClientConfig
from kubeloop.client.errors import (
    AlreadyExists,
    CertificateError,
    Conflict,
    Forbidden,
    Invalid,
    NoMatch,
    NotFound,
    ServerTimeout,
    Unauthorized,
    is_version_too_large,
)
from kubeloop.client.request import Preconditions, get
from kubeloop.objects.list_watch import ListOptions, WatchOptions
from kubeloop.objects.patches import JsonPatch, MergePatch, StrategicMergePatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubeloop.client.resource import Resource
    from kubeloop.objects.meta import JsonObject
    from tests.controlplane.rig import ControlPlane

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def client(controlplane: ControlPlane) -> AsyncIterator[Client]:
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        yield client


@pytest.fixture
def maps(controlplane: ControlPlane, client: Client) -> Resource[JsonObject]:
    """ConfigMaps of a namespace that nobody else uses."""
    namespace = controlplane.create_namespace("client")
    return client.resource("v1/configmaps", namespace=namespace)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def as_config(controlplane: ControlPlane, **changes: Any) -> ClientConfig:
    config = ClientConfig.from_kubeconfig(controlplane.kubeconfig)
    return dataclasses.replace(config, **changes)


async def test_an_object_lives_from_create_to_delete(maps):
    created = await maps.create(config_map("a", x="1"))
    with pytest.raises(AlreadyExists):
        await maps.create(config_map("a"))
    assert (await maps.get("a"))["data"] == {"x": "1"}
    created["data"]["x"] = "2"
    replaced = await maps.replace(created)
    with pytest.raises(Conflict):
        await maps.replace(created)
    uid = replaced["metadata"]["uid"]
    with pytest.raises(Conflict):
        await maps.delete("a", preconditions=Preconditions(uid="other"))
    assert await maps.delete("a", preconditions=Preconditions(uid=uid)) is None
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        await maps.get("a")


async def test_an_object_that_stays_for_its_finalizer_is_returned_by_delete(maps):
    obj = config_map("held")
    obj["metadata"]["finalizers"] = ["example.com/hold"]
    await maps.create(obj)
    left = await maps.delete("held", propagation="Background")
    assert left is not None
    assert left["metadata"]["deletionTimestamp"]
    await maps.patch("held", MergePatch({"metadata": {"finalizers": None}}))
    with pytest.raises(NotFound):
        await maps.get("held")


async def test_every_kind_of_patch_is_understood(maps):
    await maps.create(config_map("p", x="1"))
    await maps.patch("p", MergePatch({"data": {"y": "2"}}))
    await maps.patch("p", JsonPatch([{"op": "remove", "path": "/data/x"}]))
    await maps.patch("p", StrategicMergePatch({"data": {"z": "3"}}))
    assert (await maps.get("p"))["data"] == {"y": "2", "z": "3"}
    with pytest.raises(Invalid):
        await maps.patch("p", JsonPatch([{"op": "test", "path": "/data/y", "value": "no"}]))


async def test_apply_owns_fields_and_meets_other_owners(maps):
    await maps.apply(config_map("s", x="1"), field_manager="one")
    with pytest.raises(Conflict) as caught:
        await maps.apply(config_map("s", x="2"), field_manager="two")
    assert [cause.field for cause in caught.value.causes] == [".data.x"]
    forced = await maps.apply(config_map("s", x="2"), field_manager="two", force=True)
    assert forced["data"] == {"x": "2"}


async def test_a_dry_run_stores_nothing_and_unknown_fields_can_be_refused(maps, caplog):
    await maps.create(config_map("dry"), dry_run=True)
    with pytest.raises(NotFound):
        await maps.get("dry")
    with pytest.raises(Exception, match="unknown field"):
        await maps.create(config_map("odd") | {"wrong": 1}, field_validation="Strict")
    await maps.create(config_map("odd") | {"wrong": 1}, field_validation="Warn")
    assert 'unknown field "wrong"' in caplog.text


async def test_pages_are_one_snapshot_and_collections_are_deleted_by_selector(maps):
    for number in range(7):
        obj = config_map(f"page-{number}")
        obj["metadata"]["labels"] = {"odd": str(number % 2)}
        await maps.create(obj)
    pager = maps.items(selector={"odd": "0"}, page_size=2)
    names = [item["metadata"]["name"] async for item in pager]
    assert names == ["page-0", "page-2", "page-4", "page-6"]
    assert pager.resource_version
    await maps.delete_collection(selector="odd=0")
    assert [item["metadata"]["name"] for item in await maps.items(selector="odd").to_list()] == [
        "page-1",
        "page-3",
        "page-5",
    ]


async def test_a_list_and_a_watch_see_the_same_objects(maps):
    await maps.create(config_map("before"))
    page = await maps.list(ListOptions(resource_version="0", limit=500))
    assert "before" in {item["metadata"]["name"] for item in page.items}
    stream = await maps.watch(WatchOptions(resource_version=page.resource_version))
    try:
        await maps.create(config_map("after"))
        (event,) = await stream.read()
    finally:
        await stream.close()
    assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "after")


async def test_a_version_that_the_server_has_not_reached_is_recognised(maps):
    with pytest.raises(ServerTimeout) as caught:
        await maps.list(ListOptions(resource_version="9000000000"))
    assert is_version_too_large(caught.value)
    assert caught.value.retry_after == 1.0


async def scaled(scale, replicas):
    """Write the scale as everybody must: again, where the controller was faster."""
    while True:
        current = await scale.get("web")
        current["spec"]["replicas"] = replicas
        try:
            return await scale.replace(current)
        except Conflict:
            continue


async def test_scale_and_status_are_parts_of_their_object(controlplane, client):
    namespace = controlplane.create_namespace("client")
    deployments = await client.resource_for("apps/v1", "Deployment", namespace=namespace)
    labels = {"app": "web"}
    await deployments.create(
        {
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": "none"}]},
                },
            },
        }
    )
    scale = deployments.subresource("scale")
    assert (await scaled(scale, 2))["spec"]["replicas"] == 2
    patched = await scale.patch("web", MergePatch({"spec": {"replicas": 0}}))
    assert patched["spec"].get("replicas", 0) == 0
    assert (await deployments.get("web"))["spec"]["replicas"] == 0


async def test_names_with_colons_reach_their_object(client):
    roles = client.resource("rbac.authorization.k8s.io/v1/clusterroles")
    assert (await roles.get("system:node"))["metadata"]["name"] == "system:node"


async def test_an_unknown_path_in_plain_text_is_not_found(client):
    with pytest.raises(NotFound):
        await client.resource("no.such.group/v1/things").get("x")
    with pytest.raises(NotFound):
        await client.send(get("/nothing/here"))


async def test_discovery_is_aggregated_and_knows_every_name(client):
    discovered = await client.discovery.fetch()
    assert not discovered.failures
    for name, expected in {
        "po": "v1/pods",
        "deploy": "apps/v1/deployments",
        "Deployment": "apps/v1/deployments",
        "deployments.v1.apps": "apps/v1/deployments",
        "hpa": "autoscaling/v2/horizontalpodautoscalers",
        "events": "v1/events",
        "crd": "apiextensions.k8s.io/v1/customresourcedefinitions",
        "no": "v1/nodes",
    }.items():
        assert str((await client.mapper.resolve(name)).gvr) == expected
    pods = await client.mapper.by_kind("v1", "Pod")
    assert {"status", "log", "eviction", "binding"} <= pods.subresources
    assert pods.namespaced
    assert not (await client.mapper.by_kind("v1", "Node")).namespaced
    with pytest.raises(NoMatch, match=r"near: .*deployments"):
        await client.mapper.resolve("deploymentss")


async def test_both_generations_of_discovery_say_the_same(client):
    discovery = client.discovery
    aggregated = await discovery.fetch()
    legacy = await discovery._each_version(aggregated.versions)
    assert not legacy.failures
    assert set(legacy.resources) == set(aggregated.resources)


async def test_the_servers_version_is_reported(client):
    assert (await client.server_version()).startswith("v1.")


class WrongToken(Anonymous):
    async def headers(self) -> dict[str, str]:
        return {"Authorization": "Bearer not-a-token"}


async def test_a_wrong_token_is_unauthorized(controlplane):
    trusting = ssl.create_default_context(cafile=controlplane.ca_file)
    config = as_config(controlplane, credentials=WrongToken(trusting))
    async with Client(config) as client:
        with pytest.raises(Unauthorized):
            await client.resource("v1/nodes").get("x")


async def test_an_impersonated_user_is_that_user_with_all_groups(controlplane):
    acting = Impersonation(user="nobody", groups=("a", "b"), extra={"x/y": ("1", "2")})
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with Client(as_config(controlplane, impersonate=acting)) as client:
        nodes = client.resource("v1/nodes")
        for refused in (nodes.get("x"), nodes.list(ListOptions())):
            with pytest.raises(Forbidden, match='User "nobody"'):
                await refused
        reviews = client.resource("authentication.k8s.io/v1/selfsubjectreviews")
        who = (await reviews.create(review))["status"]["userInfo"]
    assert who["username"] == "nobody"
    assert {"a", "b"} <= set(who["groups"])
    assert who["extra"] == {"x/y": ["1", "2"]}


async def test_an_untrusted_server_is_reported(controlplane):
    stranger = WrongToken(ssl.create_default_context())
    async with Client(as_config(controlplane, credentials=stranger)) as client:
        nodes = client.resource("v1/nodes")
        for refused in (nodes.get("x"), nodes.list(ListOptions())):
            with pytest.raises(CertificateError, match="certificate-authority"):
                await refused
