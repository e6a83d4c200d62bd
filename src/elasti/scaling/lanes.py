"""Work of several parties, of which none may hold up another's: each has a lane of its own. Pure.

Whoever is free takes the next job of the next lane; of one lane only so many are under way. So those whose
jobs take long fill their own lane and no more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, TypeVar

J = TypeVar("J")


class Lanes(Generic[J]):
    """Jobs that wait. Who takes one says when it is `done`."""

    def __init__(self, *, of_one: int) -> None:
        self._of_one = of_one
        self._waiting: OrderedDict[str, deque[J]] = OrderedDict()
        self._under_way: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, lane: str, job: J) -> None:
        """Put a job at the end of a lane."""
        self._waiting.setdefault(lane, deque()).append(job)

    def take(self) -> tuple[str, J] | None:
        """Take the next job that may begin; None where there is none, or where every lane is full.

        Where all are full, whoever is at work in them goes on there, so nobody else need wait.
        """
        free = (lane for lane in self._waiting if self._under_way[lane] < self._of_one)
        lane = next(free, None)
        if lane is None:
            return None
        self._under_way[lane] += 1
        jobs = self._waiting[lane]
        job = jobs.popleft()
        self._waiting.move_to_end(lane)
        if not jobs:
            del self._waiting[lane]
        return lane, job

    def done(self, lane: str) -> None:
        """A job of a lane has ended."""
        self._under_way[lane] -= 1
