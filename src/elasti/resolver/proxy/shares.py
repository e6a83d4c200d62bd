"""A bounded number of things, of which every holder may always have some.

Each holder has a reserved number that nobody else can take; beyond it holders compete for what is
not reserved. So one of them can take everything that is free, and never what another is owed. A part
is kept aside even while nobody has a claim on it: for holders that come when the rest is taken.

Where there are too many holders for the wished reserve it is halved for all, and doubled again when
half of them have gone. Everything is counted as it happens; only such a change looks at every holder,
and there are as many changes as doublings of their number.
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
        if shares.used >= shares.capacity:
            return False
        if self.used >= shares.reserve:
            if shares.contended >= shares.free:
                return False
            shares.contended += 1
        self.used += 1
        shares.used += 1
        return True

    def give(self) -> None:
        """Give one back."""
        assert self.used > 0
        shares = self._shares
        self.used -= 1
        shares.used -= 1
        if self.used >= shares.reserve:
            shares.contended -= 1
        if self._closed and self.used == 0:
            shares.leave(self)

    def close(self) -> None:
        """Leave, once everything is given back."""
        self._closed = True
        if self.used == 0:
            self._shares.leave(self)


class Shares:
    """The whole, and its division. `aside` is kept for holders that are yet to come."""

    __slots__ = (
        "_aside", "_halvings", "_holders", "_wished", "capacity", "contended", "free", "reserve", "used",
    )  # fmt: skip

    def __init__(self, *, capacity: int, reserve: int, aside: int = 0) -> None:
        self.capacity = capacity
        self.used = 0
        self._wished = self.reserve = reserve
        self._aside = aside
        self._halvings = 0
        self._holders: set[Share] = set()
        # How many are neither reserved nor kept aside, and how many of those are in use.
        self.free = capacity - aside
        self.contended = 0

    def __repr__(self) -> str:
        parts = f"{self.reserve} for each of {len(self._holders)}"
        return f"<Shares {self.used}/{self.capacity} used, {parts}>"

    def share(self) -> Share:
        """Add a holder."""
        holder = Share(self)
        self._holders.add(holder)
        self._divide()
        return holder

    def leave(self, holder: Share) -> None:
        """Remove a holder that has nothing. Safe to repeat."""
        self._holders.discard(holder)
        self._divide()

    def resize(self, capacity: int) -> None:
        """Change how many there are; where more are taken already, none is until enough came back."""
        self.capacity = capacity
        self._divide()

    def _divide(self) -> None:
        """Halve or double the reserve where the number of holders asks for it."""
        holders, before = len(self._holders), self._halvings
        while self._reserve() * holders > self.capacity:
            self._halvings += 1
        # Twice the room that it takes, so that one who comes and goes does not change it each time.
        while self._halvings and self._fits_doubled(holders):
            self._halvings -= 1
        self.reserve = self._reserve()
        self.free = max(self.capacity - max(self.reserve * holders, self._aside), 0)
        if self._halvings != before:
            self.contended = sum(max(holder.used - self.reserve, 0) for holder in self._holders)

    def _fits_doubled(self, holders: int) -> bool:
        return (self._wished >> (self._halvings - 1)) * holders * 2 <= self.capacity

    def _reserve(self) -> int:
        return self._wished >> self._halvings
