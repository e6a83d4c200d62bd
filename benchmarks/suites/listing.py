"""10 000 pods of 6 kB, from the first request to synced, and what follows under watch load."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.processes import RunFailed, python_with, run_measured, serving
from benchmarks.report import Figure, Goal, at_most, times_at_most
from benchmarks.rounds import Sample, alternate, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.suites import Settings

# Which objects are loaded how: by streaming list, in one body, in pages of 500.
_VARIANTS = (
    ("slim", "stream"),
    ("slim", "whole"),
    ("slim", "pages"),
    ("lazy", "stream"),
    ("lazy", "whole"),
    ("dict", "stream"),
)
_MIB = 1024 * 1024
_Goals = dict[str, Goal | None]


def run(settings: Settings) -> list[Figure]:
    """Measure kubeloop's ways to load, and the official client's one."""
    listed, events = (2_000, 2_000) if settings.quick else (10_000, 10_000)
    common = ["--listed", str(listed), "--events", str(events)]
    core = settings.cores.serving
    with (
        serving("benchmarks.producer", *common, core=core) as server,
        serving("benchmarks.producer", *common, "--page", "500", core=core) as paging,
    ):
        variants: dict[str, Callable[[], Sample]] = {
            f"{variant}, {mode}": _kubeloop(
                settings, paging if mode == "pages" else server, variant, mode
            )
            for variant, mode in _VARIANTS
        }
        samples = alternate(variants, rounds=settings.rounds)
        reference = _official(settings, server)
    return [
        figure
        for variant, mode in _VARIANTS
        for figure in _figures(f"{variant}, {mode}", samples[f"{variant}, {mode}"], reference)
    ]


def _figures(name: str, samples: list[Sample], reference: Sample) -> list[Figure]:
    # A store of dictionaries is shown, not promised: see docs/performance.md.
    promised = not name.startswith("dict")
    rows: tuple[tuple[str, str, str, float, Goal | None], ...] = (
        ("to synced", "list_wall", "s", 1.0, times_at_most(1 / 10)),
        ("peak memory", "list_peak", "MiB", 1 / _MIB, times_at_most(1 / 5) if promised else None),
        ("longest loop block", "list_block", "ms", 1000.0, at_most(100)),
        ("longest GC pause after", "pause", "ms", 1000.0, at_most(10) if promised else None),
    )
    return [
        Figure(
            name=f"list of pods: {name}, {title}",
            samples=[value * scale for value in values(samples, key)],
            unit=unit,
            reference=reference[key] * scale,
            goal=goal,
            note=f"{statistics.median(values(samples, 'list_cpu')):.2f} s CPU"
            if key == "list_wall"
            else "",
        )
        for title, key, unit, scale, goal in rows
    ]


def _official(settings: Settings, server: dict[str, Any]) -> Sample:
    """Run the official client once; it takes its time."""
    python = python_with("kubernetes")
    listed = ("--listed", str(server["listed"]))
    # Its watch is so slow that the changes after the list are left out.
    return run_measured(
        "benchmarks.runners.official",
        *("--url", server["url"], "--changes", str(server["listed"] + 200), *listed),
        core=settings.cores.measured,
        python=python,
    )


def _kubeloop(
    settings: Settings, server: dict[str, Any], variant: str, mode: str
) -> Callable[[], Sample]:
    return functools.partial(_checked, settings, server, variant, mode)


def _checked(settings: Settings, server: dict[str, Any], variant: str, mode: str) -> Sample:
    sample = run_measured(
        "benchmarks.runners.informer",
        *("--url", server["url"], "--changes", str(server["changes"])),
        *("--variant", variant, "--mode", mode),
        core=settings.cores.measured,
    )
    if sample["live"] != server["live"]:
        raise RunFailed(f"{variant}: {sample['live']} objects in the store, not {server['live']}")
    return sample
