"""The resolver: forwarding, holding, releasing, under attack, and the whole program with many Services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import (
    resolver_attacks,
    resolver_gates,
    resolver_held,
    resolver_hotpath,
    resolver_isolation,
    resolver_ports,
    resolver_release,
)

if TYPE_CHECKING:
    from benchmarks.report import Figure
    from benchmarks.suites import Settings


def run(settings: Settings) -> list[Figure]:
    """Measure all of it."""
    parts = (
        resolver_hotpath,
        resolver_held,
        resolver_release,
        resolver_isolation,
        resolver_ports,
        resolver_attacks,
        resolver_gates,
    )
    return [figure for part in parts for figure in part.run(settings)]
