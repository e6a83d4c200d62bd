"""Bytes between a socket outside the sandbox and one inside; run by the sandbox's first process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

BACKLOG = 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class End(asyncio.Protocol):
    """One end of a relayed connection: what arrives here leaves at `peer`.

    An orderly end of one direction is passed on as one, and so is a failure: the peer never sees a
    clean end that the other side did not send.
    """

    def __init__(self, peer: End | None = None) -> None:
        self._peer = peer
        self._ended = False

    @property
    def peer(self) -> End:
        assert self._peer is not None, "reading is paused until there is a peer"
        return self._peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.peer.transport.write(data)

    def pause_writing(self) -> None:
        self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.peer.transport.resume_reading()

    def eof_received(self) -> bool:
        self._ended = True
        if self.peer._ended:
            self.peer.transport.close()
            return False
        self.peer.transport.write_eof()
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        if self._peer is None or self._peer.transport.is_closing():
            return
        if exc is not None:
            connection = self._peer.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self._peer.transport.abort()
        else:
            self._peer.transport.close()


class Outside(End):
    """The accepted end, which then connects the other one."""

    def __init__(self, host: str, port: int, source: str = "") -> None:
        super().__init__()
        self._address = host, port
        self._source = (source, 0) if source else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        # Not in connection_made: until some 3.11 release, asyncio starts reading after it regardless.
        # This runs before anything is read.
        self.transport.pause_reading()
        loop = asyncio.get_running_loop()
        try:
            _, self._peer = await loop.create_connection(
                lambda: End(self), *self._address, local_addr=self._source
            )
        except OSError:
            # Refused inside, which a listener that is up cannot say. Not a reset either: one that
            # arrives between connecting and TLS makes Python's ssl lose the socket unclosed.
            self.transport.close()
        else:
            self.transport.resume_reading()


def reap() -> None:
    """Collect the orphans that ended: PID 1 is everybody's last parent."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


async def listen(fd: int, host: str, port: int, *, source: str) -> asyncio.Server:
    """Relay what connects to the inherited socket `fd` to the address inside."""
    return await asyncio.get_running_loop().create_server(
        lambda: Outside(host, port, source), sock=socket.socket(fileno=fd), backlog=BACKLOG
    )


async def run(relays: Iterable[tuple[int, str, int]], source: str) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reap)
    async with contextlib.AsyncExitStack() as listening:
        for relay in relays:
            await listening.enter_async_context(await listen(*relay, source=source))
        await asyncio.Event().wait()


def serve(relays: Iterable[tuple[int, str, int]], *, source: str = "") -> None:
    """Relay until killed; connections inside come from the address `source`, where one is given."""
    asyncio.run(run(relays, source))
