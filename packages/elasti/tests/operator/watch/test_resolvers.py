"""Which resolvers count while Kubernetes still calls lost ones ready."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Self

import msgspec
import pytest
from tests.controller.election.lease_server import NO_FAULT, Fault, LeaseServer

from elasti.operator.app import election_config
from elasti.operator.handover.resolver_client import HttpResolverClient
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.informer_manager import InformerManager
from elasti.operator.watch.resolvers import ResolverProbes, Resolvers
from kubeloop.aio.tasks import finish
from kubeloop.controller.election.elector import LeaderCallbacks, LeaderElector
from kubeloop.objects.core import SERVICE_LABEL, EndpointSlice
from kubeloop.objects.meta import STRUCT_ACCESS
from kubeloop.testing.fake_source import FakeSource
from kubeloop.testing.virtual_time import VirtualTimeLoop

ONE, TWO, SIX = "10.0.0.1", "10.0.0.2", "fd00::1"
CONNECT, KEEPALIVE = 1.2, 2.0


class ProbeRig:
    """Two resolvers in a watch, and what happens to connections to them."""

    def __init__(self, *addresses: str) -> None:
        self.source: FakeSource[Any] = FakeSource(
            namespace="elasti",
            represent=lambda obj: msgspec.convert(obj, EndpointSlice, strict=False),
            access=STRUCT_ACCESS,
        )
        self.lost: set[str] = set()
        self.killed: set[str] = set()
        self.broken: set[str] = set()
        self.kept: dict[str, Callable[[], None]] = {}
        self.changes = self.looks = 0
        self.manager = InformerManager(self)
        self.resolvers = Resolvers(self.manager, namespace="elasti", service="resolver")
        self.probes = ResolverProbes(self.resolvers, self.reachable)
        for address in addresses:
            self.add(address)

    def add(self, address: str) -> None:
        """Have Kubernetes call one more resolver ready."""
        self.source.put(
            self.source.build(
                f"slice-{address}".replace(":", "-"),
                labels={SERVICE_LABEL: "resolver"},
                endpoints=[{"addresses": [address], "conditions": {"ready": True}}],
            )
        )

    def resource(self, _resource: Any, _kind: Any, *, namespace: str = "") -> FakeSource[Any]:
        assert namespace == "elasti"
        return self.source

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        self.looks += 1
        if address in self.kept:
            return True
        if address in self.broken:
            self.broken.remove(address)
            return False
        await asyncio.sleep(CONNECT if address in self.lost else 0.001)
        if address in self.lost | self.killed:
            return False
        self.kept[address] = ended
        return True

    def lose(self, *addresses: str) -> None:
        """Let these resolvers' nodes go; the kernel ends their connections when it notices."""
        self.lost = set(addresses)
        for address in self.lost & self.kept.keys():
            asyncio.get_running_loop().call_later(KEEPALIVE, self._break, address)

    def kill(self, address: str) -> None:
        """End a resolver's process: its kernel ends connections, and refuses new ones."""
        self.killed = {address}
        self.kept.pop(address)()

    def _break(self, address: str) -> None:
        if address in self.lost:
            self.broken.add(address)
            self.kept.pop(address)()

    def ready(self) -> list[str]:
        return [endpoint.addresses[0] for endpoint in self.resolvers.ready()]

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self.manager.run())]
        await self.manager.wait_until_ready()
        self.resolvers.listen(self._changed)
        self._tasks.append(asyncio.create_task(self.probes.run()))
        await asyncio.sleep(0.1)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await finish(self._tasks)

    def _changed(self, flipped: bool) -> None:
        assert not flipped
        self.changes += 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("begun", [0.0, 0.3, 0.45])
async def test_a_lost_resolver_does_not_count_after_four_seconds(begun: float):
    async with ProbeRig(ONE, TWO) as rig:
        await asyncio.sleep(begun)
        rig.lose(TWO)
        await asyncio.sleep(4)
        assert (rig.ready(), rig.changes) == ([ONE], 1)
        rig.lost = set()
        await asyncio.sleep(4)
        assert (rig.ready(), rig.changes) == ([ONE, TWO], 2)


@pytest.mark.virtual_time
async def test_a_killed_resolver_does_not_count_after_a_twentieth_of_a_second():
    async with ProbeRig(ONE, TWO) as rig:
        await asyncio.sleep(1)
        rig.kill(TWO)
        await asyncio.sleep(0.05)
        assert (rig.ready(), rig.changes) == ([ONE], 1)
        rig.killed = set()
        await asyncio.sleep(4)
        assert (rig.ready(), rig.changes) == ([ONE, TWO], 2)


@pytest.mark.virtual_time
async def test_while_all_connections_last_no_resolver_is_looked_for():
    async with ProbeRig(ONE, TWO) as rig:
        before = rig.looks
        await asyncio.sleep(25)
        assert rig.looks == before


@pytest.mark.virtual_time
async def test_a_resolver_that_comes_is_looked_for_at_once_and_found_lost_as_soon_as_the_others():
    async with ProbeRig(ONE) as rig:
        await asyncio.sleep(5)
        rig.add(TWO)
        await asyncio.sleep(0.1)
        assert TWO in rig.kept
        rig.lose(TWO)
        await asyncio.sleep(4)
        assert rig.ready() == [ONE]


@pytest.mark.virtual_time
async def test_a_resolver_that_was_lost_before_it_was_seen_does_not_count_for_long():
    async with ProbeRig(ONE) as rig:
        await asyncio.sleep(5)
        rig.lose(TWO)
        rig.add(TWO)
        await asyncio.sleep(2 * CONNECT + 0.1)
        assert rig.ready() == [ONE]


@pytest.mark.virtual_time
async def test_one_lost_connection_changes_nothing():
    async with ProbeRig(ONE, TWO) as rig:
        for _ in range(20):
            rig.lose(TWO)
            await asyncio.sleep(KEEPALIVE + 0.05)
            rig.lost = set()
            await asyncio.sleep(4)
        assert (rig.ready(), rig.changes) == ([ONE, TWO], 0)


@pytest.mark.virtual_time
async def test_the_only_resolver_and_the_last_of_a_family_always_count():
    async with ProbeRig(ONE, TWO, SIX) as rig:
        rig.lose(ONE, SIX)
        await asyncio.sleep(5)
        assert rig.ready() == [TWO, SIX]
        rig.lose(ONE, TWO, SIX)
        await asyncio.sleep(5)
        assert rig.ready() == [ONE, TWO, SIX]


async def test_a_resolver_whose_loop_is_busy_is_reachable_and_a_closed_one_is_not():
    """Nothing accepts here but the kernel, as while a process is busy or stopped."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        client = HttpResolverClient(admin_port=listener.getsockname()[1])
        assert await client.reachable("127.0.0.1", print)
        client = HttpResolverClient(admin_port=listener.getsockname()[1])
    assert not await client.reachable("127.0.0.1", print)


@pytest.mark.parametrize(("linger", "refusals"), [(None, 0), (struct.pack("ii", 1, 0), 1)])
async def test_a_resolver_is_connected_to_again_only_when_the_kept_connection_has_ended(
    linger: bytes | None, refusals: int
):
    """Closed by the resolver, it is made anew; broken by the network, the resolver was not there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        listener.setblocking(False)
        async with HttpResolverClient(admin_port=listener.getsockname()[1]) as client:
            assert await client.reachable("127.0.0.1", print)
            accepted, _ = listener.accept()
            assert accepted.recv(4096).startswith(b"GET /healthz")
            assert await client.reachable("127.0.0.1", print)
            with pytest.raises(BlockingIOError):
                listener.accept()
            if linger is not None:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            accepted.close()
            answers: list[bool] = []
            async with asyncio.timeout(5):
                while not select.select([listener], [], [], 0)[0]:
                    answers.append(await client.reachable("127.0.0.1", print))
                    await asyncio.sleep(0)
            assert (answers.count(False), answers[-1]) == (refusals, True)


async def _takeover(lost_at: float, late: float) -> float:
    """Lose the leader at a moment; return after how long another replica leads."""
    loop, server, leads = asyncio.get_running_loop(), LeaseServer(), asyncio.Event()

    def lost(_verb: str) -> Fault:
        return Fault(refused=loop.time() >= lost_at)

    async def lead() -> None:
        leads.set()

    electors = [
        LeaderElector(
            config=election_config(OperatorSettings(), name),
            lease=server.client(faults),
            rand=lambda: late,
        )
        for name, faults in (("lost", lost), ("living", lambda _verb: NO_FAULT))
    ]
    callbacks = [LeaderCallbacks(on_started=work, on_stopped=lambda: None) for work in (idle, lead)]
    runs = [asyncio.create_task(electors[0].run(callbacks[0]))]
    await asyncio.sleep(0.1)
    runs.append(asyncio.create_task(electors[1].run(callbacks[1])))
    await leads.wait()
    took = loop.time() - lost_at
    await finish(runs)
    return took


async def idle() -> None:
    return


def test_another_operator_leads_within_the_lost_leaders_15_seconds():
    for late in (0.0, 0.5, 1.0):
        for step in range(40):
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                # Half a second is left for the first reconciles.
                assert runner.run(_takeover(20 + step / 8, late)) <= 14.5
