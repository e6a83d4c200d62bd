"""One run of a thing for all who want it at the same time.

The run is a task of its own, so that cancelling one caller does not disturb the others. It still
has owners: the callers. When the last of them is cancelled the run is cancelled too, and that
caller waits until it is over, so that no process or task outlives the interest in it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class _Flight(Generic[T]):
    """A run and how many wait for it; abandoned once nobody does."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0
        self.abandoned = False


class SingleFlight(Generic[T]):
    """Shares a run among concurrent callers; results are not kept after it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._flight: _Flight[T] | None = None

    async def run(self) -> T:
        """Join the run under way or start one; return or raise what it does."""
        flight = await self._board()
        flight.waiters += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                await self._abandon(flight)
        return flight.task.result()

    async def _board(self) -> _Flight[T]:
        # An abandoned run is on its way out and must not be joined, nor overlapped by a new one.
        while (flight := self._flight) is not None and flight.abandoned:
            await asyncio.wait({flight.task})
        if flight is None:
            flight = self._flight = _Flight(asyncio.create_task(self._work()))
            flight.task.add_done_callback(self._land)
        return flight

    async def _abandon(self, flight: _Flight[T]) -> None:
        flight.abandoned = True
        flight.task.cancel()
        await asyncio.wait({flight.task})

    def _land(self, task: asyncio.Task[T]) -> None:
        self._flight = None
        if not task.cancelled():
            task.exception()  # marks it as seen: an abandoned run's failure interests nobody
