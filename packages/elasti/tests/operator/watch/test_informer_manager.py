"""Shared watches: how many there are, who hears what, and what happens to a stuck one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.scale_handler import ScaleHandler
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.informer_manager import InformerManager, KeyParams, RequestWatch
from elasti.operator.watch.targets import KindWarmer
from kubeloop.aio.tasks import finish
from kubeloop.controller.reconcile import Request
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import ObjectMeta
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_source import FakeSource

DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")


class FakeSources:
    """One source for each resource and namespace."""

    def __init__(self) -> None:
        self.sources: dict[tuple[str, str], FakeSource[Any]] = {}

    def resource(self, resource: Any, kind: type[Any], *, namespace: str = "") -> Any:
        key = (str(resource), namespace)
        return self.sources.setdefault(key, FakeSource(bookmark_every=0.0))


def watch(name: str, heard: list[str], crd: str = "es") -> RequestWatch:
    key = KeyParams("default", crd, DEPLOYMENTS, name)
    return RequestWatch(key, dict, lambda event: heard.append(f"{crd}:{event.key}"))


@pytest.mark.virtual_time
async def test_a_hundred_wishes_are_one_watch():
    client = FakeSources()
    manager = InformerManager(client)
    heard: list[str] = []
    for number in range(100):
        manager.add(watch(f"web-{number}", heard, f"es-{number}"))
    assert manager.counts() == {str(DEPLOYMENTS): 1}
    source = client.sources[str(DEPLOYMENTS), ""]
    source.create("web-7", namespace="default")
    source.create("stranger", namespace="default")
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    await asyncio.sleep(1)
    assert heard == ["es-7:default/web-7"]
    await finish([running])


@pytest.mark.virtual_time
async def test_a_removed_subscriber_gets_nothing():
    client = FakeSources()
    manager = InformerManager(client)
    heard: list[str] = []
    scope = manager.add(watch("web", heard, "a"))
    manager.add(watch("web", heard, "b"))
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    source = client.sources[str(DEPLOYMENTS), ""]
    source.create("web", namespace="default")
    await asyncio.sleep(1)
    assert sorted(heard) == ["a:default/web", "b:default/web"]
    manager.remove(watch("web", heard, "a").key)
    heard.clear()
    source.update("web", namespace="default")
    await asyncio.sleep(1)
    assert heard == ["b:default/web"]
    assert scope.find("default", "web") is not None
    await finish([running])


@pytest.mark.virtual_time
async def test_the_watch_of_a_kind_is_closed_when_it_is_unused():
    client = FakeSources()
    manager = InformerManager(client)
    heard: list[str] = []
    running = asyncio.create_task(manager.run())
    scope = manager.add(watch("web", heard, "a"))
    # A standby keeps the cache warm and hears nothing.
    manager.add(watch("", heard, ""))
    await scope.wait_synced()
    await manager.close_unused([(DEPLOYMENTS, "")])
    await manager.close_unused([])
    assert manager.counts() == {str(DEPLOYMENTS): 1}
    manager.remove(watch("web", heard, "a").key)
    await manager.close_unused([(DEPLOYMENTS, "")])
    assert manager.counts() == {str(DEPLOYMENTS): 1}
    await manager.close_unused([])
    assert manager.counts() == {}
    assert not manager.follows(DEPLOYMENTS, "default")
    again = manager.add(watch("web", heard, "b"))
    await again.wait_synced()
    client.sources[str(DEPLOYMENTS), ""].create("web", namespace="default")
    await asyncio.sleep(1)
    assert heard == ["b:default/web"]
    await finish([running])


@pytest.mark.virtual_time
async def test_a_kind_is_watched_for_as_long_as_an_elastiservice_names_it():
    client = FakeClient()
    manager, directory = InformerManager(client), Directory()
    warmer = KindWarmer(
        client=client, manager=manager, directory=directory, scales=ScaleHandler(client)
    )
    running = [asyncio.create_task(manager.run()), asyncio.create_task(warmer.run())]
    for name, kind in (("web", "Deployment"), ("odd", "NoSuchKind")):
        spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", kind, name), name)
        directory.put(ElastiService(metadata=ObjectMeta(name=name, namespace="shop"), spec=spec))
    await asyncio.sleep(60)
    assert manager.counts() == {str(DEPLOYMENTS): 1}
    directory.remove(Request("shop", "web"))
    await asyncio.sleep(60)
    assert manager.counts() == {str(DEPLOYMENTS): 1}, "the kind that is not known may be this one"
    directory.remove(Request("shop", "odd"))
    await asyncio.sleep(60)
    assert manager.counts() == {}
    await finish(running)


@pytest.mark.virtual_time
async def test_a_kind_may_come_while_the_manager_runs():
    client = FakeSources()
    manager = InformerManager(client)
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    scope = manager.scope("v1/pods", dict)
    assert not scope.has_synced
    assert manager.is_ready
    await scope.wait_synced()
    assert manager.missing() == []
    await finish([running])


@pytest.mark.virtual_time
async def test_confined_to_namespaces_there_is_a_watch_for_each():
    client = FakeSources()
    manager = InformerManager(client, namespaces=("a", "b"))
    scope = manager.scope("v1/pods", dict)
    client.sources["v1/pods", "a"].create("one", namespace="a")
    client.sources["v1/pods", "b"].create("two", namespace="b")
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    assert scope.find("a", "one") is not None
    assert scope.find("b", "two") is not None
    assert scope.find("c", "three") is None
    assert len(list(scope.all())) == 2
    await finish([running])


@pytest.mark.virtual_time
async def test_a_silent_watch_is_built_again():
    client = FakeSources()
    manager = InformerManager(client, stuck_after=100.0, health_period=5.0)
    heard: list[str] = []
    manager.add(watch("web", heard))
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    source = client.sources[str(DEPLOYMENTS), ""]
    await asyncio.sleep(90)
    assert manager.restarts() == {}
    await asyncio.sleep(20)
    assert manager.restarts() == {str(DEPLOYMENTS): 1}
    assert len(source.open_streams) == 1
    source.create("web", namespace="default")
    await asyncio.sleep(1)
    assert heard == ["es:default/web"]
    await finish([running])


@pytest.mark.virtual_time
async def test_a_first_list_that_never_comes_is_asked_for_again():
    client = FakeSources()
    manager = InformerManager(client, stuck_after=100.0, health_period=5.0)
    scope = manager.scope("v1/pods", dict)
    source = client.sources["v1/pods", ""]
    source.stall_lists()
    running = asyncio.create_task(manager.run())
    await asyncio.sleep(300)
    assert manager.restarts() == {"v1/pods": 2}
    assert manager.missing()
    source.stall_lists(stall=False)
    await manager.wait_until_ready()
    assert scope.has_synced
    await finish([running])


@pytest.mark.virtual_time
async def test_a_watch_that_a_defect_ended_is_built_again_and_ends_nothing_else():
    client = FakeSources()
    manager = InformerManager(client)
    heard: list[str] = []
    manager.add(watch("web", heard))
    manager.scope("v1/pods", dict)
    source = client.sources[str(DEPLOYMENTS), ""]
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    source.fail_watches(ZeroDivisionError("a defect"))
    source.fail_lists(ZeroDivisionError("another"))
    source.drop_watches()
    source.create("web", namespace="default")
    await asyncio.sleep(10)
    assert heard == ["es:default/web"]
    assert set(manager.restarts()) == {str(DEPLOYMENTS)}
    assert not running.done()
    await finish([running])


@pytest.mark.virtual_time
async def test_after_a_long_outage_watches_are_back_within_seconds():
    client = FakeSources()
    manager = InformerManager(client)
    heard: list[str] = []
    manager.add(watch("web", heard))
    running = asyncio.create_task(manager.run())
    await manager.wait_until_ready()
    source = client.sources[str(DEPLOYMENTS), ""]
    source.refuse_connections()
    await asyncio.sleep(100)
    source.refuse_connections(refuse=False)
    source.create("web", namespace="default")
    await asyncio.sleep(5)
    assert heard == ["es:default/web"]
    await finish([running])
