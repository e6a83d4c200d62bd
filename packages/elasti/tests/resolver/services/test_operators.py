"""Calling an operator of several replicas, some of which are gone without a word."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from tests.resolver.cluster import FakeCluster, fake_operator

from elasti.api.wire import WakeOutcome
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.operators import OperatorClient, OperatorReplicas
from elasti.resolver.services.wake import OperatorUnreachable
from kubeloop.objects.core import SERVICE_LABEL

KEY = ServiceKey("shop", "web")


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address at which connections are neither accepted nor refused, as on a node that is lost."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # The queue of connections to be accepted is full: the kernel drops what else comes.
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def refusing() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def test_a_wake_request_passes_a_replica_that_is_lost_within_a_second():
    asked: list[str] = []

    def on_wake(request):
        asked.append(request.svc)
        return WakeOutcome.SCALING

    loop = asyncio.get_running_loop()
    with black_hole() as dead:
        async with fake_operator(on_wake) as living:
            client = OperatorClient(url=dead, replicas=lambda: [dead, living])
            async with client:
                began = loop.time()
                assert (await client.wake(KEY, count=1)).outcome is WakeOutcome.SCALING
                # The goal is three seconds from the request to the scale that is written.
                assert loop.time() - began < 2.0
                began = loop.time()
                assert (await client.wake(KEY, count=1)).outcome is WakeOutcome.SCALING
                assert loop.time() - began < 0.4, "the replica that answered is asked first"
    assert asked == ["web", "web"]
    assert (client.answered, client.failed) == (2, 0)


async def test_a_replica_that_cannot_act_or_refuses_makes_room_at_once():
    async with (
        fake_operator(lambda _: WakeOutcome.UNAVAILABLE) as cannot,
        fake_operator(lambda _: WakeOutcome.ALREADY_UP) as can,
    ):
        replicas = [refusing(), cannot, can]
        async with OperatorClient(url=refusing(), replicas=lambda: replicas) as client:
            async with asyncio.timeout(5):
                assert (await client.wake(KEY, count=1)).outcome is WakeOutcome.ALREADY_UP
        async with OperatorClient(url=refusing(), replicas=lambda: replicas[:2]) as client:
            assert (await client.wake(KEY, count=1)).outcome is WakeOutcome.UNAVAILABLE


async def test_the_leader_is_found_and_asked_first():
    asked: list[str] = []

    def by(name: str):
        def on_wake(_):
            asked.append(name)
            return WakeOutcome.SCALING

        return on_wake

    async with (
        fake_operator(by("follower"), leads=False) as one,
        fake_operator(by("leader")) as leader,
        fake_operator(by("follower"), leads=False) as other,
    ):
        replicas = sorted([one, leader, other])
        async with OperatorClient(url=refusing(), replicas=lambda: replicas) as client:
            for _ in range(6):
                await client.wake(KEY, count=1)
    assert asked[2:] == ["leader"] * 4


async def test_a_follower_that_answers_is_stayed_with_while_another_does_not():
    loop = asyncio.get_running_loop()
    with black_hole() as dead:
        async with fake_operator(lambda _: WakeOutcome.SCALING, leads=False) as living:
            async with OperatorClient(url=dead, replicas=lambda: [dead, living]) as client:
                await client.wake(KEY, count=1)
                began = loop.time()
                for _ in range(3):
                    await client.wake(KEY, count=1)
                assert loop.time() - began < 0.4


async def test_no_replica_answers():
    with black_hole() as dead:
        client = OperatorClient(url=refusing(), replicas=lambda: [dead], timeout=0.7)
        async with client:
            with pytest.raises(OperatorUnreachable, match=dead):
                await client.wake(KEY, count=1)
    assert (client.answered, client.failed) == (0, 1)


async def test_unknown_replicas_are_called_through_their_service_again():
    asked = 0

    def on_wake(_):
        nonlocal asked
        asked += 1
        return WakeOutcome.SCALING if asked == 2 else WakeOutcome.UNAVAILABLE

    async with fake_operator(on_wake) as url, OperatorClient(url=url) as client:
        assert (await client.wake(KEY, count=1)).outcome is WakeOutcome.SCALING


@pytest.mark.virtual_time
async def test_replicas_are_those_of_the_operators_slices_that_are_ready():
    cluster = FakeCluster()

    def put(*endpoints, name="operators", service="elasti-operator"):
        cluster.slices.put(
            cluster.slices.build(
                name,
                labels={SERVICE_LABEL: service},
                endpoints=[
                    {"addresses": [address], "conditions": conditions}
                    for address, conditions in endpoints
                ],
                ports=[{"name": "http", "port": 8013}],
            )
        )

    replicas = OperatorReplicas(cluster, namespace="shop", service="elasti-operator")
    put(("10.0.0.9", {"ready": True}), name="other", service="web")
    async with replicas.factory.running():
        await replicas.factory.wait_for_sync(timeout=1)
        assert replicas.urls() == []
        put(
            ("10.0.0.2", {"ready": True}),
            ("10.0.0.1", {"ready": False}),
            ("10.0.0.3", {"ready": False, "terminating": True}),
        )
        await asyncio.sleep(0.01)
        assert replicas.urls() == ["http://10.0.0.2:8013"]
        put(("10.0.0.2", {"ready": False}), ("fd00::1", {"ready": False}))
        await asyncio.sleep(0.01)
        assert replicas.urls() == ["http://10.0.0.2:8013", "http://[fd00::1]:8013"]
