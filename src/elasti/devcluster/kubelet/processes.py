"""Local processes with an owner: the kubelet's side of the supervisor.

    async with Processes() as processes:
        process = await processes.start(ProcessSpec(argv=("sleep", "9"), env={}), output=fd)
        process.stop()
        code = await process.wait()

When the block is left, or this process dies by whatever means, every process it started is gone,
and everything those started. A supervisor that ends by itself is replaced at the next start.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Self

from elasti.devcluster.kubelet.supervisor.link import Link, StartError
from elasti.devcluster.kubelet.supervisor.spec import Isolation

if TYPE_CHECKING:
    from types import TracebackType

    from elasti.devcluster.kubelet.supervisor.spec import ProcessSpec


class Process:
    """A program that was started; it may have ended."""

    def __init__(self, name: str, link: Link) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        """The first process of its tree, as seen from here."""
        self._name = name
        self._link = link
        self._forked: asyncio.Future[None] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "ended"
        return f"<Process {self._name} pid {self.pid} {state}>"

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._exited.done()

    def stop(self) -> None:
        """Ask it to end: SIGTERM to its process group."""
        if self.is_running:
            self._link.send(f"stop {self._name}")

    def kill(self) -> None:
        """End it and everything it started: SIGKILL."""
        if self.is_running:
            self._link.send(f"end {self._name}")

    async def wait(self) -> int:
        """Wait until it has ended; 128 and more means by a signal."""
        return await asyncio.shield(self._exited)

    async def has_pid(self) -> None:
        """Wait until its PID is known, or it has ended without one."""
        await asyncio.shield(self._forked)

    def forked(self, pid: int) -> None:
        """Hear its PID."""
        self.pid = pid
        self._forked.set_result(None)

    def ended(self, code: int) -> None:
        """Hear that it ended."""
        if not self._forked.done():
            self._forked.set_result(None)
        if not self._exited.done():
            self._exited.set_result(code)


class Processes:
    """Starts processes; used as an `async with` block.

    Containers get the isolation that this machine allows, and no more than `most`.
    """

    def __init__(self, *, most: Isolation = Isolation.PRIVILEGED) -> None:
        self._most = most
        self._names = itertools.count(1)
        self._link: Link | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._supervised()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    @property
    def isolation(self) -> Isolation:
        """What containers get on this machine. Valid inside the block."""
        assert self._link is not None
        return self._link.isolation

    @property
    def supervisor_pid(self) -> int:
        """The supervisor's own process."""
        assert self._link is not None
        return self._link.process.pid

    async def start(self, spec: ProcessSpec, *, output: int) -> Process:
        """Run a program; `output` takes what it prints. Raises StartError.

        The descriptor stays the caller's. Cancelled, it leaves nothing running.
        """
        link = await self._supervised()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            name = str(next(self._names))
            process = Process(name, link)
            await link.start(name, spec, [writer, output], process)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        try:
            problem = await _read_all(reader)
            await process.has_pid()
        except asyncio.CancelledError:
            process.kill()
            raise
        if problem:
            raise StartError(problem.decode(errors="replace"))
        return process

    async def _supervised(self) -> Link:
        async with self._starting:
            if self._link is None or self._link.is_lost:
                if self._link is not None:
                    await self._link.close()
                self._link = await Link.open(self._most)
            return self._link


async def _read_all(fd: int) -> bytes:
    """Read a pipe to its end and close it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        return await reader.read()
    finally:
        transport.close()
