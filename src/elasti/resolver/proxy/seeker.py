"""A connection that looks for a pod: at once, or after a wait, and again where one refused.

A pod that does not accept is reported, and the seeker goes to another or back to the head of the
queue; nothing was sent, so nothing can be sent twice. HTTP/1, h2 and plain TCP connections seek alike
and differ in what they do when they have found one.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

from elasti.resolver.proxy.statistics import LEFT
from elasti.resolver.proxy.target import Refusal

if TYPE_CHECKING:
    from elasti.resolver.proxy.front import Front
    from elasti.resolver.proxy.pod import PodConnection
    from elasti.resolver.proxy.shares import Share
    from elasti.resolver.proxy.target import Address

_MAX_TRIES = 4


class Seeker(abc.ABC):
    """The search of one connection, or of one request of it."""

    __slots__ = (
        "_opening", "_opening_tick", "_tries", "_waiting", "front", "held_for", "held_since",
    )  # fmt: skip

    # Whether the connection must be new and is never given back.
    fresh: ClassVar[bool] = True

    def __init__(self, front: Front) -> None:
        self.front = front
        # Since when a pod is waited for, and how long it took to find one.
        self.held_since: float | None = None
        self.held_for = 0.0
        self._waiting = False
        self._opening: Address | None = None
        self._opening_tick = 0
        self._tries = 0

    @property
    def pod_share(self) -> Share:
        """Where connections to pods count."""
        return self.front.pods

    @abc.abstractmethod
    def connected(self, connection: PodConnection) -> None:
        """A connection to a pod was found; overriders call `found` first."""

    @abc.abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """None will be found."""

    def seek(self) -> None:
        """Go to a pod that answers, or wait for one."""
        address = self.front.target.pick()
        if address is None:
            self._wait(first=False)
        else:
            self._go(address)

    def seek_again(self) -> None:
        """Nothing was sent, or it may be sent again: another pod, or the head of the queue."""
        self._tries += 1
        address = self.front.target.pick() if self._tries < _MAX_TRIES else None
        if address is None:
            self._wait(first=True)
        else:
            self._go(address)

    def stop_seeking(self) -> None:
        """Leave the queue or the line, wherever the search was."""
        if self.leave_queue():
            self.front.statistics.holds[LEFT].add(self.held_for)
        if self._opening is not None:
            address, self._opening = self._opening, None
            self.front.pool.cancel(address, self, fresh=self.fresh)

    def leave_queue(self) -> bool:
        """Wait no more; returns whether it did."""
        if not self._waiting:
            return False
        self._ends_waiting()
        self.front.target.leave(self)
        return True

    def found(self) -> None:
        """The search is over, for this time."""
        self._opening = None
        self._measure()

    def stands_too_long(self, tick: int) -> bool:
        """Give up where no connection to a pod could be had for long: descriptors have run out."""
        if self._opening is None or tick - self._opening_tick <= self.front.limits.opening:
            return False
        self.stop_seeking()
        self.refuse(Refusal.BUSY)
        return True

    # Waiter

    def admit(self, address: Address) -> None:
        """A pod answers: go there."""
        if self._waiting:
            self._ends_waiting()
            self._go(address)

    def give_up(self, refusal: Refusal) -> None:
        """No pod will come."""
        if self._waiting:
            self._ends_waiting()
            self.refuse(refusal)

    # Taker

    def connect_failed(self, address: Address) -> None:
        """The pod did not accept a connection."""
        self._opening = None
        self.front.target.refused(address)
        self.seek_again()

    def _go(self, address: Address) -> None:
        self._opening = address
        self._opening_tick = self.front.sweeper.tick
        self.front.pool.open(address, self, fresh=self.fresh)

    def _wait(self, *, first: bool) -> None:
        if self.held_since is None:
            self.held_since = self.front.now()
        refusal = self.front.target.wait(self, first=first)
        if refusal is None:
            self._waiting = True
            self.front.statistics.held += 1
        else:
            self.refuse(refusal)

    def _ends_waiting(self) -> None:
        self._waiting = False
        self._measure()
        self.front.statistics.held -= 1

    def _measure(self) -> None:
        if self.held_since is not None:
            self.held_for = self.front.now() - self.held_since
