"""A bound on the silence of an open watch, and a way for others to end it.

A server closes every watch after its timeout at the latest. A watch that is silent for longer is
dead, whatever TCP believes: nothing else would ever tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from kubeloop.informer.interruption import Interruptible

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType


class SilentWatch(Exception):
    """Nothing came for longer than the server could have been silent."""


class StreamGuard(Interruptible):
    """An `async with` block around the reading of one stream.

    Silence longer than `silence` seconds interrupts it with `SilentWatch`. Say `heard()` after each
    read.
    """

    def __init__(self, *, silence: float) -> None:
        super().__init__()
        self._silence = silence
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()

    def heard(self) -> None:
        """Note that the peer is alive, or that we did not listen until now."""
        self._heard_at = self._loop.time()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
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
        await super().__aexit__(kind, error, trace)

    def _check_silence(self) -> None:
        due = self._heard_at + self._silence
        if self._loop.time() >= due:
            self.interrupt(SilentWatch(f"no byte in {self._silence:g} s"))
        else:
            self._timer = self._loop.call_at(due, self._check_silence)
