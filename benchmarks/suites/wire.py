"""Watch events off a socket and decoded, with nothing behind: what the transport alone costs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.processes import run_measured, serving
from benchmarks.report import Figure, at_most
from benchmarks.rounds import alternate, values

if TYPE_CHECKING:
    from benchmarks.suites import Settings

# Processor time per event that leaves room for the rest of an informer.
_CEILINGS = {"slim": 15.0, "lazy": 20.0, "lazy-dict": 35.0, "dict": 40.0}


def run(settings: Settings) -> list[Figure]:
    """Measure every representation, plain and over TLS."""
    figures: list[Figure] = []
    for tls in (False, True):
        figures += _measure(settings, tls=tls)
    return figures


def _measure(settings: Settings, *, tls: bool) -> list[Figure]:
    events = 5_000 if settings.quick else 40_000
    arguments = ["--events", str(events), *(["--tls"] if tls else [])]
    with serving("benchmarks.producer", *arguments, core=settings.cores.serving) as server:
        common = ("--url", server["url"], "--ca", server["ca"], "--events", str(events))
        variants = {
            name: functools.partial(
                run_measured,
                "benchmarks.runners.wire",
                *common,
                "--variant",
                name,
                core=settings.cores.measured,
            )
            for name in _CEILINGS
        }
        samples = alternate(variants, rounds=settings.rounds)
    return [
        Figure(
            name=f"wire: {name}, {'TLS' if tls else 'plain'}, CPU an event",
            samples=values(samples[name], "us"),
            unit="us",
            goal=None if tls else at_most(ceiling),
            note=f"{max(values(samples[name], 'rate')):,.0f} events/s at best",
        )
        for name, ceiling in _CEILINGS.items()
    ]
