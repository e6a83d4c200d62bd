"""What kubeloop adds to a program that has aiohttp and msgspec anyway."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

from benchmarks.processes import run_measured
from benchmarks.report import Figure, at_most
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
        for name in ("libraries", "kubeloop")
    }
    alternate(variants, rounds=1)
    samples = alternate(variants, rounds=3 if settings.quick else 9)
    return [
        _over(samples, "ms", title="CPU time", unit="ms", bound=30),
        _over(samples, "mib", title="memory", unit="MiB", bound=5),
    ]


def _over(
    samples: dict[str, list[Sample]], key: str, *, title: str, unit: str, bound: float
) -> Figure:
    base = statistics.median(values(samples["libraries"], key))
    return Figure(
        name=f"import and first use over aiohttp and msgspec, {title}",
        samples=[value - base for value in values(samples["kubeloop"], key)],
        unit=unit,
        goal=at_most(bound),
        note=f"aiohttp and msgspec alone: {base:.3g} {unit}",
    )
