"""What a process used."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

PAGE = resource.getpagesize()


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def peak() -> int:
    """Return the most memory that this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(slots=True)
class Stopwatch:
    """Wall and processor time since it was made."""

    wall: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)

    def read(self) -> dict[str, float]:
        """Return the seconds since the start."""
        return {
            "wall": time.perf_counter() - self.wall,
            "cpu": time.process_time() - self.cpu,
        }
