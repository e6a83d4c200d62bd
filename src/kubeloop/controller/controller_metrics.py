"""What a controller tells about its work."""

from __future__ import annotations

import enum
from typing import Protocol


class Outcome(enum.Enum):
    """How one turn of a worker ended; each value is fit for a metric's label."""

    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    REQUEUE = "requeue"
    ERROR = "error"
    TIMEOUT = "timeout"
    TERMINAL = "terminal"
    LAGGING = "lagging"


class ControllerMetrics(Protocol):
    """Receives the measurements of one controller. Calls must be quick and must not raise."""

    def reconciled(self, outcome: Outcome, seconds: float) -> None:
        """Count a turn by its outcome and observe how long it took."""

    def busy(self, workers: int) -> None:
        """Set how many workers are reconciling."""


class NoControllerMetrics:
    """Measurements nobody wants."""

    def reconciled(self, outcome: Outcome, seconds: float) -> None:
        """Ignore."""

    def busy(self, workers: int) -> None:
        """Ignore."""
