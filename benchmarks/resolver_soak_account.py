"""The account of a soak: what happened, what was wrong, and whether anything grew."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# How much more memory the last quarter may show than the second, in MiB: the allocator's own noise.
_RSS_GROWTH = 8.0
# Tasks and descriptors follow the load, which is drawn by lot.
_SWAY = 1.5


@dataclass(frozen=True, slots=True)
class Look:
    """What the process had at one moment."""

    rss: float
    tasks: int
    sockets: int


class Account:
    """One for the whole run."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.requests = 0
        self._posts = bytearray()
        self._looks: list[Look] = []

    # What must not happen twice

    def next_post(self) -> int:
        """Return the number of a request that must not be executed twice."""
        self._posts.append(0)
        return len(self._posts) - 1

    def executed(self, path: bytes) -> None:
        """Note that a pod executed a request; those of `next_post` have their number in the path."""
        self.requests += 1
        if path.startswith(b"/post/"):
            number = int(path[6:])
            self._posts[number] += 1
            if self._posts[number] > 1:
                self.wrong.append(f"executed {self._posts[number]} times: POST {number}")

    # What must not grow

    async def look_every(self, seconds: float, end: float) -> None:
        """Look at memory, tasks and sockets until the end."""
        while time.monotonic() < end:
            await asyncio.sleep(seconds)
            self._looks.append(look())

    def judge(self) -> str:
        """Compare the second quarter with the last; returns what was seen."""
        quarter = len(self._looks) // 4
        if not quarter:
            return "too short to judge growth"
        early, late = self._looks[quarter : 2 * quarter], self._looks[-quarter:]
        rss = [statistics.median(x.rss for x in part) for part in (early, late)]
        tasks = [statistics.median(x.tasks for x in part) for part in (early, late)]
        sockets = [statistics.median(x.sockets for x in part) for part in (early, late)]
        told = (
            f"second quarter to last: RSS {rss[0]:.1f} to {rss[1]:.1f} MiB,"
            f" tasks {tasks[0]:.0f} to {tasks[1]:.0f}, sockets {sockets[0]:.0f} to {sockets[1]:.0f}"
        )
        if rss[1] - rss[0] > _RSS_GROWTH:
            self.wrong.append(f"memory grew; {told}")
        if tasks[1] > _SWAY * tasks[0] or sockets[1] > _SWAY * sockets[0]:
            self.wrong.append(f"tasks or sockets grew; {told}")
        return told


def look() -> Look:
    """Look at this process now."""
    return Look(rss(), len(asyncio.all_tasks()), len(sockets()))


def rss() -> float:
    """Return the memory in use, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def sockets() -> set[str]:
    """Return what sockets the process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith("socket:")}


def left_open(before: set[str]) -> set[str]:
    """Return the sockets that are open and were not before."""
    gc.collect()
    return sockets() - before
