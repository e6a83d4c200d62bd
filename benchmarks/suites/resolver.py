"""The resolver's data path: forwarding, holding, releasing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import resolver_held, resolver_hotpath

if TYPE_CHECKING:
    from benchmarks.report import Figure
    from benchmarks.suites import Settings


def run(settings: Settings) -> list[Figure]:
    """Measure both."""
    return resolver_hotpath.run(settings) + resolver_held.run(settings)
