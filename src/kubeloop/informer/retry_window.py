"""For how long a failing request may be repeated at once (client-go's RetryWithDeadline)."""

from __future__ import annotations

import asyncio


class RetryWindow:
    """Allows retries until `duration` seconds have passed since the first failure.

    A pause of `reset_after` seconds between two failures, or a refused retry, begins a new window.
    A duration of 0 allows none.
    """

    __slots__ = ("_duration", "_first", "_last", "_reset_after")

    def __init__(self, duration: float, *, reset_after: float = 60.0) -> None:
        self._duration = duration
        self._reset_after = reset_after
        self._first: float | None = None
        self._last = 0.0

    def failed(self) -> bool:
        """Note a failure; whether to retry at once."""
        if self._duration <= 0:
            return False
        now = asyncio.get_running_loop().time()
        if self._first is None or now - self._last >= self._reset_after:
            self._first = now
        self._last = now
        if now - self._first <= self._duration:
            return True
        self._first = None
        return False
