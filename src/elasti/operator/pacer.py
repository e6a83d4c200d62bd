"""Turns, handed out at a steady rate: so that a lost resolver does not start everything at once."""

from __future__ import annotations


class Pacer:
    """Gives each who asks a moment of its own, `rate` a second."""

    def __init__(self, rate: float = 10.0) -> None:
        self._gap = 1.0 / rate
        self._next = 0.0

    def reserve(self, now: float) -> float:
        """Return the next free moment, not before now."""
        moment = max(now, self._next)
        self._next = moment + self._gap
        return moment
