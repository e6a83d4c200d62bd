"""What a run on the real cluster measured, as a page to read."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GOALS = "goal: p50 ≤ 30 ms, p99 ≤ 100 ms"


@dataclass(frozen=True, slots=True)
class WakeUp:
    """One request to a sleeping Service: seconds from the request until each stage, by one clock."""

    created: float
    scheduled: float
    started: float
    """When the API said that the container runs."""
    listening: float
    answered: float
    ready: float
    """When the API said that the kubelet found the pod ready."""

    @property
    def release(self) -> float:
        """From the app's listening to the answer: what Elasti adds."""
        return self.answered - self.listening


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


@dataclass(slots=True)
class Report:
    """Collects while tests run."""

    notes: list[tuple[str, str]] = field(default_factory=list)
    wake_ups: list[WakeUp] = field(default_factory=list)

    def note(self, what: str, value: str) -> None:
        self.notes.append((what, value))

    def text(self) -> str:
        lines = ["# A real cluster: what this run measured", ""]
        lines += ["| what | how long |", "|---|---|", *(f"| {a} | {b} |" for a, b in self.notes)]
        if self.wake_ups:
            lines += ["", *self._wake_ups()]
        return "\n".join(lines) + "\n"

    def _wake_ups(self) -> list[str]:
        stages = ("created", "scheduled", "started", "listening", "answered", "ready")
        releases = [wake_up.release for wake_up in self.wake_ups]
        lines = [
            "## One request wakes a sleeping Deployment",
            "",
            "Seconds after the request, which a process on node-1 sends to the ClusterIP. `started` and",
            "`ready` are when the API told; `release` is from `listening` to `answered`, in milliseconds.",
            "",
            f"| | {' | '.join(stages)} | release |",
            "|---" * (len(stages) + 2) + "|",
        ]
        for number, wake_up in enumerate(self.wake_ups, start=1):
            cells = " | ".join(f"{getattr(wake_up, stage):.2f}" for stage in stages)
            lines.append(f"| {number} | {cells} | {wake_up.release * 1000:.0f} |")
        middle, most = statistics.median(releases) * 1000, percentile(releases, 0.99) * 1000
        summary = f"Release: p50 {middle:.0f} ms, p99 {most:.0f} ms of {len(releases)} ({GOALS})."
        return [*lines, "", summary]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text())
