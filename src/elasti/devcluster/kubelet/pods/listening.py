"""Finds programs that listen on all addresses, where they must use their pod's own.

Looks into /proc a few times after a start, then never again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.supervisor import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LOOKS = (0.3, 0.7, 2.0, 7.0)
"""Seconds between looks: programs take their time to listen."""
_LISTENING = "0A"
_ANY = ("00000000", "0" * 32)


async def find_wildcard(pid: int) -> int | None:
    """Return the port that a process tree listens on everywhere; None where it does not."""
    for pause in _LOOKS:
        await asyncio.sleep(pause)
        port = await asyncio.to_thread(look, pid)
        if port is not None:
            return port
    return None


def look(pid: int) -> int | None:
    """Look once."""
    found = dict(_wildcards(pid))
    if not found:
        return None
    for inode in sockets((pid, *tree.descendants(pid))):
        if inode in found:
            return found[inode]
    return None


def _wildcards(pid: int) -> Iterator[tuple[str, int]]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/net/{name}").open() as table:
            yield from wildcards(table)


def wildcards(table: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield inode and port of every socket of a kernel's table that listens on all addresses.

    The kernel lists those that listen first. The rest is not read: after a burst of traffic it has
    tens of thousands of lines, most of them of connections that are over.
    """
    for line in itertools.islice(table, 1, None):
        fields = line.split()
        if fields[3] != _LISTENING:
            return
        address, _, port = fields[1].partition(":")
        if address in _ANY:
            yield fields[9], int(port, 16)


def sockets(pids: Iterable[int]) -> Iterator[str]:
    """Yield the inodes of the sockets that processes hold."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        yield target[8:-1]
