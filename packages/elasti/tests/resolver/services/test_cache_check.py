"""Watches that died without a word, while connections wait: found by live reads, and only then."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.resolver.cluster import FakeCluster, endpoint

from elasti.api.wire import IncomingReply, WakeOutcome
from elasti.resolver.metrics import Readiness, WorkerView
from elasti.resolver.ports.claims import PortClaims
from elasti.resolver.projections import ServiceKey
from elasti.resolver.readiness.checks import Reachability
from elasti.resolver.services.cache_check import CacheCheck
from elasti.resolver.services.registry import ServiceRegistry
from elasti.resolver.services.service import ServiceDeps
from kubeloop.aio.tasks import finish
from kubeloop.client.errors import TransportError
from kubeloop.informer import SharedInformerFactory
from kubeloop.informer.reflector.source import FAST_BACKOFF, ReflectorOptions
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.metrics.text import exposition

if TYPE_CHECKING:
    from kubeloop.client import Client

pytestmark = pytest.mark.virtual_time

READY = endpoint("10.0.0.1", ready=True)


class Waiter:
    is_http = True
    """A connection that is held, and when it was let go."""

    held_since = None

    def client(self) -> str:
        return "10.1.2.3"

    def __init__(self) -> None:
        self.admitted_at: float | None = None

    def admit(self, _address):
        self.admitted_at = asyncio.get_running_loop().time()

    def give_up(self, refusal):
        raise AssertionError(refusal)


class RegistryRig:
    """A registry before a cluster in memory; the operator hears every wake request."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.library = LibraryMetrics()
        options = ReflectorOptions(backoff=FAST_BACKOFF)
        self.factory = SharedInformerFactory(self.cluster, options=options, metrics=self.library)
        fake: Any = self
        deps = ServiceDeps(checks=fake, pods=fake, operator=fake, durable=fake)
        claims = PortClaims(settle=1.0)
        self.registry = ServiceRegistry(factories=[self.factory], deps=deps, claims=claims)
        self.check = CacheCheck(cast("Client", self.cluster), self.registry)

    async def wake(self, _key, *, count, client="", wake_id=""):
        assert count
        return IncomingReply(WakeOutcome.SCALING)

    async def owns(self, _pod, _address):
        return True

    async def connect(self, _address, *, timeout):
        assert timeout
        return Reachability.REFUSED

    def add(self, service: str) -> None:
        self.cluster.elasti_service(service, ("http", 20001), wake={"timeoutSeconds": 3600})
        self.cluster.private_service(service)
        self.cluster.endpoints(service, ports={"http": 8080})

    def hold(self, service: str) -> Waiter:
        found = self.registry.get(ServiceKey("shop", service))
        assert found is not None
        waiter = Waiter()
        assert found.port("http").wait(waiter) is None
        return waiter

    async def readiness(self) -> Readiness:
        unused: Any = None
        view = WorkerView(
            registry=self.registry,
            shared=unused,
            listeners=unused,
            operator=unused,
            unready=lambda: "",
            library=self.library,
        )
        return await view.readiness()

    @property
    def watches(self) -> int:
        """How many were opened, without the probes of a silent one."""
        requests = self.cluster.slices.watch_requests
        return sum(request.options.timeout_seconds > 1 for request in requests)


@contextlib.asynccontextmanager
async def running(*services: str):
    rig = RegistryRig()
    for service in services:
        rig.add(service)
    async with rig.factory.running():
        await rig.factory.wait_for_sync(timeout=1)
        checking = asyncio.create_task(rig.check.run())
        try:
            yield rig
        finally:
            await finish([checking])
            await rig.registry.aclose()


@pytest.mark.parametrize("begun", [0.0, 3.3, 9.9])
async def test_held_client_is_answered_15_seconds_after_ready_behind_a_frozen_watch(begun):
    async with running("web") as rig:
        await asyncio.sleep(20 + begun)
        rig.cluster.slices.stall_watches()
        waiter = rig.hold("web")
        ready_at = asyncio.get_running_loop().time()
        rig.cluster.endpoints("web", READY, ports={"http": 8080})
        await asyncio.sleep(15)
        assert waiter.admitted_at is not None
        assert waiter.admitted_at - ready_at < 15


async def test_nothing_is_read_while_no_connection_waits():
    async with running("web") as rig:
        lists = len(rig.cluster.slices.list_requests)
        rig.cluster.slices.stall_watches()
        await asyncio.sleep(100)
        assert len(rig.cluster.slices.list_requests) == lists


async def test_a_watch_that_tells_the_truth_is_never_ended():
    async with running("web", "other") as rig:
        waiter, watches = rig.hold("web"), rig.watches
        for seconds in range(100):
            rig.cluster.endpoints("web", endpoint(f"10.0.1.{seconds}"), ports={"http": 8080})
            await asyncio.sleep(1)
        assert (rig.watches, waiter.admitted_at) == (watches, None)


async def test_a_watch_that_is_slow_but_speaks_gets_a_second_round():
    async with running("web", "other") as rig:
        rig.hold("web")
        await asyncio.sleep(5)
        watches = rig.watches
        rig.cluster.slices.stall_watches()
        rig.cluster.endpoints("web", endpoint("10.0.1.1"), ports={"http": 8080})

        informer = next(i for c in rig.registry._informers for i in [c.endpoints])
        heard = asyncio.get_running_loop().time() + 6.5
        loop = asyncio.get_running_loop()
        loop.call_at(heard, lambda: setattr(informer._supervisor.reflector, "last_heard", heard))
        await asyncio.sleep(10)
        assert rig.watches == watches
        await asyncio.sleep(10)
        assert rig.watches > watches


async def test_a_server_that_does_not_answer_ends_no_watch():
    async with running("web") as rig:
        waiter, watches = rig.hold("web"), rig.watches
        rig.cluster.slices.fail_lists(*[TransportError("no route")] * 100)
        await asyncio.sleep(60)
        assert (rig.watches, waiter.admitted_at) == (watches, None)


async def test_a_crowd_of_services_is_sampled_in_turn():
    names = [f"s{number:03}" for number in range(100)]
    async with running(*names) as rig:
        for name in names:
            rig.hold(name)
        before = len(rig.cluster.slices.list_requests)
        await asyncio.sleep(39)
        read = rig.cluster.slices.list_requests[before:]
        asked = {request.options.label_selector for request in read}
        assert (len(read), len(asked)) == (128, 100)


async def test_readiness_and_a_metric_report_a_doubted_watch():
    async with running("web") as rig:
        assert await rig.readiness() == (True, "ok")
        rig.cluster.slices.fail_watches(*[TransportError("no route")] * 100)
        rig.cluster.slices.drop_watches(TransportError("reset"))
        await asyncio.sleep(5)
        found = await rig.readiness()
        assert found.ok
        assert "\ndoubted: " in found.text
        assert "no route" in found.text
        text = exposition(rig.library.families()).decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        doubted = families["reflector_watch_doubted"].samples
        assert sorted(sample.value for sample in doubted) == [0, 0, 1, 1]
