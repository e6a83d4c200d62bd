"""A bound on the silence of an open watch, and a way for others to end it.

A server closes every watch after its timeout at the latest. A watch that is silent for longer is
dead, whatever TCP believes: nothing else would ever tell.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class SilentWatch(Exception):
    """Nothing came for longer than the server could have been silent."""


class StreamGuard:
    """An `async with` block around the reading of one stream.

    `interrupt(reason)` makes the block end by raising `reason`, wherever it waits; so does silence
    longer than `silence` seconds, with `SilentWatch`. Say `heard()` after each read.
    """

    __slots__ = ("_heard_at", "_limit", "_loop", "_reason", "_silence", "_timer")

    def __init__(self, *, silence: float) -> None:
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._reason: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()

    def heard(self) -> None:
        """Note that the peer is alive, or that we did not listen until now."""
        self._heard_at = self._loop.time()

    def interrupt(self, reason: Exception) -> None:
        """End the block; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._limit.reschedule(self._loop.time())

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._check_silence()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._reason is None:
                raise
            raise self._reason from None

    def _check_silence(self) -> None:
        due = self._heard_at + self._silence
        if self._loop.time() >= due:
            self.interrupt(SilentWatch(f"no byte in {self._silence:g} s"))
        else:
            self._timer = self._loop.call_at(due, self._check_silence)
