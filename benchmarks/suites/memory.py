"""Memory of one stored pod of 6 kB, by representation, beside client-go's typed objects."""

from __future__ import annotations

import functools
import json
import subprocess
from typing import TYPE_CHECKING

from benchmarks.clientgo import clientgo_binary
from benchmarks.processes import run_measured, serving
from benchmarks.report import Figure, Goal, times_at_most
from benchmarks.rounds import alternate, values

if TYPE_CHECKING:
    from benchmarks.suites import Settings

_VARIANTS: dict[str, tuple[str, Goal | None]] = {
    "dict": ("dictionaries", None),
    "full": ("full Structs", None),
    "lazy": ("lazy objects", times_at_most(1.0)),
    "slim": ("slim Structs", times_at_most(0.25)),
}


def run(settings: Settings) -> list[Figure]:
    """Measure each representation in a process of its own; all are without managedFields."""
    count = 2_000 if settings.quick else 10_000
    variants = {
        name: functools.partial(
            run_measured,
            "benchmarks.runners.memory",
            *("--count", str(count), "--variant", name),
            core=settings.cores.measured,
        )
        for name in _VARIANTS
    }
    samples = alternate(variants, rounds=1)
    reference = _clientgo(settings, count)
    return [
        Figure(
            name=f"memory of a stored pod: {title}",
            samples=[value / 1000 for value in values(samples[name], "per_pod")],
            unit="kB",
            reference=reference,
            goal=goal,
            note="reference: client-go's heap, managedFields dropped" if reference else "",
        )
        for name, (title, goal) in _VARIANTS.items()
    ]


def _clientgo(settings: Settings, count: int) -> float | None:
    binary = clientgo_binary()
    if binary is None:
        return None
    arguments = ("--listed", str(count))
    with serving("benchmarks.producer", *arguments, core=settings.cores.serving) as server:
        done = subprocess.run(
            [binary, "-url", server["url"]], capture_output=True, check=True, timeout=180
        )
    return float(json.loads(done.stdout)["per_pod"]) / 1000
