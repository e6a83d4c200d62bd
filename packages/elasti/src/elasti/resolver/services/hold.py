"""Held connections: one queue for each port of a Service, with one limit for all its ports.

The queue is first come, first served. A connection that a pod refused goes back to the head of the queue and
keeps its deadline. A connection can leave from any position at once. One timer watches the oldest connection:
in order of arrival, no other can be due before it.

Release is paced: a pod that has just begun to serve gets a batch of connections, a few milliseconds later twice
as many, and so on. The pause is too short to notice, but long enough that a thousand connections do not hit a
backlog of a hundred. Each iteration of the loop notifies only a few connections, so that a queue of thousands
does not slow down other Services.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from elasti.logger import get_logger
from elasti.resolver.proxy.upstream.interface import HeldConnection, Refusal, UpstreamAddress

BATCH = 64
PAUSE = 0.004
# Notified in one iteration of the loop, which takes about half a millisecond.
SLICE = 32
_RESOLUTION = 0.001

T = TypeVar("T")

_log = get_logger(__name__)


class HoldCapacity:
    """How many connections one Service may hold, on all its ports together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


@dataclasses.dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Hold:
    """The queue of one port.

    `pods` returns the pods that serve now; `changed` is called when the queue becomes empty or stops being
    empty.
    """

    capacity: HoldCapacity
    timeout: float
    pods: Callable[[], list[UpstreamAddress]]
    changed: Callable[[], None]
    # Each waiter, and when it began to wait.
    _waiting: OrderedDict[HeldConnection, float] = dataclasses.field(
        default_factory=OrderedDict, init=False
    )
    _deadline: asyncio.TimerHandle | None = dataclasses.field(default=None, init=False)
    _release: asyncio.TimerHandle | asyncio.Handle | None = dataclasses.field(
        default=None, init=False
    )
    _batch: int = dataclasses.field(default=BATCH, init=False)
    _left_of_batch: int = dataclasses.field(default=BATCH, init=False)

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Hold {len(self._waiting)} waiting>"

    @property
    def first(self) -> HeldConnection | None:
        """The connection at the head of the queue."""
        return next(iter(self._waiting), None)

    def wait(self, waiter: HeldConnection, *, first: bool) -> Refusal | None:
        """Queue a connection; returns the refusal if the queue is full."""
        capacity = self.capacity
        # One that comes back already had its place.
        if capacity.used >= capacity.limit and not first:
            return Refusal.OVERFLOW
        capacity.used += 1
        since = waiter.held_since
        self._waiting[waiter] = asyncio.get_running_loop().time() if since is None else since
        if first:
            self._waiting.move_to_end(waiter, last=False)
        if first or len(self._waiting) == 1:
            self._set_deadline()
        if len(self._waiting) == 1:
            self.changed()
        return None

    def leave(self, waiter: HeldConnection) -> None:
        """Take a connection out. Safe to repeat."""
        if self._waiting.pop(waiter, None) is not None:
            self._left(1)

    def release(self) -> None:
        """Send the queue to the pods that serve, in batches. Safe to call at any time."""
        if self._release is None and self._waiting:
            self._batch = self._left_of_batch = BATCH
            self._release = asyncio.get_running_loop().call_soon(self._release_some)

    async def aclose(self) -> None:
        """Refuse all held connections and stop the timers. Add none afterwards."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        while self._waiting:
            for waiter in list(itertools.islice(self._waiting, SLICE)):
                self._give_up(waiter, Refusal.GONE)
            await asyncio.sleep(0)

    def set_timeout(self, timeout: float) -> None:
        """Change how long connections may wait, including those that already wait."""
        self.timeout = timeout
        self._set_deadline()

    def _release_some(self) -> None:
        self._release = None
        admitted = 0
        # Read each time: an admitted connection may find that its pod is gone.
        while self._left_of_batch and admitted < SLICE and self._waiting and (pods := self.pods()):
            self._left_of_batch -= 1
            admitted += len(pods)
            for pod in pods:
                self._admit_first(pod)
        if not self._waiting or not self.pods():
            return
        loop = asyncio.get_running_loop()
        if self._left_of_batch:
            self._release = loop.call_soon(self._release_some)
        else:
            self._batch *= 2
            self._left_of_batch = self._batch
            self._release = loop.call_later(PAUSE, self._release_some)

    def _admit_first(self, pod: UpstreamAddress) -> None:
        if self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            self._left(1)
            self._notify(waiter.admit, pod)

    def _left(self, count: int) -> None:
        self.capacity.used -= count
        if count and not self._waiting:
            self._set_deadline()
            self.changed()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._waiting:
            since = next(iter(self._waiting.values()))
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_at(since + self.timeout, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        # A timer may fire early by the clock's resolution, and would then spin.
        due = asyncio.get_running_loop().time() + _RESOLUTION
        expired = []
        for waiter, since in itertools.islice(self._waiting.items(), SLICE):
            if since + self.timeout > due:
                break
            expired.append(waiter)
        for waiter in expired:
            self._give_up(waiter, Refusal.TIMEOUT)
        # If more are due, the next iteration handles them.
        self._set_deadline()

    def _give_up(self, waiter: HeldConnection, refusal: Refusal) -> None:
        # An earlier notification may have made this one leave.
        if self._waiting.pop(waiter, None) is not None:
            self._left(1)
            self._notify(waiter.give_up, refusal)

    def _notify(self, call: Callable[[T], None], what: T) -> None:
        try:
            call(what)
        except Exception:  # noqa: BLE001 -- logged; one connection must not stop the queue behind it
            _log.exception("held connection failed")
