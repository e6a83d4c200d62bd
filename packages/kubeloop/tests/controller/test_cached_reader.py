from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from kubeloop.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.controller.cached_reader import CachedReader, CacheError, CacheOptions
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.lazy import LazyObject, parse_lazy
from kubeloop.objects.meta import STRUCT_ACCESS, ObjectMeta, PartialObjectMetadata
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time

PODS = GroupVersionResource.parse("v1/pods")


class Spec(msgspec.Struct):
    node: str = ""


class Pod(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec


def lazy(obj: dict[str, Any]) -> LazyObject:
    return parse_lazy(msgspec.json.encode(obj))


class FakeClient:
    """A client whose every resource and namespace is a fake server of its own."""

    def __init__(self) -> None:
        self.sources: dict[tuple[str, str], FakeSource[LazyObject]] = {}

    def source(self, resource: str, namespace: str = "") -> FakeSource[LazyObject]:
        return self.sources.setdefault(
            (resource, namespace), FakeSource(represent=lazy, access=STRUCT_ACCESS)
        )

    def resource(
        self, resource: GroupVersionResource, kind: type[Any], *, namespace: str = ""
    ) -> FakeSource[LazyObject]:
        assert kind is LazyObject
        return self.source(str(resource), namespace)


class FakeLive:
    """Live reads, noted."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def resource(self, resource: GroupVersionResource, kind: type[Any]) -> FakeLive:
        self.calls.append((str(resource), kind))
        return self

    async def get(self, name: str, *, namespace: str | None = None) -> Any:
        self.calls.append(("get", name, namespace))
        return {"live": name}

    def items(self, *, selector: Any, field_selector: str, namespace: str | None) -> FakeLive:
        self.calls.append(("list", str(selector), field_selector, namespace))
        return self

    async def to_list(self) -> list[Any]:
        return [1, 2, 3]


@pytest.fixture
def client() -> FakeClient:
    made = FakeClient()
    pods = made.source("v1/pods")
    pods.create("a", labels={"app": "web"}, spec={"node": "n1"})
    pods.create("b", labels={"app": "web"}, spec={"node": "n2"}, namespace="other")
    pods.create("c", labels={"app": "api"}, spec={"node": "n1"})
    return made


@contextlib.asynccontextmanager
async def reading(client: FakeClient, **options: Any) -> AsyncIterator[CachedReader]:
    factory = SharedInformerFactory(client)
    async with factory.running():
        yield CachedReader(factory, **options)


def names(objects: list[dict[str, Any]]) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in objects)


def node_of(pod: LazyObject) -> list[str]:
    return [pod.to_dict()["spec"]["node"]]


@pytest.mark.spec("C10")
async def test_first_read_makes_informer_and_waits_for_list(client):
    source = client.source("v1/pods")
    source.latency = 3
    async with reading(client) as reader:
        assert source.lists == []
        pods = await asyncio.gather(
            *(reader.get("v1/pods", name, namespace="default") for name in "aac")
        )
        assert asyncio.get_running_loop().time() == 3
        assert names(pods) == ["a", "a", "c"]
        await reader.list("v1/pods")
        assert len(source.lists) == 1, "every later read costs the server nothing"


@pytest.mark.spec("C10")
async def test_a_read_follows_the_watch(client):
    async with reading(client) as reader:
        await reader.list("v1/pods")
        client.source("v1/pods").create("d")
        await asyncio.sleep(1)
        assert (await reader.get("v1/pods", "d", namespace="default"))["kind"] == "Pod"
        with pytest.raises(NotFound, match='v1/pods "default/nope" not found'):
            await reader.get("v1/pods", "nope", namespace="default")


@pytest.mark.spec("C10")
async def test_without_create_kind_that_was_not_announced_is_error(client):
    async with reading(client, create=False, options={"v1/pods": CacheOptions()}) as reader:
        assert len(await reader.list("v1/pods")) == 3
        with pytest.raises(CacheError, match="v1/secrets is not cached; add it"):
            await reader.get("v1/secrets", "x")
    assert ("v1/secrets", "") not in client.sources


@pytest.mark.spec("C10")
async def test_reads_are_copies_unless_the_stored_object_is_requested(client):
    async with reading(client) as reader:
        first = await reader.get("v1/pods", "a", namespace="default")
        first["metadata"]["labels"]["app"] = "changed"
        again = await reader.get("v1/pods", "a", namespace="default")
        assert again["metadata"]["labels"] == {"app": "web"}
        stored = [
            await reader.get("v1/pods", "a", namespace="default", kind=LazyObject) for _ in "12"
        ]
        assert stored[0] is stored[1]


@pytest.mark.spec("C11")
async def test_one_watch_serves_dictionary_typed_and_metadata_views(client):
    async with reading(client) as reader:
        untyped = await reader.get("v1/pods", "a", namespace="default")
        typed = await reader.get("v1/pods", "a", namespace="default", kind=Pod)
        meta = await reader.get("v1/pods", "a", namespace="default", kind=PartialObjectMetadata)
        assert untyped["spec"] == {"node": "n1"}
        assert typed.spec.node == "n1"
        assert meta.metadata.labels == {"app": "web"}
        assert [pod.spec.node for pod in await reader.list("v1/pods", kind=Pod)] == [
            "n1",
            "n2",
            "n1",
        ]
    assert len(client.source("v1/pods").watches) == 1


@pytest.mark.spec("C10")
async def test_list_selects_by_namespace_and_labels_and_limit_truncates(client):
    async with reading(client) as reader:
        assert names(await reader.list("v1/pods")) == ["a", "b", "c"]
        assert names(await reader.list("v1/pods", namespace="default")) == ["a", "c"]
        assert names(await reader.list("v1/pods", selector="app=web")) == ["a", "b"]
        assert len(await reader.list("v1/pods", limit=2)) == 2


@pytest.mark.spec("C10")
async def test_field_selectors_must_be_exact_and_indexed(client):
    async with reading(client) as reader:
        reader.index_field("v1/pods", "spec.node", node_of)
        assert client.source("v1/pods").lists == [], "an index makes no informer and never waits"
        found = await reader.list("v1/pods", field_selector="spec.node=n1")
        assert names(found) == ["a", "c"]
        by_two = await reader.list(
            "v1/pods", namespace="default", selector="app=api", field_selector="spec.node=n1"
        )
        assert names(by_two) == ["c"]
        with pytest.raises(CacheError, match=r"need index_field\('status.phase'\)"):
            await reader.list("v1/pods", field_selector="status.phase=Running")
        with pytest.raises(CacheError, match="terms must be exact"):
            await reader.list("v1/pods", field_selector="spec.node!=n1")


@pytest.mark.spec("C10")
async def test_an_index_added_later_works_at_once(client):
    async with reading(client) as reader:
        await reader.list("v1/pods")
        reader.index_field("v1/pods", "spec.node", node_of)
        reader.index_field("v1/pods", "metadata.name", lambda pod: [pod.metadata.name])
        found = await reader.list("v1/pods", field_selector="spec.node=n1,metadata.name=c")
        assert names(found) == ["c"]
        nothing = await reader.list("v1/pods", field_selector="spec.node=n2,metadata.name=c")
        assert nothing == []
        with pytest.raises(ValueError, match="indexed already"):
            reader.index_field("v1/pods", "spec.node", node_of)


@pytest.mark.spec("C10")
async def test_uncached_kinds_are_read_from_the_server(client):
    live = FakeLive()
    async with reading(client, live=cast(Client, live), uncached=["v1/secrets"]) as reader:
        assert await reader.get("v1/secrets", "s", namespace="default") == {"live": "s"}
        listed: list[Any] = await reader.list("v1/secrets", selector="a=b", kind=Pod, limit=2)
        assert listed == [1, 2]
    assert live.calls == [
        ("v1/secrets", dict),
        ("get", "s", "default"),
        ("v1/secrets", Pod),
        ("list", "a=b", "", None),
    ]
    assert ("v1/secrets", "") not in client.sources


async def test_uncached_kinds_need_a_client(client):
    with pytest.raises(ValueError, match="need `live`"):
        CachedReader(SharedInformerFactory(client), uncached=["v1/secrets"])


@pytest.mark.spec("C12")
async def test_each_kind_may_be_cached_in_some_namespaces_only(client):
    client.source("v1/pods", "one").create("x", namespace="one")
    client.source("v1/pods", "two").create("y", namespace="two")
    options = {"v1/pods": CacheOptions(namespaces=("one", "two"))}
    async with reading(client, options=options) as reader:
        assert names(await reader.list("v1/pods")) == ["x", "y"]
        assert names(await reader.list("v1/pods", namespace="two")) == ["y"]
        assert names([await reader.get("v1/pods", "x", namespace="one")]) == ["x"]
        with pytest.raises(CacheError, match="cached in one, two only, not in three"):
            await reader.list("v1/pods", namespace="three")
        with pytest.raises(CacheError, match="not in three"):
            await reader.get("v1/pods", "x", namespace="three")
    assert client.source("v1/pods").lists == []


@pytest.mark.spec("C12")
async def test_each_kind_has_its_own_selectors_and_transform(client):
    def without_labels(pod: LazyObject) -> LazyObject:
        obj = pod.to_dict()
        del obj["metadata"]["labels"]
        return lazy(obj)

    options = {
        "v1/pods": CacheOptions(
            label_selector="app=web",
            field_selector="metadata.namespace=default",
            transform=without_labels,
        )
    }
    async with reading(client, options=options) as reader:
        found = await reader.list("v1/pods")
    assert names(found) == ["a"]
    assert "labels" not in found[0]["metadata"]
    asked = client.source("v1/pods").lists[0]
    assert (asked.label_selector, asked.field_selector) == ("app=web", "metadata.namespace=default")


@pytest.mark.spec("C12")
@pytest.mark.parametrize(("draw", "period"), [(0.0, 32_400), (0.5, 36_000), (0.999, 39_600)])
async def test_the_resync_is_ten_hours_give_or_take_a_tenth(client, draw, period):
    factory = SharedInformerFactory(client)
    async with factory.running():
        await CachedReader(factory, rand=lambda: draw).list("v1/pods")
        informer = factory.informer(PODS, LazyObject)
        assert informer.resync_check_period == pytest.approx(period, rel=1e-3)


async def test_a_closed_reader_gives_its_informers_up(client):
    async with reading(client) as reader:
        await reader.list("v1/pods")
        assert len(client.source("v1/pods").open_streams) == 1
        await reader.aclose()
        assert client.source("v1/pods").open_streams == []


async def test_a_read_whose_informer_stops_learns_it(client):
    factory = SharedInformerFactory(client)
    client.source("v1/pods").stall_lists()
    async with factory.running():
        read = asyncio.create_task(CachedReader(factory).list("v1/pods"))
        await asyncio.sleep(1)
    with pytest.raises(CacheError, match="v1/pods stopped before it had synced"):
        await read
