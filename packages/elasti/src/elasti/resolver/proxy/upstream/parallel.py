"""Whether a pod serves several connections at once.

A server with one thread reads a kept connection and accepts no other until it is closed: requests on connections that
wait in its backlog would wait for our idle one. Most pods prove the contrary with their first few answers. Until a pod
has, its idle connections are kept for a moment only, and end when a request waits on another connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

# Connections that were made within this many seconds may be accepted in any order.
_TOGETHER = 0.1
# A request that has waited this long is no longer overtaken.
_OVERTAKEN = 0.5


class ObservedConnection(Protocol):
    """A connection to the pod."""

    def is_open(self) -> bool:
        """Whether the pod has not closed it, as far as the kernel knows, which learns it before the loop."""


class ParallelEvidence:
    """Evidence from a pod's answers. Recording stops when they are `proven` to be parallel."""

    __slots__ = ("_heard", "_made", "_now", "_unanswered", "proven")

    def __init__(self, now: Callable[[], float]) -> None:
        self.proven = False
        self._now = now
        # When each open connection was made; those that were answered; when the others began to wait.
        self._made: dict[ObservedConnection, float] = {}
        self._heard: set[ObservedConnection] = set()
        self._unanswered: dict[ObservedConnection, float] = {}

    @property
    def has_unanswered(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._unanswered)

    @property
    def is_doubtful(self) -> bool:
        """Whether one connection was answered and others wait: more of them might only wait, too."""
        return bool(self._heard and self._unanswered)

    def asked(self, connection: ObservedConnection) -> None:
        """A request was sent."""
        now = self._now()
        self._made.setdefault(connection, now)
        self._unanswered[connection] = now

    def answered(self, connection: ObservedConnection) -> None:
        """An answer began: a server with one thread has no other connection, and none that came before.

        It may have closed that other one just before, which the loop sees in any order.
        """
        self._unanswered.pop(connection, None)
        before = self._made.get(connection, 0.0) - _TOGETHER
        overtaken = (other for other in self._unanswered if self._made[other] < before)
        others = itertools.chain(self._heard - {connection}, overtaken)
        if any(other.is_open() for other in others):
            self.proven = True
            self._made, self._heard, self._unanswered = {}, set(), {}
        else:
            self._heard.add(connection)

    def gone(self, connection: ObservedConnection) -> None:
        """A connection has ended."""
        self._made.pop(connection, None)
        self._heard.discard(connection)
        self._unanswered.pop(connection, None)

    def is_starving(self) -> bool:
        """Whether a request has waited for too long to be overtaken by one on another connection."""
        longest = next(iter(self._unanswered.values()), None)
        return longest is not None and self._now() - longest > _OVERTAKEN
