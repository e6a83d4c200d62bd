"""How soon held connections reach a pod that begins to answer, with the whole program.

    .venv/bin/python -m benchmarks.resolver_release [--quick]

Half of the rounds have a pod that refuses connections until it answers, half one that accepts them
before its readiness probe passes. Times are taken by the clients: to the first byte of an answer.
"""

from __future__ import annotations

import asyncio
import statistics
import sys

from benchmarks.processes import Cores
from benchmarks.report import Figure, Report, at_most
from benchmarks.resolver_whole import Outcome, whole
from benchmarks.suites import Settings

# By how many are held: how many rounds, and within how many milliseconds the last must be served.
_CROWDS = {1: (60, 60.0), 100: (30, 150.0), 1000: (20, 500.0)}
_MEDIAN = 8.0
_INTERVAL = 0.025


def run(settings: Settings) -> list[Figure]:
    """Measure three crowds."""
    return asyncio.run(_measure(settings))


async def _measure(settings: Settings) -> list[Figure]:
    figures: list[Figure] = []
    async with whole(settings.cores) as running:
        await running.round(1)
        for held, (rounds, last) in _CROWDS.items():
            count = 4 if settings.quick else rounds
            # The instant moves against the prober's own beat, so that no phase of it is favoured.
            outcomes = [
                await running.round(
                    held, phase=_INTERVAL * number / count, accepts_early=number % 2 == 1
                )
                for number in range(count)
            ]
            figures += _figures(held, outcomes, last)
    return figures


def _figures(held: int, outcomes: list[Outcome], last: float) -> list[Figure]:
    firsts = [outcome.delays[0] for outcome in outcomes]
    lasts = [outcome.delays[-1] for outcome in outcomes]
    everybody = sorted(delay for outcome in outcomes for delay in outcome.delays)
    spread = ", ".join(f"p{part} {_part(everybody, part):.1f}" for part in (1, 50, 90, 99, 100))
    name = f"resolver as installed: pod answers to the first of {held} held"
    return [
        Figure(f"{name}, p50", firsts, "ms", goal=at_most(_MEDIAN)),
        Figure(f"{name}, p99", [_part(sorted(firsts), 99)], "ms", goal=at_most(60.0)),
        Figure(
            f"resolver as installed: pod answers to the last of {held} held",
            lasts,
            "ms",
            goal=at_most(last),
            note=f"of {len(everybody)} hold times after the answer: {spread} ms",
        ),
    ]


def _part(ordered: list[float], part: int) -> float:
    """Return a percentile of sorted figures."""
    if len(ordered) == 1:
        return ordered[0]
    if part == 100:
        return ordered[-1]
    return statistics.quantiles(ordered, n=100, method="inclusive")[part - 1]


def main() -> None:
    """Run this suite alone."""
    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
