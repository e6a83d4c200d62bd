"""The data path without sockets: transports of lists, and pods that are connected at once."""

from __future__ import annotations

import asyncio
from typing import cast

from tests.resolver.proxy.memory_upstream import MemoryUpstream

from elasti.resolver.proxy.http1.connection import ClientConnection
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.proxy.tcp import TcpConnection
from elasti.resolver.proxy.upstream.interface import PortProtocol, UpstreamAddress
from elasti.resolver.proxy.upstream.pod_connection import PodConnection, PodPool
from elasti.resolver.proxy.upstream.pool import UpstreamPool

POD = UpstreamAddress("192.0.2.1", 80)


class FakeSocket:
    def getsockopt(self, *_):
        return b"\x01"

    def setsockopt(self, *_):
        pass


class FakeTransport:
    """A transport of lists; its owner hears of the end when the test says so."""

    def __init__(self, protocol) -> None:
        self.protocol = protocol
        self.written = b""
        self.closing = self.ended = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.ended, "written after the end was announced"
        if not self.closing:
            self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_protocol(self, protocol) -> None:
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def get_extra_info(self, name: str):
        return {"peername": ("192.0.2.7", 1234), "socket": FakeSocket()}.get(name)

    def feed(self, data: bytes) -> None:
        if not self.closing:
            self.protocol.data_received(data)

    def lose(self) -> None:
        self.closing = True
        self.protocol.connection_lost(None)


class FakePool(UpstreamPool):
    """Opens connections at once, to nowhere."""

    def open(self, address, consumer, *, fresh=False) -> None:
        pod_pool = PodPool(address, fresh=fresh, credit=3)
        assert consumer.pod_share.take()
        connection = PodConnection(pool=self, pod_pool=pod_pool, share=consumer.pod_share)
        transport = FakeTransport(connection)
        connection.connection_made(cast(asyncio.Transport, transport))
        self.opened = [*getattr(self, "opened", ()), transport]
        consumer.connected(connection)


class ConnectionRig:
    def __init__(self, accepts=None, protocol=PortProtocol.HTTP, pods=(POD,)) -> None:
        self.path = DataPath()
        self.pool = FakePool(limits=self.path.limits, sweeper=self.path.sweeper)
        self.path.pool = self.pool
        self.upstream = MemoryUpstream(*pods)
        self.handler = self.path.handler(self.upstream, protocol, accepts=accepts)
        connection = self.handler()
        assert isinstance(connection, ClientConnection | TcpConnection)
        self.client = FakeTransport(connection)
        connection.connection_made(cast(asyncio.Transport, self.client))

    @property
    def pods(self) -> list[FakeTransport]:
        return list(getattr(self.pool, "opened", ()))

    def end(self) -> None:
        self.client.lose()
        for pod in self.pods:
            pod.lose()
        counted = self.handler.statistics
        assert (counted.connections, counted.active, counted.held, counted.tunnels) == (0, 0, 0, 0)
        assert self.handler.clients.used == self.handler.pods.used == 0
        assert self.handler.memory.used == 0
