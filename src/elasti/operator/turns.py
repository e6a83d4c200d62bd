"""Who may act next, where many want to and only so many may at once: everybody in turn.

Those who wait are taken by their group (a namespace), one of each group in a round, so that a group with
thousands delays nobody else's first. One who takes too long is *late*: it goes on, but its place is given
to the next, as if it had left. So a group whose requests hang fills no places for longer than the
patience; and as long as one of its members is late it may have a few under way and no more, or it would
come to hold whatever there is to hold, one late member after the other. Who is late is bounded in all,
since each still has a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable

# More at once would open connections that cost more than they gain: each begins with a TLS handshake.
_AT_ONCE = 32
_MOST_LATE = 48
_OF_A_LATE_GROUP = 8
_PATIENCE = 0.5
_CROWD = 8


@dataclasses.dataclass(slots=True, eq=False)
class _Place:
    group: Hashable
    late: bool = False
    timer: asyncio.TimerHandle | None = None


class Turns:
    """Admits `at_once`, late ones not counted. `turn` is used as an `async with` block."""

    def __init__(
        self,
        *,
        at_once: int = _AT_ONCE,
        most_late: int = _MOST_LATE,
        of_a_late_group: int = _OF_A_LATE_GROUP,
        patience: float = _PATIENCE,
        crowd: int = _CROWD,
    ) -> None:
        self._at_once = at_once
        self._most_late = most_late
        self._of_a_late_group = of_a_late_group
        self._patience = patience
        self._crowd = crowd
        self._in_time = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._held: Counter[Hashable] = Counter()
        self._late: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[_Place]]] = OrderedDict()

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<Turns {self._in_time} in time, {self._late.total()} late, {waiting} waiting>"

    async def wait_calm(self, longest: float) -> None:
        """Let a crowd go first, for so many seconds at most; late ones are none."""
        if self._calm.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._calm.wait()

    @contextlib.asynccontextmanager
    async def turn(self, group: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and have it for the time of the block."""
        place = await self._come(group)
        try:
            yield
        finally:
            self._leave(place)

    async def _come(self, group: Hashable) -> _Place:
        if group not in self._waiting and self._may_begin(group):
            return self._begin(group)
        turn: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(turn.result())
            else:
                self._give_up(group, turn)
            raise

    def _give_up(self, group: Hashable, turn: asyncio.Future[_Place]) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            self._drop_if_empty(group)

    def _may_begin(self, group: Hashable) -> bool:
        if self._in_time >= self._at_once:
            return False
        return not self._late[group] or self._held[group] < self._of_a_late_group

    def _begin(self, group: Hashable) -> _Place:
        self._count(1)
        self._held[group] += 1
        place = _Place(group)
        self._watch(place)
        return place

    def _watch(self, place: _Place) -> None:
        loop = asyncio.get_running_loop()
        place.timer = loop.call_later(self._patience, self._be_late, place)

    def _be_late(self, place: _Place) -> None:
        if self._late.total() >= self._most_late:
            self._watch(place)
            return
        place.late, place.timer = True, None
        self._count(-1)
        self._late[place.group] += 1
        self._admit()

    def _leave(self, place: _Place) -> None:
        if place.timer is not None:
            place.timer.cancel()
        if place.late:
            _less(self._late, place.group)
        else:
            self._count(-1)
        _less(self._held, place.group)
        self._admit()

    def _count(self, change: int) -> None:
        self._in_time += change
        if self._in_time < self._crowd:
            self._calm.set()
        else:
            self._calm.clear()

    def _admit(self) -> None:
        """Give free places away: one to each group that waits and may, then round again."""
        admitted = True
        while admitted and self._in_time < self._at_once:
            admitted = False
            for group in tuple(self._waiting):
                if self._may_begin(group):
                    self._admit_next(group)
                    admitted = True

    def _admit_next(self, group: Hashable) -> None:
        waiting = self._waiting[group]
        self._waiting.move_to_end(group)
        turn = waiting.popleft()
        if not turn.done():  # else it was cancelled, and has not run since
            turn.set_result(self._begin(group))
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: Hashable) -> None:
        if not self._waiting[group]:
            del self._waiting[group]


def _less(counter: Counter[Hashable], key: Hashable) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
