"""A block of code that others may end, with a reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Interruptible:
    """An `async with` block; `interrupt(reason)` makes it raise `reason`, wherever it waits.

    Built on asyncio's own timeout, so that a cancellation from outside is never mistaken for an
    interruption, nor the other way round. Enter it once, in the task that is to be interrupted.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._reason: BaseException | None = None
        self._inside = False

    def interrupt(self, reason: BaseException) -> None:
        """End the block; the first reason counts. Does nothing outside the block."""
        if self._inside and self._reason is None:
            self._reason = reason
            self._limit.reschedule(self._loop.time())

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._inside = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = False
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._reason is None:
                raise
            raise self._reason from None
