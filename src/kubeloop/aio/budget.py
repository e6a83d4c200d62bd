"""Cooperative yielding: long synchronous work that lets others have the loop now and then.

    budget = Budget()
    for item in many:
        handle(item)
        if budget.spent():
            await budget.rest()

The budget is a span of loop time and a number of items, whichever ends first: the time bounds what
others wait, the count keeps things moving where time stands still (a virtual-time loop).
"""

from __future__ import annotations

import asyncio


class Budget:
    """How long one task may run before it has to rest; starts when it is made.

    One budget serves one task. A task that has just waited for something else may `restart()`.
    """

    __slots__ = ("_ends", "_items", "_left", "_loop", "_seconds")

    def __init__(self, seconds: float = 0.005, items: int = 1000) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._items = items
        self.restart()

    def restart(self) -> None:
        """Count from now; for after an await that really waited."""
        self._ends = self._loop.time() + self._seconds
        self._left = self._items

    def spent(self) -> bool:
        """Count one item; whether it is time to rest."""
        self._left -= 1
        return self._left <= 0 or self._loop.time() >= self._ends

    async def rest(self) -> None:
        """Let everything else that is ready run once, then start anew."""
        await asyncio.sleep(0)
        self.restart()
