"""A manager with the real thing in it: controllers, informers, an election, events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controller.election.lease_server import LeaseServer, lease
from tests.controller.fake_informer import FakeInformer

from kubeloop.client.errors import Forbidden, Status
from kubeloop.controller import (
    Caches,
    Controller,
    ElectionConfig,
    Group,
    LeaderElector,
    Manager,
    Request,
)
from kubeloop.controller.manager.manager import GracePeriodExpired
from kubeloop.informer import NotSynced, SharedInformerFactory
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


class Reconciler:
    """Notes what it was asked for; each reconcile takes a while."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._seconds = seconds

    async def __call__(self, request: Request) -> None:
        self.begun.append(request.name)
        await asyncio.sleep(self._seconds)
        self.ended.append(request.name)


class FakeClient:
    def __init__(self, source: FakeSource[Any]) -> None:
        self.source = source

    def resource(self, resource: Any, kind: type[Any], *, namespace: str = "") -> Any:
        return self.source


def election(server: LeaseServer) -> LeaderElector:
    config = ElectionConfig(namespace="ns", name="lead", identity="me")
    return LeaderElector(config=config, lease=server.client(), rand=lambda: 0.0)


@pytest.mark.spec("C16")
async def test_a_standbys_controller_fills_its_queue_and_works_once_elected() -> None:
    server, informer, reconciler = LeaseServer(lease("you")), FakeInformer(), Reconciler()
    manager = Manager(election=election(server))
    controller = Controller("web", reconciler)
    controller.watch(informer)
    manager.add(controller, warm=True)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(5)
    informer.add("early")
    await asyncio.sleep(5)
    assert len(controller.queue) == 1
    assert reconciler.begun == []
    await asyncio.sleep(10)  # the other's lease has ended
    assert reconciler.ended == ["early"]
    assert len(informer.registrations) == 1
    manager.stop()
    await task
    assert informer.registrations[0].removed
    assert server.holder == ""


@pytest.mark.spec("C16")
async def test_a_cold_controller_starts_its_sources_only_when_elected() -> None:
    server, informer = LeaseServer(lease("you")), FakeInformer()
    manager = Manager(election=election(server))
    controller = Controller("web", Reconciler())
    controller.watch(informer)
    manager.add(controller)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(10)
    assert informer.registrations == []
    await asyncio.sleep(10)
    assert len(informer.registrations) == 1
    manager.stop()
    await task


@pytest.mark.spec("C15", "C17")
async def test_a_stop_waits_for_running_reconciles_and_begins_none() -> None:
    informer, reconciler = FakeInformer(), Reconciler(seconds=8)
    manager = Manager()
    controller = Controller("web", reconciler)
    controller.watch(informer)
    manager.add(controller)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    informer.add("a")
    informer.add("b")
    await asyncio.sleep(1)
    manager.stop()
    await task
    assert (reconciler.begun, reconciler.ended) == (["a"], ["a"])
    assert asyncio.get_running_loop().time() == pytest.approx(9)


@pytest.mark.spec("C15")
async def test_a_reconcile_that_outlasts_the_grace_is_cancelled_and_named() -> None:
    informer, reconciler = FakeInformer(), Reconciler(seconds=1000)
    manager = Manager(grace=5)
    controller = Controller("web", reconciler)
    controller.watch(informer)
    manager.add(controller)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    informer.add("a")
    await asyncio.sleep(1)
    manager.stop()
    with pytest.raises(GracePeriodExpired, match="web"):
        await task
    assert asyncio.get_running_loop().time() == pytest.approx(7)
    assert reconciler.ended == []


@pytest.mark.spec("C17")
async def test_two_controllers_of_one_name_are_refused() -> None:
    manager = Manager()
    manager.add(Controller("web", Reconciler()))
    with pytest.raises(ValueError, match="'web'"):
        manager.add(Controller("web", Reconciler()))


@pytest.mark.spec("C14")
async def test_controllers_start_when_the_caches_are_synced() -> None:
    source: FakeSource[Any] = FakeSource(latency=7)
    source.create("web-0")
    factory = SharedInformerFactory(FakeClient(source), collector=False)
    reconciler = Reconciler()
    controller = Controller("web", reconciler)
    controller.watch(factory.informer("v1/pods", dict))
    manager = Manager()
    manager.add(controller)
    manager.add(Caches(factory), group=Group.CACHES)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(6)
    assert "<RunnableGroup leader: not started>" in repr(manager)
    await asyncio.sleep(10)
    assert reconciler.ended == ["web-0"]
    manager.stop()
    await task
    assert source.open_streams == []


@pytest.mark.spec("C14")
async def test_unsynced_caches_fail_the_start_by_name() -> None:
    source: FakeSource[Any] = FakeSource()
    source.fail_lists(*[Forbidden(Status(code=403, message="no list for you"))] * 100)
    factory = SharedInformerFactory(FakeClient(source), collector=False)
    factory.informer("v1/pods", dict)
    manager = Manager()
    manager.add(Caches(factory, sync_timeout=20), group=Group.CACHES)
    with pytest.raises(NotSynced, match="v1/pods"):
        await manager.run()
    assert asyncio.get_running_loop().time() == pytest.approx(20)
