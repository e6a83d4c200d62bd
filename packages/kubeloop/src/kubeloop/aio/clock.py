"""Wall time, replaceable in tests."""

from __future__ import annotations

import datetime as dt
from typing import Protocol


class Clock(Protocol):
    """A wall clock. For durations use the running loop's `time()`, never this."""

    def now(self) -> dt.datetime:
        """Return the present as an aware UTC time."""


class SystemClock:
    """The machine's own wall clock."""

    def now(self) -> dt.datetime:
        """Return the present as an aware UTC time."""
        return dt.datetime.now(dt.UTC)
