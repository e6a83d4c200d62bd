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
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from devkube.kubelet.supervisor.spec import Isolation, ProcessSpec

_KILLED = 137
_ROOT = Path(__file__).resolve().parents[3]
_MODULE = "devkube.kubelet.supervisor.main"
_MESSAGE = 1024


class StartError(Exception):
    """A program could not be started; the text says why."""


class SupervisorConnection:
    """The socket to one supervisor."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process = process
        self.isolation = Isolation.NONE
        self.is_lost = False
        self._control = control
        self._known: dict[str, Process] = {}
        loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[None] = loop.create_future()
        loop.add_reader(control, self._readable)

    @classmethod
    async def open(cls, most: Isolation) -> SupervisorConnection:
        """Start a supervisor."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        code = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {_MODULE} import main; main()"
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 -- returns when forked; our own program
                [sys.executable, "-I", "-S", "-c", code, str(theirs.fileno()), most.value],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                start_new_session=True,
            )
        link = cls(process, ours)
        try:
            await link._hello
        except BaseException:
            await link.close()
            raise
        return link

    async def start(self, name: str, spec: ProcessSpec, fds: list[int], listener: Process) -> None:
        """Ask for a start; `fds` go along. Raises StartError."""
        self._known[name] = listener
        file = os.memfd_create("spec", os.MFD_CLOEXEC)
        try:
            # Of any size, unlike a message: environments may hold whole files.
            with os.fdopen(os.dup(file), "wb") as body:
                body.write(spec.encode())
            os.lseek(file, 0, os.SEEK_SET)
            message = f"start {name}".encode()
            while True:
                try:
                    socket.send_fds(self._control, [message], [file, *fds])
                    return
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    raise StartError(f"the supervisor of this node is gone: {error}") from error
        finally:
            os.close(file)

    def send(self, text: str) -> None:
        """Send a few words. They are lost if the supervisor is gone, and its processes with it."""
        with contextlib.suppress(OSError):
            self._control.send(text.encode())

    async def close(self) -> None:
        """End the supervisor and with it everything; returns when all of it is gone."""
        loop = asyncio.get_running_loop()
        if self._control.fileno() >= 0:
            loop.remove_reader(self._control)
            self._control.close()
        self._lost()
        await _ended(self.process)

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._control, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._control)

    def _readable(self) -> None:
        while True:
            try:
                data = self._control.recv(_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._control)
                self._lost()
                return
            self._hear(*data.decode().split())

    def _hear(self, verb: str, name: str, value: str = "") -> None:
        if verb == "mode":
            self.isolation = Isolation(name)
            self._hello.set_result(None)
            return
        listener = self._known.get(name)
        if listener is None:
            return
        if verb == "forked":
            listener.forked(int(value))
        else:
            del self._known[name]
            listener.ended(int(value))

    def _lost(self) -> None:
        self.is_lost = True
        if not self._hello.done():
            self._hello.set_exception(StartError("the supervisor of this node did not start"))
        known, self._known = self._known, {}
        for listener in known.values():
            listener.ended(_KILLED)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child, cancelled or not: it is on its way."""
    pidfd = os.pidfd_open(process.pid)
    try:
        await _readable(pidfd)
    finally:
        os.close(pidfd)
        process.wait()


class Process:
    """A program that was started; it may have ended."""

    def __init__(self, name: str, link: SupervisorConnection) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        """The first process of its tree, as seen from here."""
        self._name = name
        self._link = link
        self._forked: asyncio.Future[None] = loop.create_future()
        self._exited: asyncio.Future[int] = loop.create_future()

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
        """Note its PID."""
        self.pid = pid
        self._forked.set_result(None)

    def ended(self, code: int) -> None:
        """Note that it ended."""
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
        self._link: SupervisorConnection | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._supervised()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    @property
    def isolation(self) -> Isolation:
        """The isolation that containers get on this machine. Valid inside the block."""
        assert self._link is not None
        return self._link.isolation

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

    async def _supervised(self) -> SupervisorConnection:
        async with self._starting:
            if self._link is None or self._link.is_lost:
                if self._link is not None:
                    await self._link.close()
                self._link = await SupervisorConnection.open(self._most)
            return self._link


async def _read_all(fd: int) -> bytes:
    """Read a pipe to its end and close it.

    Not as a transport: uvloop closes the descriptor of a pipe twice. What another thread opens between the two is closed
    with it, and connections that get the same descriptor then carry each other's bytes.
    """
    os.set_blocking(fd, False)
    received = b""
    try:
        while True:
            await _readable(fd)
            if not (piece := os.read(fd, _MESSAGE)):
                return received
            received += piece
    finally:
        os.close(fd)
