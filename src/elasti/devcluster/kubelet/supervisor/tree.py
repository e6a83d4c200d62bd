"""Process trees through /proc: who descends from whom, and how to end them all."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def children(pid: int) -> list[int]:
    """Return the processes that a process is the parent of; none where it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield every process below one, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def kill_descendants() -> None:
    """Kill everything below this process and return when it is reaped.

    Orphans must come to this process (`adopt_orphans`): then none escapes by forking, since each
    round kills what the last one left.
    """
    while True:
        for pid in list(descendants(os.getpid())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
