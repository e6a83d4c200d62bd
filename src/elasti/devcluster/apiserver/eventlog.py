"""The recent changes of one resource, and readers that follow them.

A log is a window of changes that one writer appends to and any number of cursors read: a watcher
owns no queue, only a position, so a hundred watchers of ten thousand writes hold no copies. An event
is encoded once for all of them. A cursor that falls out of the window has been too slow and is told
so; a log never waits for a reader.
"""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.devcluster.apiserver.storage import Record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much history one resource keeps: changes, and bytes of objects."""

    changes: int = 10_000
    octets: int = 8 * 1024 * 1024


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Change:
    """One write: the record it made (or the last state of what it removed), and what was before."""

    record: Record
    previous: Record | None
    deleted: bool
    lines: dict[tuple[str, object], bytes] = dataclasses.field(default_factory=dict)

    def line(self, kind: str, form: object, render: Callable[[Record], bytes]) -> bytes:
        """Return the encoded event; `form` names the representation, None one not to be kept."""
        found = self.lines.get((kind, form)) if form is not None else None
        if found is None:
            found = _encoded(kind, render(self._left() if kind == "DELETED" else self.record))
            if form is not None:
                self.lines[kind, form] = found
        return found

    def _left(self) -> Record:
        """Return what a watcher sees that is told of a deletion.

        One whose selection the object has left sees it as it was, at the version of the change.
        """
        if self.deleted or self.previous is None:
            return self.record
        return self.previous.at(self.record.version)


def _encoded(kind: str, shown: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), shown)


class FellBehind(Exception):
    """The cursor's next change is no longer kept."""


class EventLog:
    """Changes in the order of versions, newest last. One writer, many cursors."""

    def __init__(self, *, window: Window, compacted: int) -> None:
        self.compacted = compacted
        self._window = window
        # A list, since slices from near its end are what cursors take.
        self._changes: list[Change] = []
        self._first = 0
        self._visible = 0
        self._octets = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._changes)

    def append(self, change: Change) -> None:
        """Add a change; nobody sees it until it is published."""
        self._changes.append(change)
        self._octets += len(change.record.data)
        drop = len(self._changes) - self._window.changes
        if drop > 0 or self._octets > self._window.octets:
            # In steps, since every step moves the rest of the list.
            self._forget(max(drop, 1) + len(self._changes) // 16)

    def publish(self, version: int) -> None:
        """Show every change up to a version, and wake who waits."""
        before = self._visible
        self._visible = max(self._visible, self._first + self._count_up_to(version))
        if self._visible != before:
            self.wake()

    def wake(self) -> None:
        """Let every waiting cursor look again."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def compact(self, version: int) -> None:
        """Forget every change; versions before `version` cannot be asked for any more."""
        self._forget(self._count_up_to(version))
        self.compacted = max(self.compacted, version)
        self.wake()

    def after(self, version: int) -> list[Change]:
        """Return the changes later than a version, published or not."""
        return self._changes[self._count_up_to(version) :]

    def cursor(self, version: int) -> Cursor:
        """Return a reader of the changes later than a version; FellBehind where they are gone."""
        if version < self.compacted:
            raise FellBehind
        return Cursor(self, self._first + self._count_up_to(version))

    def read(self, position: int) -> list[Change]:
        """Return the published changes from a position on."""
        if position < self._first:
            raise FellBehind
        return self._changes[position - self._first : self._visible - self._first]

    async def changed(self) -> None:
        """Return when something was published, compacted or woken."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _count_up_to(self, version: int) -> int:
        return bisect_right(self._changes, version, key=lambda change: change.record.version)

    def _forget(self, count: int) -> None:
        gone = self._changes[:count]
        if not gone:
            return
        del self._changes[:count]
        self._octets -= sum(len(change.record.data) for change in gone)
        self._first += len(gone)
        self._visible = max(self._visible, self._first)
        self.compacted = max(self.compacted, gone[-1].record.version)


class Cursor:
    """A reader's place in a log."""

    def __init__(self, log: EventLog, position: int) -> None:
        self._log = log
        self._position = position

    def take(self) -> list[Change]:
        """Return what was published since the last call; raises FellBehind."""
        changes = self._log.read(self._position)
        self._position += len(changes)
        return changes

    async def changed(self) -> None:
        """Return when `take` may have something."""
        await self._log.changed()
