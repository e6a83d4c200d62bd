"""Fairness between groups that share a limit: a semaphore and a queue that serve them in turn.

`FairSemaphore` admits a number of holders at once. Waiters are taken by their group (a
namespace, say), one of each group in a round, so that a group with thousands delays no other
group's first. A holder that takes longer than the patience is *late*: it goes on, but its slot
is given to the next. As long as one of a group's holders is late, the group may have only a few
under way, or it would come to hold every slot, one late holder after the other. Late holders
are bounded in all, since each still has a connection.

`FairQueue` hands out jobs of several groups, the next job of the next group, and only so many
of one group at a time: a group whose jobs take long fills only its own share.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from typing import Generic, TypeVar

# More at once would open connections that cost more than they gain: each begins with a TLS handshake.
_AT_ONCE = 32
_MAX_LATE = 48
_PER_LATE_GROUP = 8
_PATIENCE = 0.5
_CROWD = 8


J = TypeVar("J")


@dataclasses.dataclass(slots=True, eq=False)
class _Holder:
    group: Hashable
    late: bool = False
    timer: asyncio.TimerHandle | None = None


@dataclasses.dataclass(eq=False, kw_only=True)
class FairSemaphore:
    """Admits `at_once`, late ones not counted. `slot` is used as an `async with` block."""

    at_once: int = _AT_ONCE
    most_late: int = _MAX_LATE
    per_late_group: int = _PER_LATE_GROUP
    patience: float = _PATIENCE

    def __post_init__(self) -> None:
        self._in_time = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._held: Counter[Hashable] = Counter()
        self._late: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[_Holder]]] = OrderedDict()

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return (
            f"<FairSemaphore {self._in_time} in time, {self._late.total()} late, {waiting} waiting>"
        )

    async def wait_calm(self, longest: float) -> None:
        """Let a crowd go first, for at most that many seconds; late holders do not count."""
        if self._calm.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._calm.wait()

    @contextlib.asynccontextmanager
    async def slot(self, group: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and have it for the time of the block."""
        holder = await self._acquire(group)
        try:
            yield
        finally:
            self._release(holder)

    async def _acquire(self, group: Hashable) -> _Holder:
        if group not in self._waiting and self._may_begin(group):
            return self._begin(group)
        slot: asyncio.Future[_Holder] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(slot)
        try:
            return await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self._release(slot.result())
            else:
                self._give_up(group, slot)
            raise

    def _give_up(self, group: Hashable, slot: asyncio.Future[_Holder]) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None and slot in waiting:
            waiting.remove(slot)
            self._drop_if_empty(group)

    def _may_begin(self, group: Hashable) -> bool:
        if self._in_time >= self.at_once:
            return False
        return not self._late[group] or self._held[group] < self.per_late_group

    def _begin(self, group: Hashable) -> _Holder:
        self._count(1)
        self._held[group] += 1
        holder = _Holder(group)
        self._watch(holder)
        return holder

    def _watch(self, holder: _Holder) -> None:
        loop = asyncio.get_running_loop()
        holder.timer = loop.call_later(self.patience, self._be_late, holder)

    def _be_late(self, holder: _Holder) -> None:
        if self._late.total() >= self.most_late:
            self._watch(holder)
            return
        holder.late, holder.timer = True, None
        self._count(-1)
        self._late[holder.group] += 1
        self._admit()

    def _release(self, holder: _Holder) -> None:
        if holder.timer is not None:
            holder.timer.cancel()
        if holder.late:
            _decrement(self._late, holder.group)
        else:
            self._count(-1)
        _decrement(self._held, holder.group)
        self._admit()

    def _count(self, change: int) -> None:
        self._in_time += change
        if self._in_time < _CROWD:
            self._calm.set()
        else:
            self._calm.clear()

    def _admit(self) -> None:
        """Give free places away: one to each group that waits and may, then round again."""
        admitted = True
        while admitted and self._in_time < self.at_once:
            admitted = False
            for group in tuple(self._waiting):
                if self._may_begin(group):
                    self._admit_next(group)
                    admitted = True

    def _admit_next(self, group: Hashable) -> None:
        waiting = self._waiting[group]
        self._waiting.move_to_end(group)
        slot = waiting.popleft()
        if not slot.done():  # else it was cancelled, and has not run since
            slot.set_result(self._begin(group))
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: Hashable) -> None:
        if not self._waiting[group]:
            del self._waiting[group]


def _decrement(counter: Counter[Hashable], key: Hashable) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class FairQueue(Generic[J]):
    """Jobs that wait. Who takes one says when it is `done`."""

    def __init__(self, *, per_group: int) -> None:
        self._per_group = per_group
        self._waiting: OrderedDict[str, deque[J]] = OrderedDict()
        self._under_way: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, group: str, job: J) -> None:
        """Put a job at the end of a lane."""
        self._waiting.setdefault(group, deque()).append(job)

    def take(self) -> tuple[str, J] | None:
        """Take the next job that may begin; None if no job waits or every lane is full.

        Where all are full, the work in them goes on there, so no other need wait.
        """
        free = (group for group in self._waiting if self._under_way[group] < self._per_group)
        group = next(free, None)
        if group is None:
            return None
        self._under_way[group] += 1
        jobs = self._waiting[group]
        job = jobs.popleft()
        self._waiting.move_to_end(group)
        if not jobs:
            del self._waiting[group]
        return group, job

    def done(self, group: str) -> None:
        """A job of a lane has ended."""
        self._under_way[group] -= 1
