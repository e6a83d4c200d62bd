"""What a run on the real cluster measured, as a page to read."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STAGES = ("created", "scheduled", "started", "listening", "answered", "ready")
WIDTH = 60
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


def summary(measured: Sequence[WakeUp]) -> str:
    """What they came to."""
    releases = [wake_up.release * 1000 for wake_up in measured]
    middle, most = statistics.median(releases), percentile(releases, 0.99)
    return f"release p50 {middle:.0f} ms, p99 {most:.0f} ms of {len(releases)} ({GOALS})."


def middle_of(measured: Sequence[WakeUp]) -> WakeUp:
    """The one whose release is the median."""
    return sorted(measured, key=lambda wake_up: wake_up.release)[len(measured) // 2]


def picture(wake_up: WakeUp) -> list[str]:
    """The stages of one wake-up as bars: each from the stage before it to its own moment."""
    moments = [(stage, getattr(wake_up, stage)) for stage in STAGES if stage != "ready"]
    end = max(at for _, at in moments)
    lines, before = ["```text"], 0.0
    for stage, at in moments:
        first = min(round(before / end * WIDTH), WIDTH - 1)
        width = max(round((at - before) / end * WIDTH), 1)
        bar = " " * first + "█" * width
        lines.append(
            f"{stage:<10} {bar:<{WIDTH + 1}} {at * 1000:5.0f} ms (+{(at - before) * 1000:.0f})"
        )
        before = max(at, before)
    return [*lines, f"ready, says the kubelet: {wake_up.ready * 1000:.0f} ms", "```"]


@dataclass(slots=True)
class Report:
    """Collects while tests run."""

    notes: list[tuple[str, str]] = field(default_factory=list)
    wake_ups: dict[int, list[WakeUp]] = field(default_factory=dict)
    """By how often, in seconds, the kubelet looks whether the app is ready."""

    def note(self, what: str, value: str) -> None:
        self.notes.append((what, value))

    def text(self) -> str:
        lines = ["# A real cluster: what this run measured", ""]
        lines += ["| what | how long |", "|---|---|", *(f"| {a} | {b} |" for a, b in self.notes)]
        if self.wake_ups:
            lines += ["", *self._wake_ups()]
        return "\n".join(lines) + "\n"

    def _wake_ups(self) -> list[str]:
        lines = [
            "## One request wakes a sleeping Deployment",
            "",
            "Seconds after the request, which a process on node-1 sends to the ClusterIP. `started` and",
            "`ready` are when the API told; `release` is from `listening` to `answered`, in milliseconds.",
        ]
        for period, measured in sorted(self.wake_ups.items()):
            lines += ["", f"Readiness period {period} s: {summary(measured)}", ""]
            lines += [f"| | {' | '.join(STAGES)} | release |", "|---" * (len(STAGES) + 2) + "|"]
            for number, wake_up in enumerate(measured, start=1):
                cells = " | ".join(f"{getattr(wake_up, stage):.2f}" for stage in STAGES)
                lines.append(f"| {number} | {cells} | {wake_up.release * 1000:.0f} |")
            lines += ["", *picture(middle_of(measured))]
        return lines

    def write(self, path: Path) -> None:
        """Write the page; what the scenarios wrote there follows."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scenarios = path.read_text() if path.exists() else ""
        path.write_text(f"{self.text()}\n{scenarios}")
