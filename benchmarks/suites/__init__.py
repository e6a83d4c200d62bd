"""What is measured. Each suite is a module with `run(settings) -> list[Figure]`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.processes import Cores
    from benchmarks.report import Figure

# In the order in which they run.
SUITES = (
    "wire",
    "watch",
    "listing",
    "memory",
    "handlers",
    "imports",
    "devcluster",
    "rest",
    "resolver",
    "operator",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure, and where."""

    quick: bool
    cores: Cores

    @property
    def rounds(self) -> int:
        """How often each variant runs."""
        return 1 if self.quick else 3


def load(name: str) -> Callable[[Settings], list[Figure]]:
    """Import a suite; only those that run are imported."""
    module = importlib.import_module(f"benchmarks.suites.{name}")
    return cast("Callable[[Settings], list[Figure]]", module.run)
