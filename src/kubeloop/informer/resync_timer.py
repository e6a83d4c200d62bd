"""The timer that makes handlers see every object again, now and then.

It runs only while a watch phase does, from the end of a list to the next one: a list repeats
everything anyway.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class ResyncTimer:
    """Calls `resync` every `period` seconds where `should_resync` says so; period 0 is never.

    An exception of either stops the timer and goes to `on_error`.
    """

    def __init__(
        self,
        *,
        period: Callable[[], float],
        should_resync: Callable[[], bool],
        resync: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._period = period
        self._should_resync = should_resync
        self._resync = resync
        self._on_error = on_error
        self._timer: asyncio.TimerHandle | None = None

    @property
    def armed(self) -> bool:
        """Whether the timer runs."""
        return self._timer is not None

    def start(self) -> None:
        """Start counting, unless already started."""
        if self._timer is None and (period := self._period()) > 0:
            self._timer = asyncio.get_running_loop().call_later(period, self._fire)

    def stop(self) -> None:
        """Stop counting; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        try:
            if self._should_resync():
                _log.debug("resync")
                self._resync()
        except Exception as error:  # noqa: BLE001 -- handed on; a timer has no caller
            self._on_error(error)
        else:
            self.start()
