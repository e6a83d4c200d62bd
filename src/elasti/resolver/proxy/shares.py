"""A bounded number of things, of which every holder may always have some.

Each holder has a reserved number that nobody else can take; beyond it holders compete for what is
not reserved. So one of them can take everything that is free, and never what another is owed. Where
there are too many holders for the wished reserve, it shrinks to an equal part for each.
"""

from __future__ import annotations


class Share:
    """One holder's part: `take` before having, `give` after."""

    __slots__ = ("_closed", "_shares", "used")

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._closed = False
        self.used = 0

    def take(self) -> bool:
        """Take one; False where neither the reserve nor the rest has one left."""
        shares = self._shares
        if self.used >= shares.reserve:
            if shares.contended >= shares.free:
                return False
            shares.contended += 1
        self.used += 1
        return True

    def give(self) -> None:
        """Give one back."""
        assert self.used > 0
        self.used -= 1
        if self.used >= self._shares.reserve:
            self._shares.contended -= 1
        if self._closed and self.used == 0:
            self._shares.leave(self)

    def close(self) -> None:
        """Leave, once everything is given back."""
        self._closed = True
        if self.used == 0:
            self._shares.leave(self)


class Shares:
    """The whole, and its division."""

    __slots__ = ("_capacity", "_holders", "_wished", "contended", "free", "reserve")

    def __init__(self, *, capacity: int, reserve: int) -> None:
        self._capacity = capacity
        self._wished = reserve
        self._holders: set[Share] = set()
        self.reserve = reserve
        # How many are not reserved, and how many of those are in use.
        self.free = capacity
        self.contended = 0

    def __repr__(self) -> str:
        used = sum(holder.used for holder in self._holders)
        return f"<Shares {used}/{self._capacity} used, {self.reserve} for each of {len(self._holders)}>"

    def share(self) -> Share:
        """Add a holder."""
        holder = Share(self)
        self._holders.add(holder)
        self._divide()
        return holder

    def leave(self, holder: Share) -> None:
        """Remove a holder that has nothing."""
        self._holders.discard(holder)
        self._divide()

    def _divide(self) -> None:
        holders = len(self._holders)
        self.reserve = min(self._wished, self._capacity // holders) if holders else self._wished
        self.free = self._capacity - self.reserve * holders
        self.contended = sum(max(holder.used - self.reserve, 0) for holder in self._holders)
