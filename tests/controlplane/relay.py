"""Bytes between a socket outside the sandbox and one inside; run by the sandbox's first process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK = 256 * 1024
BACKLOG = 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the peer sees a failure, never a clean end that the other side did not send."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until it ends; an orderly end is passed on as one."""
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def join(
    outside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    inside: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy both directions until both have ended, or one has failed."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(outside[0], inside[1]))
            group.create_task(pump(inside[0], outside[1]))
    except* OSError:
        reset(outside[1])
        reset(inside[1])
    finally:
        outside[1].close()
        inside[1].close()


async def listen(fd: int, host: str, port: int) -> asyncio.Server:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inside = await asyncio.open_connection(host, port, limit=CHUNK)
        except OSError:
            # Refused inside, which a listener that is up cannot say. Not a reset either: one that
            # arrives between connecting and TLS makes Python's ssl lose the socket unclosed.
            writer.close()
        else:
            await join((reader, writer), inside)

    listener = socket.socket(fileno=fd)
    return await asyncio.start_server(accept, sock=listener, limit=CHUNK, backlog=BACKLOG)


def reap() -> None:
    """Collect the orphans that ended: PID 1 is everybody's last parent."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


async def run(relays: Iterable[tuple[int, str, int]]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reap)
    async with contextlib.AsyncExitStack() as listening:
        for relay in relays:
            await listening.enter_async_context(await listen(*relay))
        await asyncio.Event().wait()


def serve(relays: Iterable[tuple[int, str, int]]) -> None:
    """Relay until killed."""
    asyncio.run(run(relays))
