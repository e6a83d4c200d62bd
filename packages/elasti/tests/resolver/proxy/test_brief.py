from __future__ import annotations

import asyncio
import socket

from elasti.resolver.proxy.brief import BriefPoll, BriefTransport


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def test_a_brief_connection_reads_nothing_after_its_end():
    near, far = socket.socketpair()
    poll, protocol = BriefPoll(), Recorder()
    poll.start()
    try:
        with far:
            transport = BriefTransport(poll, near, "127.0.0.1", protocol)
            transport.write(b"the last answer")
            transport.close()
            far.send(b"another request")
            poll.epoll.poll(1.0)
            poll._ready()  # before the loop tells the protocol that it is lost
            assert protocol.received == b""
            await protocol.lost.wait()
            assert far.recv(100) == b"the last answer"
    finally:
        poll.close()
