"""What a dev cluster costs: to start, to keep, and under load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.processes import run_measured
from benchmarks.report import Figure, at_least, at_most

if TYPE_CHECKING:
    from benchmarks.suites import Settings


def run(settings: Settings) -> list[Figure]:
    """Start clusters one after the other and put each through everything."""
    objects, writes = (500, 1000) if settings.quick else (5000, 10000)
    watches, watchers = (50, 10) if settings.quick else (500, 100)
    samples = [
        run_measured(
            "benchmarks.runners.devcluster",
            *("--core", str(settings.cores.serving)),
            *("--objects", str(objects), "--writes", str(writes)),
            *("--watches", str(watches), "--watchers", str(watchers)),
            core=settings.cores.measured,
        )
        for _ in range(1 if settings.quick else 2)
    ]
    return [*_standing(samples), *_loaded(samples, objects, writes, watches, watchers)]


def _standing(samples: list[dict[str, Any]]) -> list[Figure]:
    return [
        Figure("dev cluster, start to first answer", _take(samples, "start"), "s", goal=at_most(2)),
        Figure("dev cluster, idle memory", _take(samples, "idle_mib"), "MiB", goal=at_most(120)),
        Figure(
            "dev cluster, idle CPU",
            [value * 100 for value in _take(samples, "idle_cpu")],
            "%",
            goal=at_most(1),
        ),
    ]


def _loaded(
    samples: list[dict[str, Any]], objects: int, writes: int, watches: int, watchers: int
) -> list[Figure]:
    opened = [sample["watches"] for sample in samples]
    written = [sample["writes"] for sample in samples]
    return [
        Figure(
            f"dev cluster, {objects:,} custom objects created",
            _take(samples, "widgets"),
            "s",
            goal=at_most(15 * objects / 5000),
        ),
        Figure(f"dev cluster, {watches} watches opened", _take(opened, "seconds"), "s"),
        Figure("dev cluster, memory of a watch", _take(opened, "kib_each"), "KiB"),
        Figure(
            f"dev cluster, writes with {watchers} watching",
            [writes / value for value in _take(written, "written")],
            "1/s",
            goal=at_least(300),
        ),
        Figure(
            f"dev cluster, events to {watchers} watchers, all in order",
            [writes * watchers / value for value in _take(written, "seen")],
            "1/s",
        ),
    ]


def _take(samples: list[dict[str, Any]], key: str) -> list[float]:
    return [float(sample[key]) for sample in samples]
