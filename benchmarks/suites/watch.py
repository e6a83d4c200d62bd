"""Watch events of 5 kB into a store and one handler, against the official client's informer."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.processes import RunFailed, python_with, run_measured, serving
from benchmarks.report import Figure, Goal, at_least, times_at_most
from benchmarks.rounds import Sample, alternate, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.suites import Settings

NAMES = {
    "slim": "slim Structs",
    "lazy-dict": "a dictionary to the handler",
    "lazy": "lazy objects",
}
_GOALS: dict[tuple[str, bool], Goal] = {
    ("slim", False): at_least(40_000),
    ("slim", True): at_least(30_000),
    ("lazy-dict", False): at_least(20_000),
    ("lazy-dict", True): at_least(15_000),
}


def run(settings: Settings) -> list[Figure]:
    """Measure plain and TLS, then both beside the official client on a shorter stream."""
    plain = _rates(settings, events=10_000 if settings.quick else 50_000, tls=False)
    tls = _rates(settings, events=10_000 if settings.quick else 50_000, tls=True)
    return [*_figures(plain, tls=False), *_figures(tls, tls=True), *_versus_official(settings)]


def _figures(samples: dict[str, list[Sample]], *, tls: bool) -> list[Figure]:
    return [
        Figure(
            name=f"watch: {NAMES[name]}, {'TLS' if tls else 'plain'}",
            samples=values(samples[name], "rate"),
            unit="events/s",
            goal=_GOALS.get((name, tls)),
            note=f"{statistics.median(values(samples[name], 'us')):.1f} us CPU an event",
        )
        for name in NAMES
    ]


def _rates(settings: Settings, *, events: int, tls: bool) -> dict[str, list[Sample]]:
    arguments = ["--events", str(events), *(["--tls"] if tls else [])]
    with serving("benchmarks.producer", *arguments, core=settings.cores.serving) as server:
        variants = {name: _kubeloop(settings, server, name) for name in NAMES}
        return alternate(variants, rounds=settings.rounds)


def beside_official(settings: Settings, *, rounds: int) -> dict[str, list[Sample]]:
    """Run kubeloop's ways and the official client's informer on one stream, in turn."""
    python = python_with("kubernetes")
    events = 2_000 if settings.quick else 5_000
    with serving(
        "benchmarks.producer", "--events", str(events), core=settings.cores.serving
    ) as server:
        variants: dict[str, Callable[[], Sample]] = {
            name: _kubeloop(settings, server, name) for name in ("slim", "lazy-dict")
        }
        variants["official"] = functools.partial(
            _checked,
            server,
            "benchmarks.runners.official",
            core=settings.cores.measured,
            python=python,
        )
        return alternate(variants, rounds=rounds)


def _versus_official(settings: Settings) -> list[Figure]:
    samples = beside_official(settings, rounds=settings.rounds)
    return [
        Figure(
            name=f"watch: {NAMES[name]}, {title}, beside the official client",
            samples=values(samples[name], key),
            unit=unit,
            reference=statistics.median(values(samples["official"], key)),
            # The stream is short, because the official client is slow: its CPU time is the goal,
            # its rate is for information.
            goal=times_at_most(1 / 25) if key == "us" else None,
            note="reference: kubernetes SharedInformer",
        )
        for name in ("slim", "lazy-dict")
        for title, key, unit in (("rate", "rate", "events/s"), ("CPU", "us", "us an event"))
    ]


def _kubeloop(settings: Settings, server: dict[str, Any], variant: str) -> Callable[[], Sample]:
    return functools.partial(
        _checked,
        server,
        "benchmarks.runners.informer",
        "--variant",
        variant,
        core=settings.cores.measured,
    )


def _checked(server: dict[str, Any], module: str, *arguments: str, **options: Any) -> Sample:
    """Run, and refuse a sample whose store is not what the stream makes."""
    changes = server["changes"]
    sample = run_measured(
        module,
        "--url",
        server["url"],
        "--ca",
        server["ca"],
        "--changes",
        str(changes),
        *arguments,
        **options,
    )
    if sample["live"] != server["live"]:
        raise RunFailed(f"{module}: {sample['live']} objects in the store, not {server['live']}")
    return sample | {"rate": changes / sample["wall"], "us": sample["cpu"] / changes * 1e6}
