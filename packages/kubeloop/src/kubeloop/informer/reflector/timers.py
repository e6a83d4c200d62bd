"""The reflector's timers: the silence of a watch, the resync, the window for immediate retries.

- `StreamGuard` bounds the silence of an open watch. A server closes every watch after its timeout
  at the latest; one that is silent for longer is dead, whatever TCP believes. (The connection has
  an idle timeout of its own; this one holds for any `ListWatch`.)
- `BookmarkPatience` shortens that where bookmarks come: a server that sends one a minute is dead, or
  something on the way to it is, after three minutes without any.
- `ResyncTimer` makes handlers see every object again. It runs only while a watch does, from the
  end of a list to the next one: a list repeats everything anyway.
- `BurstLimit` bounds how often a watch is reopened without a pause.
- `RetryWindow` says for how long a failing request may be repeated at once (client-go's
  RetryWithDeadline).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Self

from kubeloop.aio.tasks import Interruptible

_log = logging.getLogger(__name__)


class SilentWatch(Exception):
    """Nothing came for longer than the server could have been silent."""


class StreamGuard(Interruptible):
    """An `async with` block around the reading of one stream.

    Silence longer than `silence` seconds interrupts it with `SilentWatch`. Say `heard()` after each
    read.
    """

    def __init__(self, *, silence: float) -> None:
        super().__init__()
        self.silence = silence
        self._timer: asyncio.TimerHandle | None = None
        #: The loop's time at which the peer was heard last.
        self.heard_at = self._loop.time()

    def heard(self) -> None:
        """Note that the peer is alive, or that we did not listen until now."""
        self.heard_at = self._loop.time()

    @property
    def silent_for(self) -> float:
        """Seconds since the peer was heard last."""
        return self._loop.time() - self.heard_at

    def limit(self, silence: float) -> None:
        """Change how long the peer may be silent."""
        if silence != self.silence:
            self.silence = silence
            self._check_silence()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._check_silence()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().__aexit__(*exc)

    def _check_silence(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self.heard_at + self.silence
        if self._loop.time() >= due:
            self.interrupt(SilentWatch(f"no byte in {self.silence:g} s"))
        else:
            self._timer = self._loop.call_at(due, self._check_silence)


class BookmarkPatience:
    """How long a watch may be silent, by what the server has shown of its bookmarks.

    A server need not send any: one that never did is given the watch's whole life. The bookmark
    that ends a streamed list proves less than those that come by the minute: after it, silence ends
    one watch, and if the next one is as silent, this server sends no others.
    """

    __slots__ = ("_expected", "_limit", "_periodic")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._expected = self._periodic = False

    def seen(self, *, periodic: bool) -> None:
        """A bookmark came."""
        self._expected = True
        self._periodic = self._periodic or periodic

    def exhausted(self) -> None:
        """A watch was ended for its silence."""
        self._expected = self._periodic

    def silence(self, longest: float) -> float:
        """Return how long a watch may be silent that ends after `longest` at the latest."""
        return min(longest, self._limit) if self._expected else longest

    def is_overdue(self, silent_for: float) -> bool:
        """Whether at least one bookmark is missing, whatever the server's jitter."""
        return self._expected and silent_for > self._limit * 2 / 3


@dataclasses.dataclass(eq=False, kw_only=True)
class ResyncTimer:
    """Calls `resync` every `period` seconds where `should_resync` says so; period 0 is never.

    An exception of either stops the timer and goes to `on_error`.
    """

    period: Callable[[], float]
    should_resync: Callable[[], bool]
    resync: Callable[[], None]
    on_error: Callable[[Exception], None]

    def __post_init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    @property
    def armed(self) -> bool:
        """Whether the timer runs."""
        return self._timer is not None

    def start(self) -> None:
        """Start counting, unless already started."""
        if self._timer is None and (period := self.period()) > 0:
            self._timer = asyncio.get_running_loop().call_later(period, self._fire)

    def stop(self) -> None:
        """Stop counting; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        try:
            if self.should_resync():
                _log.debug("resync")
                self.resync()
        except Exception as error:  # noqa: BLE001 -- handed on; a timer has no caller
            self.on_error(error)
        else:
            self.start()


class BurstLimit:
    """Allows `burst` at once, and one more for each second that passes."""

    __slots__ = ("_at", "_burst", "_left")

    def __init__(self, burst: float) -> None:
        self._burst = self._left = burst
        self._at = 0.0

    def allowed(self) -> bool:
        """Take one, if there is one."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._burst, self._left + now - self._at)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


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
