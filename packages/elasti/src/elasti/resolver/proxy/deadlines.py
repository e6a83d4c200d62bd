"""One timer for all deadlines of a worker.

A connection notes the second in which its present phase began. Once a second the sweeper calls every connection,
a few hundred in one iteration of the loop, and each checks its own deadlines. So a request never sets a timer.
Without connections there is no timer either, and the time stands still: only connections compare it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from elasti.logger import get_logger

PERIOD = 1.0
_PER_TURN = 500

_log = get_logger(__name__)


class HasDeadlines(Protocol):
    """A connection with deadlines."""

    def sweep(self, tick: int) -> None:
        """Act if a deadline has passed. `tick` counts seconds."""


class DeadlineSweeper:
    """Sweeps registered connections. `tick` is the time in whole periods."""

    __slots__ = ("_handle", "_loop", "_members", "_rest", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._members: set[HasDeadlines] = set()
        self._rest: Iterator[HasDeadlines] = iter(())

    def start(self) -> None:
        """Start the timer on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._next()

    def stop(self) -> None:
        """Stop sweeping, also those that are still added."""
        self._loop = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def add(self, member: HasDeadlines) -> None:
        """Sweep a connection from now on."""
        self._members.add(member)
        if self._handle is None:
            self._next()

    def discard(self, member: HasDeadlines) -> None:
        """Forget a connection. Safe to repeat."""
        self._members.discard(member)

    def _next(self) -> None:
        self._handle = None
        if self._members and self._loop is not None:
            self._handle = self._loop.call_later(PERIOD, self._begin)

    def _show(self, member: HasDeadlines, tick: int) -> None:
        try:
            member.sweep(tick)
        except Exception:  # noqa: BLE001 -- logged; one connection must not end all others' deadlines
            _log.exception("deadline check failed", connection=repr(member))
            self._members.discard(member)

    def _begin(self) -> None:
        self.tick += 1
        # A copy: connections come and go while they are swept.
        self._rest = iter(tuple(self._members))
        self._some()

    def _some(self) -> None:
        assert self._loop is not None
        tick, members = self.tick, self._members
        for _ in range(_PER_TURN):
            member = next(self._rest, None)
            if member is None:
                self._next()
                return
            if member in members:
                self._show(member, tick)
        self._handle = self._loop.call_soon(self._some)
