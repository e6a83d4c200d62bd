"""A Service as a target: picking, waiting, refusing, and what starts and stops with it."""

from __future__ import annotations

import asyncio

import pytest

from elasti.api.types import WakeSpec
from elasti.api.wire import PROBE_PATH, WakeOutcome, read_probe_answer
from elasti.resolver.projections import ListedEndpoint, PodName, ServiceKey
from elasti.resolver.proxy.http1.writer import plain_response
from elasti.resolver.proxy.upstream.interface import Refusal, UpstreamAddress
from elasti.resolver.readiness.checks import Reachability
from elasti.resolver.readiness.plan import ProbePlan
from elasti.resolver.services.service import ServiceDeps, WakeableService

pytestmark = pytest.mark.virtual_time
A, B = UpstreamAddress("10.0.0.1", 80), UpstreamAddress("10.0.0.2", 80)
NAME = PodName("shop", "web-1", "uid-1")


class World:
    def __init__(self):
        self.accepting: set[UpstreamAddress] = set()
        self.wakes: list[float] = []
        self.connects = 0
        self.deps = ServiceDeps(checks=self, pods=self, operator=self, durable=self)
        self.service = WakeableService(ServiceKey("shop", "web"), deps=self.deps)
        self.port = self.service.port("http")

    async def connect(self, address, *, timeout):
        self.connects += 1
        return Reachability.ACCEPTED if address in self.accepting else Reachability.REFUSED

    async def ask(self, host, question):
        return True

    async def plan(self, pod):
        return ProbePlan()

    async def wake(self, key, *, count, client):
        self.wakes.append(asyncio.get_running_loop().time())
        return WakeOutcome.SCALING

    async def write(self, key):
        raise AssertionError("the operator answers")

    def endpoints(self, **addresses):
        places = {"a": A, "b": B}
        found = {
            places[name]: ListedEndpoint(ready, NAME._replace(uid=f"uid-{name}"))
            for name, ready in addresses.items()
        }
        self.service.set_endpoints({"http": found})


class Waiter:
    held_since = None

    def client(self):
        return "10.1.2.3"

    def __init__(self):
        self.admitted: list[UpstreamAddress] = []
        self.refusal = None

    def admit(self, address):
        self.admitted.append(address)

    def give_up(self, refusal):
        self.refusal = refusal


async def test_ready_pods_are_picked_in_turn():
    world = World()
    world.endpoints(a=True, b=True)
    assert {world.port.pick() for _ in range(4)} == {A, B}
    await world.service.aclose()


async def test_unready_pods_are_not_picked_or_probed_without_held_connections():
    world = World()
    world.accepting = {A}
    world.endpoints(a=False)
    await asyncio.sleep(10)
    assert world.port.pick() is None
    assert world.connects == 0
    assert world.wakes == []
    await world.service.aclose()


async def test_a_held_connection_wakes_and_goes_to_the_first_pod():
    world, waiter = World(), Waiter()
    assert world.port.wait(waiter) is None
    await asyncio.sleep(0.1)
    assert len(world.wakes) == 1
    world.endpoints(a=False, b=False)
    await asyncio.sleep(0.1)
    world.accepting = {B}
    await asyncio.sleep(0.05)
    assert waiter.admitted == [B]
    assert world.port.pick() == B
    await asyncio.sleep(100)
    # It was found to serve: no more requests.
    assert len(world.wakes) == 1
    await world.service.aclose()


async def test_kubernetes_ready_releases_without_any_probe():
    world, waiter = World(), Waiter()
    world.service.configure(wake=WakeSpec(probe="Ready"), responses=())
    world.port.wait(waiter)
    world.endpoints(a=False)
    await asyncio.sleep(5)
    assert not waiter.admitted
    world.endpoints(a=True)
    await asyncio.sleep(0)
    assert waiter.admitted == [A]
    assert world.connects == 0
    await world.service.aclose()


async def test_new_connections_queue_behind_held_ones():
    world = World()
    waiters = [Waiter() for _ in range(200)]
    for waiter in waiters:
        world.port.wait(waiter)
    world.endpoints(a=True)
    await asyncio.sleep(0)
    assert world.port.pick() is None
    await asyncio.sleep(0.1)
    assert world.port.pick() == A
    await world.service.aclose()


async def test_a_pod_that_refused_is_not_picked_before_it_accepts_again():
    world, waiter = World(), Waiter()
    world.endpoints(a=True)
    world.port.refused(A)
    assert world.port.pick() is None
    world.port.wait(waiter, first=True)
    await asyncio.sleep(5)
    assert not waiter.admitted
    world.accepting = {A}
    await asyncio.sleep(0.03)
    assert waiter.admitted == [A]
    await world.service.aclose()


async def test_a_refusal_expires_after_a_second_without_held_connections():
    world = World()
    world.endpoints(a=True, b=True)
    world.port.refused(A)
    assert {world.port.pick() for _ in range(4)} == {B}
    await asyncio.sleep(1.1)
    assert {world.port.pick() for _ in range(4)} == {A, B}
    await world.service.aclose()


async def test_when_the_last_pod_goes_a_wake_is_asked_for_at_once():
    world, waiter = World(), Waiter()
    world.port.wait(waiter)
    await asyncio.sleep(0.1)
    world.endpoints(a=True)
    await asyncio.sleep(0.05)
    late = Waiter()
    world.endpoints(a=True)
    world.port.refused(A)
    world.port.wait(late, first=True)
    before = asyncio.get_running_loop().time()
    world.endpoints()
    await asyncio.sleep(0.01)
    assert world.wakes[-1] == pytest.approx(before, abs=0.001)
    await world.service.aclose()


async def test_a_pod_that_was_found_to_serve_must_prove_itself_again_after_losing_ready():
    world, waiter = World(), Waiter()
    world.accepting = {A}
    world.port.wait(waiter)
    world.endpoints(a=False)
    await asyncio.sleep(0.1)
    assert world.port.pick() == A
    world.endpoints(a=True)
    world.endpoints(a=False)
    assert world.port.pick() is None
    await world.service.aclose()


async def test_another_pod_at_the_same_address_must_prove_itself():
    world, waiter = World(), Waiter()
    world.accepting = {A}
    world.port.wait(waiter)
    world.endpoints(a=False)
    await asyncio.sleep(0.1)
    assert world.port.pick() == A
    world.service.set_endpoints({"http": {A: ListedEndpoint(False, NAME._replace(uid="another"))}})
    assert world.port.pick() is None
    await world.service.aclose()


async def test_probing_stops_when_the_last_one_leaves():
    world, waiter = World(), Waiter()
    world.endpoints(a=False)
    world.port.wait(waiter)
    await asyncio.sleep(0.1)
    world.port.leave(waiter)
    seen, wakes = world.connects, len(world.wakes)
    assert seen
    await asyncio.sleep(60)
    assert world.connects == seen
    assert len(world.wakes) == wakes
    await world.service.aclose()


async def test_a_closed_service_refuses_held_connections():
    world, waiter = World(), Waiter()
    world.port.wait(waiter)
    await world.service.aclose()
    assert waiter.refusal is Refusal.GONE


async def test_connections_that_outlive_their_service_go_to_known_pods_and_never_wait():
    world = World()
    world.endpoints(a=True)
    await world.service.aclose()
    assert world.port.pick() == A
    assert world.port.stepping_aside
    world.port.refused(A)
    assert world.port.pick() is None
    assert world.port.wait(Waiter(), first=True) is Refusal.GONE
    await asyncio.sleep(10)
    assert world.wakes == []


async def test_the_operators_probe_is_answered_and_is_no_activity():
    world = World()

    class Asked:
        method, target, host = b"GET", PROBE_PATH.encode(), b"elasti"

        def field(self, name):
            return None

    answer = world.port.answer_locally(Asked())
    assert answer is not None
    sent = plain_response(answer.status, answer.body, close=True, head_only=False)
    identity = read_probe_answer(sent)
    assert identity is not None
    assert (identity.namespace, identity.service) == ("shop", "web")
    assert world.service.last_arrival is None
    await world.service.aclose()


async def test_it_steps_aside_when_its_slice_is_gone_or_the_worker_leaves():
    world = World()
    assert world.port.stepping_aside
    world.service.published = True
    assert not world.port.stepping_aside
    world.deps.leaving = True
    assert world.port.stepping_aside
    await world.service.aclose()


async def test_ports_of_one_service_do_not_hold_each_other_up():
    world = World()
    metrics = world.service.port("metrics")
    waiting, served = Waiter(), Waiter()
    metrics.wait(waiting)
    world.port.wait(served)
    world.endpoints(a=True)
    await asyncio.sleep(0.1)
    assert served.admitted == [A]
    assert not waiting.admitted
    assert world.service.held == 1
    await world.service.aclose()
