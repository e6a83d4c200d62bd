"""A network namespace for a whole cluster, and the way in.

Private ranges are made local there, so that pods and Services have addresses as anywhere, low ports
included, and nothing outside can collide with them. A listening socket that was made before stays
outside: connections to it are carried to the API server inside.

    outside = listen("127.0.0.1", 7443)
    enter()                                    # this process, before it has threads
    async with relaying(outside, ("10.200.0.254", 6443)): ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from devkube.kubelet.supervisor import linux
from kubeloop.aio.relay import RelayEnd
from kubeloop.aio.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLONE_NEWNET = 0x40000000
LOCAL = "10.200.0.0/15"
_BACKLOG = 512


class NamespaceRefused(Exception):
    """The machine does not let us make a network namespace; the text says what is missing."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; it stays in the namespace that it is made in."""
    return socket.create_server((host, port), backlog=_BACKLOG)


def enter() -> None:
    """Move this process into a network namespace of its own. Raises NamespaceRefused.

    Without privileges it takes a user namespace as well, in which this user is root. The process must
    not have other threads yet: those would stay outside.
    """
    try:
        if os.geteuid() == 0:
            linux.unshare(CLONE_NEWNET)
        else:
            _enter_as_root()
        _make_local()
    except FileNotFoundError as error:
        raise NamespaceRefused("--netns needs the command `ip`; install iproute2") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise NamespaceRefused(
            f"--netns is not possible here ({error}); run as root, allow user namespaces, or leave"
            " --netns out"
        ) from error


def _enter_as_root() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | CLONE_NEWNET)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


def _make_local() -> None:
    for arguments in (
        ("link", "set", "lo", "up"),
        ("route", "add", "local", LOCAL, "dev", "lo"),
    ):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)  # noqa: S603, S607 - constants, found in PATH


@contextlib.asynccontextmanager
async def relaying(outside: socket.socket, inside: tuple[str, int]) -> AsyncIterator[None]:
    """Carry connections from a socket to an address, during a block; the socket is closed then."""
    async with BackgroundTasks() as tasks:
        gateway = _Gateway(tasks, inside)
        server = await asyncio.get_running_loop().create_server(gateway.accept, sock=outside)
        try:
            yield
        finally:
            server.close()
            gateway.close()


class _Gateway:
    def __init__(self, tasks: BackgroundTasks, inside: tuple[str, int]) -> None:
        self._tasks = tasks
        self._inside = inside
        self._open: set[RelayEnd] = set()

    def accept(self) -> RelayEnd:
        end = self._end()
        self._tasks.start(self._join(end), name="connection from outside")
        return end

    def close(self) -> None:
        for end in list(self._open):
            end.abort()

    def _end(self) -> RelayEnd:
        end = RelayEnd(on_lost=lambda: self._open.discard(end))
        self._open.add(end)
        return end

    async def _join(self, end: RelayEnd) -> None:
        loop = asyncio.get_running_loop()
        try:
            # From loopback, since it is this machine's user who calls.
            _, other = await loop.create_connection(
                self._end, *self._inside, local_addr=("127.0.0.1", 0)
            )
        except OSError:
            end.abort()
            return
        end.join(other)
