"""Several worker processes behind one admin port.

Each worker binds the same ports and has an event loop, watches and connections of its own; the kernel
divides new connections among them. The supervisor starts them, starts one again that died, passes on
the wish to stop, and answers the admin port with the sum of what they tell.

Workers hold the reading end of a pipe, their standard input, of which the supervisor holds the other.
Nobody writes into it; where it ends, the supervisor has died, and its workers leave, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESTART_AFTER = 1.0

_log = logging.getLogger(__name__)


async def until_orphaned(pipe: IO[str]) -> None:
    """Wait, as a worker, until there is no supervisor any more."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        await reader.read()
    finally:
        transport.close()


class Supervisor:
    """Keeps worker processes alive: one for each command."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Run the workers until told to stop; returns when the last has ended.

        A cancelled supervisor kills them.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number, command in enumerate(self._commands):
                    group.create_task(self._keep(number, command, stop))
                await stop.wait()
                self._signal(signal.SIGTERM)
        finally:
            await self._kill()

    async def _keep(self, number: int, command: Sequence[str], stop: asyncio.Event) -> None:
        while not stop.is_set():
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
            self.processes[number] = process
            if stop.is_set():
                # The wish came before there was anybody to tell.
                process.terminate()
            code = await process.wait()
            del self.processes[number]
            if not stop.is_set():
                _log.error("worker %d ended with code %d; it is started again", number, code)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RESTART_AFTER):
                        await stop.wait()

    def _signal(self, signum: int) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)

    async def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        for process in list(self.processes.values()):
            await process.wait()
