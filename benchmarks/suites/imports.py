"""What kubeloop adds to a program that has asyncio, TLS and msgspec anyway."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

from benchmarks.processes import run_measured
from benchmarks.report import Figure, Goal, at_most
from benchmarks.rounds import Sample, alternate, values

if TYPE_CHECKING:
    from benchmarks.suites import Settings


def run(settings: Settings) -> list[Figure]:
    """Compare fresh processes; the first round fills the file cache and is thrown away."""
    variants = {
        name: functools.partial(
            run_measured,
            "benchmarks.runners.imports",
            *("--variant", name),
            core=settings.cores.measured,
        )
        for name in ("libraries", "import", "use")
    }
    alternate(variants, rounds=1)
    samples = alternate(variants, rounds=3 if settings.quick else 9)
    return [
        _over(samples, "import", "ms", title="import kubeloop", unit="ms", goal=at_most(30)),
        _over(samples, "import", "mib", title="import kubeloop", unit="MiB", goal=at_most(5)),
        _over(samples, "use", "ms", title="import and first informer", unit="ms"),
        _over(samples, "use", "mib", title="import and first informer", unit="MiB"),
    ]


def _over(
    samples: dict[str, list[Sample]],
    variant: str,
    key: str,
    *,
    title: str,
    unit: str,
    goal: Goal | None = None,
) -> Figure:
    base = statistics.median(values(samples["libraries"], key))
    return Figure(
        name=f"{title}, over msgspec ({unit})",
        samples=[value - base for value in values(samples[variant], key)],
        unit=unit,
        goal=goal,
        note=f"msgspec alone: {base:.3g} {unit}",
    )
