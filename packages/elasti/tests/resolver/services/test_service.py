"""A Service as a target: picking, waiting, refusing, and what starts and stops with it."""

from __future__ import annotations

import asyncio

import pytest
from tests.resolver.services.service_rig import NAME, A, B, ServiceRig

from elasti.api.types import WakeSpec
from elasti.api.wire import PROBE_PATH, WakePart, read_probe_answer
from elasti.resolver.projections import ListedEndpoint
from elasti.resolver.proxy.own_responses import plain_response
from elasti.resolver.proxy.upstream.interface import Refusal, UpstreamAddress

pytestmark = pytest.mark.virtual_time


class Waiter:
    is_http = True
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
    rig = ServiceRig()
    await rig.serving(a=True, b=True)
    assert {rig.port.pick() for _ in range(4)} == {A, B}
    await rig.service.aclose()


async def test_retired_pods_get_nothing_and_later_ones_do():
    rig, waiter = ServiceRig(), Waiter()
    await rig.serving(a=True)
    rig.service.retire_pods(retired=True)
    assert rig.port.pick() is None
    assert rig.port.wait(waiter) is None
    await asyncio.sleep(1)
    assert rig.wakes
    assert waiter.admitted == []
    rig.endpoints(a=True, b=True)
    await asyncio.sleep(0.1)
    assert waiter.admitted == [B]
    assert {rig.port.pick() for _ in range(4)} == {B}
    await asyncio.sleep(10)
    assert {rig.port.pick() for _ in range(4)} == {A, B}, "it was not asked to stop"
    await rig.service.aclose()


async def test_a_retirement_can_be_taken_back():
    rig, waiter = ServiceRig(), Waiter()
    await rig.serving(a=True)
    rig.service.retire_pods(retired=True)
    assert rig.port.wait(waiter) is None
    rig.service.retire_pods(retired=False)
    await asyncio.sleep(0.01)
    assert waiter.admitted == [A]
    await rig.service.aclose()


async def test_unready_pods_are_not_picked_or_probed_without_held_connections():
    rig = ServiceRig()
    rig.accepting = {A}
    rig.endpoints(a=False)
    await asyncio.sleep(10)
    assert rig.port.pick() is None
    assert rig.connects == 0
    assert rig.wakes == []
    await rig.service.aclose()


async def test_a_held_connection_wakes_and_goes_to_the_first_pod():
    rig, waiter = ServiceRig(), Waiter()
    assert rig.port.wait(waiter) is None
    await asyncio.sleep(0.1)
    assert len(rig.wakes) == 1
    rig.endpoints(a=False, b=False)
    await asyncio.sleep(0.1)
    rig.accepting = {B}
    await asyncio.sleep(0.05)
    assert waiter.admitted == [B]
    assert rig.port.pick() == B
    await asyncio.sleep(100)
    # It was found to serve: no more requests.
    assert len(rig.wakes) == 1
    await rig.service.aclose()


async def test_kubernetes_ready_releases_without_any_probe():
    rig, waiter = ServiceRig(), Waiter()
    rig.service.configure(wake=WakeSpec(probe="Ready"), responses=())
    rig.port.wait(waiter)
    rig.endpoints(a=False)
    await asyncio.sleep(5)
    assert not waiter.admitted
    rig.endpoints(a=True)
    await asyncio.sleep(0)
    assert waiter.admitted == [A]
    assert rig.connects == 0
    await rig.service.aclose()


async def test_new_connections_queue_behind_held_ones():
    rig = ServiceRig()
    waiters = [Waiter() for _ in range(200)]
    for waiter in waiters:
        rig.port.wait(waiter)
    rig.endpoints(a=True)
    await asyncio.sleep(0)
    assert rig.port.pick() is None
    await asyncio.sleep(0.1)
    assert rig.port.pick() == A
    await rig.service.aclose()


async def test_a_pod_that_refused_is_not_picked_before_it_accepts_again():
    rig, waiter = ServiceRig(), Waiter()
    await rig.serving(a=True)
    rig.port.refused(A)
    assert rig.port.pick() is None
    rig.port.wait(waiter, first=True)
    await asyncio.sleep(5)
    assert not waiter.admitted
    rig.accepting = {A}
    await asyncio.sleep(0.03)
    assert waiter.admitted == [A]
    await rig.service.aclose()


async def test_a_refusal_expires_after_a_second_without_held_connections():
    rig = ServiceRig()
    await rig.serving(a=True, b=True)
    rig.port.refused(A)
    assert {rig.port.pick() for _ in range(4)} == {B}
    await asyncio.sleep(1.1)
    assert {rig.port.pick() for _ in range(4)} == {A, B}
    await rig.service.aclose()


async def test_when_the_last_pod_goes_a_wake_is_asked_for_at_once():
    rig, waiter = ServiceRig(), Waiter()
    rig.port.wait(waiter)
    await asyncio.sleep(0.1)
    rig.endpoints(a=True)
    await asyncio.sleep(0.05)
    late = Waiter()
    rig.endpoints(a=True)
    rig.port.refused(A)
    rig.port.wait(late, first=True)
    before = asyncio.get_running_loop().time()
    rig.endpoints()
    await asyncio.sleep(0.01)
    assert rig.wakes[-1] == pytest.approx(before, abs=0.001)
    await rig.service.aclose()


async def test_a_pod_that_was_found_to_serve_must_prove_itself_again_after_losing_ready():
    rig, waiter = ServiceRig(), Waiter()
    rig.accepting = {A}
    rig.port.wait(waiter)
    rig.endpoints(a=False)
    await asyncio.sleep(0.1)
    assert rig.port.pick() == A
    rig.endpoints(a=True)
    rig.endpoints(a=False)
    assert rig.port.pick() is None
    await rig.service.aclose()


async def test_another_pod_at_the_same_address_must_prove_itself():
    rig, waiter = ServiceRig(), Waiter()
    rig.accepting = {A}
    rig.port.wait(waiter)
    rig.endpoints(a=False)
    await asyncio.sleep(0.1)
    assert rig.port.pick() == A
    rig.service.set_endpoints({"http": {A: ListedEndpoint(False, NAME._replace(uid="another"))}})
    assert rig.port.pick() is None
    await rig.service.aclose()


async def test_probing_stops_when_the_last_one_leaves():
    rig, waiter = ServiceRig(), Waiter()
    rig.endpoints(a=False)
    rig.port.wait(waiter)
    await asyncio.sleep(0.1)
    rig.port.leave(waiter)
    seen, wakes = rig.connects, len(rig.wakes)
    assert seen
    await asyncio.sleep(60)
    assert rig.connects == seen
    assert len(rig.wakes) == wakes
    await rig.service.aclose()


async def test_a_wake_up_takes_as_long_as_its_first_client_waits():
    rig = ServiceRig()
    service = rig.service
    for seconds in (3.0, 1.0):
        waiter = Waiter()
        rig.port.wait(waiter)
        await asyncio.sleep(seconds)
        rig.endpoints(a=True)
        await asyncio.sleep(2)
        assert service.last_start == pytest.approx(seconds, abs=0.01)
        assert asyncio.get_running_loop().time() - service.started_at == pytest.approx(2, abs=0.01)
        rig.endpoints()
    # The visitor of a waiting page leaves, and the page comes again: one wait. Another client, later: its own.
    for away, waited in ((0.1, 4.1), (20.0, 24.0), (60.0, 3.0)):
        first, second = Waiter(), Waiter()
        rig.port.wait(first)
        await asyncio.sleep(1)
        rig.port.leave(first)
        await asyncio.sleep(away)
        rig.port.wait(second)
        await asyncio.sleep(3)
        rig.endpoints(a=True)
        await asyncio.sleep(1)
        assert service.last_start == pytest.approx(waited, abs=0.01)
        rig.endpoints()
    await service.aclose()


async def test_a_wake_up_that_takes_too_long_names_what_did_not_start():
    rig = ServiceRig()
    rig.parts = (WakePart("postgres", "pg"), WakePart("web", "web", (0,)))
    late = "the service did not wake in time: postgres did not start"
    assert rig.port.wait(Waiter()) is None
    await asyncio.sleep(rig.port.hold.timeout + 1)
    assert rig.port.explain(Refusal.TIMEOUT) == late
    assert rig.port.explain(Refusal.GONE) == Refusal.GONE.message
    # It answers for its pods, whatever the operator knew when it was asked.
    rig.other("pg").set_endpoints({"": {A: ListedEndpoint(ready=True, pod=NAME)}})
    assert rig.port.explain(Refusal.TIMEOUT) == "the service did not wake in time"
    await rig.service.aclose()


async def test_a_closed_service_refuses_held_connections():
    rig, waiter = ServiceRig(), Waiter()
    rig.port.wait(waiter)
    await rig.service.aclose()
    assert waiter.refusal is Refusal.GONE


async def test_connections_that_outlive_their_service_go_to_known_pods_and_never_wait():
    rig = ServiceRig()
    await rig.serving(a=True)
    await rig.service.aclose()
    assert rig.port.pick() == A
    assert rig.port.stepping_aside
    rig.port.refused(A)
    assert rig.port.pick() is None
    assert rig.port.wait(Waiter(), first=True) is Refusal.GONE
    await asyncio.sleep(10)
    assert rig.wakes == []


async def test_the_operators_probe_is_answered_and_is_not_activity():
    rig = ServiceRig()

    class Asked:
        method, target, host = b"GET", PROBE_PATH.encode(), b"elasti"

        def field(self, name):
            return None

    answer = rig.port.answer_locally(Asked())
    assert answer is not None
    sent = plain_response(answer.status, answer.body, close=True, head_only=False)
    identity = read_probe_answer(sent)
    assert identity is not None
    assert (identity.namespace, identity.service) == ("shop", "web")
    assert rig.service.last_arrival is None
    await rig.service.aclose()


async def test_it_steps_aside_when_its_slice_is_gone_or_the_worker_leaves():
    rig = ServiceRig()
    assert rig.port.stepping_aside
    rig.service.published = True
    assert not rig.port.stepping_aside
    rig.deps.leaving = True
    assert rig.port.stepping_aside
    await rig.service.aclose()


async def test_ports_of_one_service_do_not_hold_each_other_up():
    rig = ServiceRig()
    metrics = rig.service.port("metrics")
    waiting, served = Waiter(), Waiter()
    metrics.wait(waiting)
    rig.port.wait(served)
    rig.endpoints(a=True)
    await asyncio.sleep(0.1)
    assert served.admitted == [A]
    assert not waiting.admitted
    assert rig.service.held == 1
    await rig.service.aclose()


async def test_an_address_that_is_not_the_pods_own_gets_nothing():
    rig, waiter = ServiceRig(), Waiter()
    rig.accepting, rig.foreign = {A, B}, {A.host}
    rig.port.wait(waiter)
    rig.endpoints(a=True)
    await asyncio.sleep(10)
    assert not waiter.admitted
    assert rig.connects == 0
    assert rig.read == [A.host]
    rig.endpoints(a=True, b=False)
    await asyncio.sleep(0.1)
    assert waiter.admitted == [B]
    assert {rig.port.pick() for _ in range(4)} == {B}
    await rig.service.aclose()


async def test_pods_are_read_where_connections_may_go_to_them_only():
    rig = ServiceRig()
    rig.endpoints(a=True)
    await asyncio.sleep(1)
    assert rig.read == []
    rig.service.publish(published=True)
    await asyncio.sleep(1)
    assert rig.port.pick() == A
    rig.endpoints(a=False)
    rig.endpoints(a=True, b=True)
    await asyncio.sleep(1)
    assert rig.read == [A.host, B.host]
    await rig.service.aclose()
