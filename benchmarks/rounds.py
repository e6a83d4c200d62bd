"""Runs of several variants in alternating order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Sample = dict[str, Any]


def alternate(
    variants: Mapping[str, Callable[[], Sample]], *, rounds: int
) -> dict[str, list[Sample]]:
    """Run every variant once a round, the order reversed every second round."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    for number in range(rounds):
        names = list(variants)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            samples[name].append(variants[name]())
    return dict(samples)


def values(samples: list[Sample], key: str) -> list[float]:
    """Take one figure out of each sample."""
    return [float(sample[key]) for sample in samples]
