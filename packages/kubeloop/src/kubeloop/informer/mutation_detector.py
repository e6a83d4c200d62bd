"""Finds handlers that change what they were only lent.

Objects of an informer are shared by all who read them. In tests a detector keeps a deep copy beside
each object that went to the handlers, compares now and then, and makes the informer fail loudly when
they differ. It costs a copy and many comparisons for each object: not for production.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from kubeloop.informer.handlers import Added, Notification, Updated
from kubeloop.objects.meta import Key


class CacheMutated(AssertionError):
    """An object of a store was changed in place."""

    def __init__(self, key: Key, before: Any, after: Any) -> None:
        super().__init__(
            f"object {key} was changed in the store; copy it before changing it.\n"
            f"before: {before!r}\n after: {after!r}"
        )
        self.key = key


class _ObservedObject(NamedTuple):
    key: Key
    live: Any
    copied: Any
    since: float


class MutationDetector:
    """Compares every `period` seconds; remembers each object for `retain` seconds."""

    def __init__(self, *, period: float = 1.0, retain: float = 120.0) -> None:
        self._period = period
        self._retain = retain
        self._observed: deque[_ObservedObject] = deque()

    def __len__(self) -> int:
        """How many objects are remembered."""
        return len(self._observed)

    def observe(self, notes: Iterable[Notification[Any]]) -> None:
        """Remember the objects that handlers are about to see."""
        now = asyncio.get_running_loop().time()
        for note in notes:
            match note:
                case Added(key=key, obj=obj):
                    self._remember(key, obj, now)
                case Updated(key=key, old=old, new=new) if new is not old:
                    self._remember(key, new, now)

    def check(self) -> None:
        """Compare everything now. Raises CacheMutated."""
        for observed in self._observed:
            if observed.live != observed.copied:
                raise CacheMutated(observed.key, observed.copied, observed.live)

    async def run(self) -> None:
        """Compare until cancelled; who cancels looks once more. Raises CacheMutated."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._period)
            self.check()
            self._forget_before(loop.time() - self._retain)

    def _remember(self, key: Key, obj: Any, now: float) -> None:
        self._observed.append(_ObservedObject(key, obj, copy.deepcopy(obj), now))

    def _forget_before(self, time: float) -> None:
        while self._observed and self._observed[0].since < time:
            self._observed.popleft()
