"""No socket is closed over connections that were established and not accepted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from typing import TYPE_CHECKING, cast

import pytest
from tests.log_lines import capture_logs
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator
from tests.resolver.proxy.rig import Rig
from tests.resolver.support import SETTLE, HttpPod, free_port, get, worker

from elasti.api.wire import WakeOutcome
from elasti.resolver.app import raise_descriptor_limit
from elasti.resolver.ports.listening_socket import (
    Acceptor,
    accept_queue_length,
    bound_socket,
    stop_new_handshakes,
)
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.limits import Limits
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.resolver.app import Worker

MOST = 1000
_REQUEST = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def _as_many_descriptors_as_the_program_takes() -> None:
    raise_descriptor_limit()


class Crowd(threading.Thread):
    """Connects as fast as it can without sending a byte, until it is refused, has enough, or is stopped."""

    def __init__(self, port: int, *, pause: float = 0.0) -> None:
        super().__init__()
        self._port, self._pause = port, pause
        self.connected: list[socket.socket] = []
        self.refused = False
        self.stopped = threading.Event()

    def run(self) -> None:
        while len(self.connected) < MOST and not self.stopped.wait(self._pause):
            try:
                found = socket.create_connection(("127.0.0.1", self._port), timeout=30)
            except OSError:
                self.refused = True
                return
            self.connected.append(found)

    async def speak(self) -> list[str]:
        """Ask on every connection; returns what went wrong."""
        wrong: list[str] = []
        for sock in self.connected:
            sock.setblocking(False)
            try:
                reader, writer = await asyncio.open_connection(sock=sock)
                writer.write(_REQUEST)
                answer = await asyncio.wait_for(reader.read(), 30)
                writer.close()
            except OSError as error:
                wrong.append(repr(error))
            else:
                if not answer.startswith(b"HTTP/1.1 200 "):
                    wrong.append(repr(answer[:100]))
        return wrong


@contextlib.asynccontextmanager
async def serving(cluster: FakeCluster, port: int) -> AsyncIterator[Worker]:
    process = HttpPod()
    cluster.private_service("web")
    cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"http": process.port})
    cluster.elasti_service("web", ("http", port))
    async with (
        process.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        yield resolver


async def known(cluster: FakeCluster, resolver: Worker, port: int) -> None:
    """Let slices point here until the pods are known, as in a hand-over, and not any more."""
    cluster.publish("web", {"http": port})
    service = resolver.registry.get(ServiceKey("shop", "web"))
    assert service is not None
    await eventually(lambda: service.published and service.port("http").serving, every=0.01)
    cluster.unpublish("web")
    await eventually(lambda: not service.published, every=0.01)


async def arrived(crowd: Crowd, count: int) -> None:
    await eventually(lambda: len(crowd.connected) >= min(count, MOST), every=0.001)


async def test_closing_a_port_resets_no_established_connection():
    cluster, port = FakeCluster(), free_port()
    async with serving(cluster, port) as resolver:
        for _ in range(2):
            cluster.elasti_service("web", ("http", port))
            await eventually(lambda: port in resolver.listeners.ports, every=0.01)
            await known(cluster, resolver, port)
            crowd = Crowd(port)
            crowd.start()
            await arrived(crowd, 20)
            cluster.objects.delete("web")
            await asyncio.to_thread(crowd.join)
            assert crowd.refused or len(crowd.connected) == MOST
            assert await crowd.speak() == []
            await eventually(lambda: port not in resolver.listeners.ports, every=0.01)
            await resolver.listeners.settled()
        assert not resolver.registry._left


async def test_a_leaving_worker_resets_and_refuses_no_connection():
    cluster, port = FakeCluster(), free_port()
    async with serving(cluster, port) as first:
        # The second worker of a resolver: it listens on the same port.
        first.listeners.reuse_port = True
        cluster.objects.delete("web")
        await eventually(lambda: port not in first.listeners.ports, every=0.01)
        await first.listeners.settled()
        cluster.elasti_service("web", ("http", port))
        await eventually(lambda: port in first.listeners.ports, every=0.01)
        async with fake_operator(lambda _: WakeOutcome.SCALING) as url:
            crowd = Crowd(port, pause=0.001)
            async with worker(cluster, url, workers=2) as second:
                assert port in second.listeners.ports
                crowd.start()
                await arrived(crowd, 20)
                assert await second.leave()
                seen = len(crowd.connected)
                await arrived(crowd, seen + 20)
                crowd.stopped.set()
                await asyncio.to_thread(crowd.join)
                assert await crowd.speak() == []
            assert not crowd.refused


async def test_a_service_that_left_serves_on_while_nodes_may_still_send_to_its_port():
    cluster, port = FakeCluster(), free_port()
    cluster.publish("web", {"http": port})
    async with serving(cluster, port) as resolver:
        cluster.objects.delete("web")
        await eventually(
            lambda: resolver.registry.get(ServiceKey("shop", "web")) is None, every=0.01
        )
        cluster.endpoints("web", ports={"http": 1})
        await resolver.listeners.settled()
        answer = await get(port)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nConnection: close\r\n" in answer
        began = asyncio.get_running_loop().time()
        cluster.unpublish("web")
        await eventually(lambda: port not in resolver.listeners.ports, every=0.01)
        assert asyncio.get_running_loop().time() - began >= SETTLE
        await resolver.listeners.settled()
        with pytest.raises(ConnectionRefusedError):
            await get(port)
        assert not resolver.registry._left


async def test_a_service_that_left_without_pods_says_so():
    cluster, port = FakeCluster(), free_port()
    cluster.publish("web", {"http": port})
    async with serving(cluster, port) as resolver:
        cluster.endpoints("web", ports={"http": 1})
        service = resolver.registry.get(ServiceKey("shop", "web"))
        assert service is not None
        await eventually(lambda: not service._endpoints.get("http"), every=0.01)
        cluster.objects.delete("web")
        await eventually(
            lambda: resolver.registry.get(ServiceKey("shop", "web")) is None, every=0.01
        )
        answer = await asyncio.wait_for(get(port), 30)
        assert answer.startswith(b"HTTP/1.1 503 ")


def test_a_stopped_socket_accepts_its_queue_and_nothing_else():
    with bound_socket("127.0.0.1", 0, reuse_port=False) as listening:
        listening.listen(10)
        with socket.create_connection(listening.getsockname()) as early, socket.socket() as late:
            stop_new_handshakes(listening)
            stop_new_handshakes(listening)
            with pytest.raises(ConnectionRefusedError):
                late.connect(listening.getsockname())
            assert accept_queue_length(listening) == 1
            accepted, _ = listening.accept()
            with accepted:
                early.sendall(b"hello")
                accepted.settimeout(30)
                assert accepted.recv(5) == b"hello"


def test_a_handshake_that_was_under_way_when_the_listening_was_shut_ends_well():
    with bound_socket("127.0.0.1", 0, reuse_port=False) as listening, socket.socket() as client:
        # The kernel is asked to wait for the client's first bytes: until then it is not done.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
        listening.listen(10)
        client.connect(listening.getsockname())
        assert accept_queue_length(listening) == 0
        stop_new_handshakes(listening)
        client.sendall(b"hello")
        listening.settimeout(30)
        accepted, _ = listening.accept()
        with accepted:
            accepted.settimeout(30)
            assert accepted.recv(5) == b"hello"
            accepted.sendall(b"you too")
            assert client.recv(7) == b"you too"


def test_a_socket_that_cannot_be_stopped_is_logged_once(log_output):
    with socket.socket() as closed:
        pass
    for _ in range(2):
        stop_new_handshakes(closed)
    (line,) = log_output
    assert line["event"].startswith("new handshakes cannot be stopped")


async def test_an_api_server_that_goes_and_comes_back_changes_no_listener():
    """After a reconnect everything is sent again, in any order, and nothing of it is a change."""
    cluster, port = FakeCluster(), free_port()
    cluster.publish("web", {"http": port})
    async with serving(cluster, port) as resolver:
        listener = resolver.listeners._open[port]
        crowd = Crowd(port, pause=0.002)
        crowd.start()
        await arrived(crowd, 20)
        sources = (cluster.objects, cluster.services, cluster.slices)
        for source in sources:
            source.refuse_connections()
            source.drop_watches(lose_pending=True)
        await arrived(crowd, 200)
        lists = [len(source.lists) + len(source.watches) for source in sources]
        for source in sources:
            source.compact()
            source.refuse_connections(refuse=False)
        await eventually(
            lambda: all(
                len(source.lists) + len(source.watches) > before + 1
                for source, before in zip(sources, lists, strict=True)
            ),
            every=0.01,
        )
        await arrived(crowd, len(crowd.connected) + 20)
        await resolver.listeners.settled()
        crowd.stopped.set()
        await asyncio.to_thread(crowd.join)
        assert resolver.listeners._open[port] is listener
        assert not crowd.refused
        assert await crowd.speak() == []


async def test_a_crowd_is_accepted_a_few_in_a_turn_of_the_loop():
    turns = [0]

    class Counted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            turns[-1] += 1

    sock = bound_socket("127.0.0.1", 0, reuse_port=False)
    server = Acceptor(lambda _client: Counted(), sock)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(sock.getsockname()))
        assert accept_queue_length(sock) == 300, "all of them have room in the kernel's queue"
        while sum(turns) < 300:
            await asyncio.sleep(0)
            turns.append(0)
        assert 0 < max(turns) <= 70
        server.close()


class FullLoop:
    """The running loop, which takes no more sockets: the kernel watches as many as the user may have."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def connect_accepted_socket(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("admits", [True, False])
async def test_a_connection_that_the_loop_cannot_take_leaves_nothing_behind(admits):
    limits = Limits(max_clients=10 if admits else 0)
    async with Rig(limits=limits) as rig:
        sock = bound_socket("127.0.0.1", 0, reuse_port=False)
        acceptor = Acceptor(rig.handler, sock)
        acceptor._loop = cast("asyncio.AbstractEventLoop", FullLoop())
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await eventually(lambda: rig.handler.connections == 0)
        assert rig.handler.clients.used == rig.path.refusals.waiting == 0
        assert [(line["event"], line["error"]) for line in logs] == [
            ("a connection could not be opened", "[Errno 28] No space left on device")
        ]
        acceptor.close()
