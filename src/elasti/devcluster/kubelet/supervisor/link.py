"""The socket to one supervisor, and what is heard through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from elasti.devcluster.kubelet.supervisor.spec import Isolation

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.supervisor.spec import ProcessSpec

_KILLED = 137
_ROOT = Path(__file__).resolve().parents[4]
_MODULE = "elasti.devcluster.kubelet.supervisor.main"
_MESSAGE = 1024


class StartError(Exception):
    """A program could not be started; the text says why."""


class Listener(Protocol):
    """Hears what becomes of a program."""

    def forked(self, pid: int) -> None:
        """It has a process, which may not run the program yet."""

    def ended(self, code: int) -> None:
        """It has ended."""


class Link:
    """The socket to one supervisor."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process = process
        self.isolation = Isolation.NONE
        self.is_lost = False
        self._control = control
        self._known: dict[str, Listener] = {}
        loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[None] = loop.create_future()
        loop.add_reader(control, self._readable)

    @classmethod
    async def open(cls, most: Isolation) -> Link:
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

    async def start(self, name: str, spec: ProcessSpec, fds: list[int], listener: Listener) -> None:
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
        """Send a few words; lost where the supervisor is gone, and its processes with it."""
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
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._control, _Once(ready))
        try:
            await ready
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


class _Once:
    """A callback that resolves a future, however often it is called."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def __call__(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child, cancelled or not: it is on its way."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(process.pid)
    loop.add_reader(pidfd, _Once(done))
    try:
        await done
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        process.wait()
