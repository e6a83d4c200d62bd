"""What a bad handler costs the good one beside it, with 100 000 events to deliver."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

from benchmarks.processes import run_measured
from benchmarks.report import Figure, at_most, times_at_most
from benchmarks.rounds import Sample, alternate, values

if TYPE_CHECKING:
    from benchmarks.suites import Settings

_OTHERS = {"slow": "takes 1 ms", "raising": "raises", "blocking": "blocks 1 ms in a thread"}


def run(settings: Settings) -> list[Figure]:
    """Measure the fast handler alone, then beside each of the others."""
    events = 10_000 if settings.quick else 100_000
    variants = {
        name: functools.partial(
            run_measured,
            "benchmarks.runners.handlers",
            *("--variant", name, "--events", str(events)),
            core=settings.cores.measured,
        )
        for name in ("alone", *_OTHERS)
    }
    samples = alternate(variants, rounds=settings.rounds)
    alone = statistics.median(values(samples["alone"], "cpu"))
    return [
        figure
        for name, title in _OTHERS.items()
        for figure in _figures(title, samples[name], alone, events)
    ]


def _figures(title: str, samples: list[Sample], alone: float, events: int) -> list[Figure]:
    waiting = statistics.median(values(samples, "pending"))
    return [
        Figure(
            name=f"fast handler beside one that {title}, CPU an event",
            samples=[value / events * 1e6 for value in values(samples, "cpu")],
            unit="us",
            reference=alone / events * 1e6,
            goal=times_at_most(2),
            note=f"reference: alone; {waiting:,.0f} wait for the other, {_each(samples):.0f} B each",
        ),
        Figure(
            name=f"fast handler beside one that {title}, longest loop block",
            samples=[value * 1000 for value in values(samples, "block")],
            unit="ms",
            goal=at_most(50),
        ),
        Figure(
            name=f"removing a handler that {title}, with all that waits for it",
            samples=[value * 1000 for value in values(samples, "removed")],
            unit="ms",
            goal=at_most(1100),
        ),
    ]


def _each(samples: list[Sample]) -> float:
    return statistics.median(
        sample["grown"] / sample["pending"] if sample["pending"] else 0.0 for sample in samples
    )
