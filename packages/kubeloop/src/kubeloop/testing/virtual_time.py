"""An event loop whose time jumps to the next timer instead of passing.

A test that waits an hour ends at once, and always the same way: time stands still while anything
is ready to run and moves only when every task waits for a timer. Work in executor threads is
waited for in real time, because virtual time must not overtake it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

# Real sockets in a virtual-time test get this long to speak before time may jump over them.
_SOCKET_GRACE = 0.002


class DeadlockError(RuntimeError):
    """Every task waits, no timer is set and nothing outside can wake the loop."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls real descriptors; instead of sleeping, moves the loop's virtual time."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.outside_work:
            return super().select(timeout)
        if self._has_sockets():
            ready = super().select(_SOCKET_GRACE)
            if ready:
                return ready
        if timeout is None:
            if self._has_sockets():
                return super().select(None)
            raise DeadlockError("all tasks wait and no timer is set: nothing can ever happen")
        self.loop.advance(timeout)
        return []

    def _has_sockets(self) -> bool:
        # The loop itself always registers one descriptor, its self-pipe.
        return len(self.get_map()) > 1


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time; `time()` starts at 0.

    Use it as a loop factory (`asyncio.Runner(loop_factory=VirtualTimeLoop)`), or through the
    pytest marker `virtual_time`.
    """

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self._virtual_now = 0.0
        self._outside_work = 0
        super().__init__(selector)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual_now

    def advance(self, seconds: float) -> None:
        """Move time forward; the selector calls it where a real loop would sleep."""
        self._virtual_now += seconds

    @property
    def outside_work(self) -> int:
        """How many executor calls are running in real time."""
        return self._outside_work

    # typeshed's TypeVarTuple signature cannot be restated over a decorated future.
    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run func in a thread; virtual time stands still until it returns."""
        future = super().run_in_executor(executor, func, *args)
        self._outside_work += 1
        future.add_done_callback(self._outside_work_done)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Wait, in real time, for the threads of the default executor to end."""
        self._outside_work += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._outside_work -= 1

    def _outside_work_done(self, _future: asyncio.Future[Any]) -> None:
        self._outside_work -= 1


class VirtualClock:
    """A wall clock that follows a virtual-time loop from a fixed start."""

    def __init__(self, start: dt.datetime | None = None) -> None:
        self._start = start or dt.datetime(2030, 1, 1, tzinfo=dt.UTC)

    def now(self) -> dt.datetime:
        """Return start plus the running loop's time."""
        elapsed = asyncio.get_running_loop().time()
        return self._start + dt.timedelta(seconds=elapsed)
