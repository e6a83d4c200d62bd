"""The fake client: what it answers is what an API server answers, as far as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.client.rest import Pod

from devkube.testing import start_cluster
from kubeloop.client import (
    ApiError,
    ApplyConflict,
    Client,
    Conflict,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Preconditions,
)
from kubeloop.client.request import Request as Sent
from kubeloop.controller import Controller, Request
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.patches import JsonPatch, MergePatch, StrategicMergePatch
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error

MAPS = "v1/configmaps"
WEBSITES = "example.com/v1/websites"
DEFINITION: JsonObject = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "websites.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Website", "plural": "websites"},
        "versions": [{"name": "v1", "subresources": {"status": {}}}],
    },
}


def config_map(name: str = "a", **data: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(replicas: int = 1) -> JsonObject:
    pod = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": spec,
    }


@pytest.fixture(params=["fake", "devkube"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """The fake, and a server to compare it with: the tests that take it hold for both."""
    if request.param == "fake":
        yield FakeClient()
        return
    async with start_cluster(tmp_path) as cluster:
        yield cluster.client


async def refused(call: Any, kind: type[ApiError]) -> str:
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    return str(caught.value)


async def test_writes_are_those_of_a_server(client: Client) -> None:
    maps = client.resource(MAPS, namespace="default")
    made = await maps.create(config_map(x="1"), field_manager="hand")
    assert "already exists" in await refused(
        maps.create(config_map()), type(api_error(409, "AlreadyExists"))
    )
    assert made["metadata"]["uid"]

    changed = await maps.replace(made | {"data": {"x": "2"}})
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert (await maps.replace(changed))["metadata"] == changed["metadata"], "no change is no write"
    assert "the object has been modified" in await refused(maps.replace(made), Conflict)

    patched = await maps.patch("a", MergePatch({"data": {"x": None, "y": "3"}}))
    assert patched["data"] == {"y": "3"}
    operations = [
        {"op": "test", "path": "/data/y", "value": "3"},
        {"op": "add", "path": "/data/z", "value": "4"},
    ]
    assert (await maps.patch("a", JsonPatch(operations)))["data"] == {"y": "3", "z": "4"}
    failing = JsonPatch([{"op": "test", "path": "/data/y", "value": "no"}])
    await refused(maps.patch("a", failing), type(api_error(422, "Invalid")))
    old = MergePatch({"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}})
    await refused(maps.patch("a", old), Conflict)

    dry = await maps.patch("a", MergePatch({"data": {"y": "5"}}), dry_run=True)
    assert (dry["data"]["y"], (await maps.get("a"))["data"]["y"]) == ("5", "3")
    await refused(maps.delete("a", preconditions=Preconditions(uid="other")), Conflict)
    assert await maps.delete("a") is None
    assert await refused(maps.get("a"), NotFound) == 'configmaps "a" not found'
    generated = {"metadata": {"generateName": "job-"}}
    assert (await maps.create(generated))["metadata"]["name"].startswith("job-")


async def test_lists_select_and_name_forgotten_namespace(client: Client) -> None:
    maps = client.resource(MAPS)
    for name, tier in (("a", "front"), ("b", "back")):
        obj = config_map(name)
        obj["metadata"]["labels"] = {"tier": tier}
        await maps.create(obj, namespace="default")
    found = await maps.list(namespace="default", selector="tier=back")
    assert [obj["metadata"]["name"] for obj in found] == ["b"]
    assert [obj["metadata"]["name"] for obj in await maps.list(selector="tier")] == ["a", "b"]
    found = await maps.list(namespace="default", field_selector="metadata.name=a")
    assert [obj["metadata"]["name"] for obj in found] == ["a"]
    assert "no namespace was given" in await refused(maps.get("a"), NotFound)
    assert "no namespace was given" in await refused(maps.create(config_map("c")), MethodNotAllowed)
    await maps.delete_collection(selector="tier=front", namespace="default")
    assert [obj["metadata"]["name"] for obj in await maps.list(selector="tier")] == ["b"]


async def test_finalizers_hold_an_object(client: Client) -> None:
    maps = client.resource(MAPS, namespace="default")
    obj = config_map()
    obj["metadata"]["finalizers"] = ["example.com/mine"]
    await maps.create(obj)
    leaving = await maps.delete("a")
    assert leaving is not None
    assert leaving["metadata"]["deletionTimestamp"]
    await maps.patch("a", MergePatch({"metadata": {"finalizers": None}}))
    await refused(maps.get("a"), NotFound)


class PartialMap(msgspec.Struct, rename="camel", omit_defaults=True):
    """What one manager wants of a ConfigMap; what it leaves UNSET is not its own."""

    metadata: ObjectMeta
    data: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    immutable: bool | msgspec.UnsetType = msgspec.UNSET
    api_version: str = "v1"
    kind: str = "ConfigMap"


def wanted(**data: str) -> PartialMap:
    return PartialMap(ObjectMeta(name="a", namespace="default"), data)


async def test_apply_owns_fields_and_names_who_else_does(client: Client) -> None:
    applied = await client.apply(wanted(x="1", y="1"), manager="one")
    assert isinstance(applied, PartialMap)
    assert (applied.data, applied.immutable) == ({"x": "1", "y": "1"}, msgspec.UNSET)
    with pytest.raises(ApplyConflict) as caught:
        await client.apply(wanted(x="2"), manager="two")
    assert caught.value.fields == {"one": (".data.x",)}
    assert 'conflict with "one": .data.x' in str(caught.value)

    taken = await client.apply(wanted(x="2"), manager="two", force=True)
    assert taken.data == {"x": "2", "y": "1"}
    left = await client.apply(wanted(x="2"), manager="one")
    assert left.data == {"x": "2"}, "what it applied before and leaves out is removed"

    maps = client.resource(MAPS, namespace="default")
    await maps.patch("a", MergePatch({"data": {"z": "1"}}), field_manager="hand")
    with pytest.raises(ApplyConflict) as caught:
        await client.apply(config_map(z="2"), manager="two", namespace="default")
    assert caught.value.fields == {"hand": (".data.z",)}
    with pytest.raises(ApplyConflict, match='conflict with "hand" using v1'):
        await client.apply(config_map(z="2"), manager="hand", namespace="default")


async def test_apply_says_what_it_lacks(client: Client) -> None:
    bare: JsonObject = {"metadata": {"name": "a"}}
    with pytest.raises(ValueError, match="give dict apiVersion and kind"):
        await client.apply(bare, manager="one")
    with pytest.raises(ValueError, match="an apply says what the object is"):
        await client.resource(MAPS, namespace="default").apply(bare, field_manager="one")
    with pytest.raises(ValueError, match="namespaced: pass namespace="):
        await client.apply(config_map(), manager="one")


async def test_watch_iterates_over_what_is_and_what_comes(client: Client) -> None:
    maps = client.resource(MAPS, namespace="default")
    await maps.create(config_map("a"))
    seen: list[tuple[str, str]] = []
    events = maps.watch(field_selector="metadata.name=a")
    async for event in events:
        seen.append((event.type, event.object["metadata"]["name"]))
        if event.type == "ADDED":
            await maps.delete("a")
        if event.type == "DELETED":
            break
    await events.aclose()  # type: ignore[attr-defined]  # an iterator that happens to be a generator
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


# Only the fake.


async def test_status_and_scale_are_parts() -> None:
    # A server's own controllers write to a Deployment too, so there is nothing to compare with.
    client = FakeClient()
    deployments = client.resource("apps/v1/deployments", namespace="default")
    made = await deployments.create(deployment() | {"status": {"replicas": 9}})
    assert "replicas" not in made.get("status", {})
    status, scale = deployments.subresource("status"), deployments.subresource("scale")
    written = await status.patch(
        "web", MergePatch({"status": {"observedGeneration": 1}, "spec": {"replicas": 7}})
    )
    assert (written["status"]["observedGeneration"], written["spec"]["replicas"]) == (1, 1)
    assert written["metadata"]["generation"] == 1

    found = await scale.get("web")
    assert found["spec"] == {"replicas": 1}
    scaled = await scale.replace(found | {"spec": {"replicas": 3}})
    assert scaled["spec"] == {"replicas": 3}
    await refused(scale.replace(found | {"spec": {"replicas": 4}}), Conflict)
    now = await deployments.get("web")
    assert (now["spec"]["replicas"], now["metadata"]["generation"]) == (3, 2)


async def test_controller_runs_on_fake_without_a_server() -> None:
    client = FakeClient(DEFINITION)
    factory = SharedInformerFactory(client)
    websites = factory.informer(WEBSITES, dict)
    maps = client.resource(MAPS)
    done = asyncio.Event()

    async def reconcile(request: Request) -> None:
        site = websites.lister.find(request.namespace, request.name)
        if site is not None:
            page = config_map(request.name, text=site["spec"]["text"])
            await maps.apply(page, namespace=request.namespace, field_manager="test")
            done.set()

    controller = Controller("websites", reconcile)
    controller.watch(websites)
    async with factory.running(), asyncio.timeout(10):
        task = asyncio.create_task(controller.run())
        site = {"metadata": {"name": "hello"}, "spec": {"text": "hi"}}
        await client.resource(WEBSITES).create(site, namespace="default")
        await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    page = client.find(MAPS, "hello")
    assert page is not None
    assert page["data"] == {"text": "hi"}
    assert client.writes == [
        "POST /apis/example.com/v1/namespaces/default/websites",
        "PATCH /api/v1/namespaces/default/configmaps/hello",
    ]


async def test_informer_of_structs_survives_a_cut_watch() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "status": {"phase": "Running"},
    }
    client = FakeClient(pod)
    factory = SharedInformerFactory(client, namespace="default")
    pods = factory.informer("v1/pods", Pod)
    seen: asyncio.Queue[str] = asyncio.Queue()
    pods.add_handler(on_add=lambda pod: seen.put_nowait(pod.metadata.name))
    async with factory.running(), asyncio.timeout(10):
        await factory.wait_for_sync(timeout=5)
        client.source("v1/pods").drop_watches(lose_pending=True)
        client.put(Pod(metadata=ObjectMeta(name="other")))
        assert [await seen.get(), await seen.get()] == ["web", "other"]
    assert {pod.metadata.name for pod in pods.store.list()} == {"web", "other"}


async def test_faults_are_put_in_the_way_of_a_request() -> None:
    client = FakeClient(config_map())
    client.fail_next(api_error(403, "Forbidden", "not you"), method="PATCH", path="configmaps")
    maps = client.resource(MAPS, namespace="default")
    assert await maps.get("a")
    with pytest.raises(Forbidden):
        await maps.patch("a", MergePatch({"data": {"x": "1"}}))
    assert (await maps.patch("a", MergePatch({"data": {"x": "1"}})))["data"] == {"x": "1"}


async def test_it_is_closed_like_a_client() -> None:
    async with FakeClient(config_map(a="1")) as fake:
        assert len(await fake.resource(MAPS).items().to_list()) == 1
    await fake.aclose()


async def test_what_it_does_not_know_is_refused() -> None:
    client = FakeClient()
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await client.resource(WEBSITES, namespace="default").get("hello")
    with pytest.raises(ValueError, match=r"knows no example\.com/v1/Website: give it the CustomR"):
        client.put({"apiVersion": "example.com/v1", "kind": "Website", "metadata": {"name": "a"}})
    client.put(config_map())
    with pytest.raises(ApiError, match="no patch of type application/strategic"):
        await client.resource(MAPS, namespace="default").patch("a", StrategicMergePatch({}))


async def test_a_deletion_that_finalizers_hold_raises_the_generation_once(client: Client) -> None:
    deployments = client.resource("apps/v1/deployments", namespace="default")
    labels = {"app": "a"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "a", "image": "a", "command": ["true"]}]},
    }
    await deployments.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "held", "finalizers": ["example.com/mine"]},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    before = (await deployments.get("held"))["metadata"]["generation"]
    for _ in range(2):
        leaving = await deployments.delete("held")
        assert leaving is not None
        assert leaving["metadata"]["generation"] == before + 1
    await deployments.patch("held", MergePatch({"metadata": {"finalizers": None}}))


async def test_two_clients_of_one_server_share_objects_and_not_requests():
    first = FakeClient(config_map("a"))
    second = FakeClient(server=first)
    await second.resource(MAPS, namespace="default").patch("a", MergePatch({"data": {"k": "new"}}))
    assert (first.find(MAPS, "a") or {})["data"] == {"k": "new"}
    assert first.requests == []
    assert second.writes == ["PATCH /api/v1/namespaces/default/configmaps/a"]


async def test_a_crash_after_a_write_is_unnoticed_by_the_server():
    client = FakeClient()
    seen: list[tuple[str, bool]] = []

    def crash(write: Sent, done: bool) -> None:
        seen.append((write.method, done))
        if done:
            raise RuntimeError("killed")

    client.on_write = crash
    with pytest.raises(RuntimeError, match="killed"):
        await client.resource(MAPS, namespace="default").create(config_map("a"))
    assert seen == [("POST", False), ("POST", True)]
    assert client.find(MAPS, "a") is not None


async def test_a_refusal_by_a_hook_is_the_answer_and_writes_nothing():
    client = FakeClient()

    def refuse(_write: Sent, _done: bool) -> None:
        raise api_error(403, "Forbidden", "no")

    client.on_write = refuse
    with pytest.raises(Forbidden):
        await client.resource(MAPS, namespace="default").create(config_map("a"))
    assert client.find(MAPS, "a") is None


async def test_listeners_receive_every_change():
    client = FakeClient()
    changes: list[tuple[str, str, bool]] = []
    client.on_change.append(
        lambda gvr, obj, gone: changes.append((gvr.resource, obj["metadata"]["name"], gone))
    )
    await client.resource(MAPS, namespace="default").create(config_map("a"))
    client.put(config_map("b"))
    client.put(config_map("b"))  # changes nothing
    client.remove(MAPS, "a")
    assert changes == [
        ("configmaps", "a", False),
        ("configmaps", "b", False),
        ("configmaps", "a", True),
    ]


async def test_an_object_removed_by_another_program_waits_for_its_finalizers():
    held = config_map("a")
    held["metadata"]["finalizers"] = ["example.com/held"]
    client = FakeClient(held)
    client.remove(MAPS, "a")
    assert "deletionTimestamp" in (client.find(MAPS, "a") or {})["metadata"]
    patch = MergePatch({"metadata": {"finalizers": None}})
    await client.resource(MAPS, namespace="default").patch("a", patch)
    assert client.find(MAPS, "a") is None


def test_an_object_put_with_other_content_is_of_the_next_generation():
    client = FakeClient(config_map("a"))
    same = client.put(config_map("a") | {"status": {}})
    other = client.put(config_map("a") | {"data": {"k": "new"}})
    assert (same["metadata"]["generation"], other["metadata"]["generation"]) == (1, 2)
