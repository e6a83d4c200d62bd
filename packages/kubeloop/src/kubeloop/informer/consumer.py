"""The queue's one consumer: takes entries, changes the store, notifies the listeners.

The store always changes before the listeners are notified. Long entries are applied in slices
with yields in between, so that a big list does not hold the loop. What must be one step is one
step: a list is staged beside the old content and swapped in at once, and the listeners of that
moment are notified of the difference; a handler that joins later gets the new content and nothing
else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.aio.tasks import TimeBudget
from kubeloop.informer.handlers import Added, Deleted, Notification, Updated
from kubeloop.informer.queue import Bookmark, Changes, DeltaQueue, QueueEntry, ReplacedAll, SyncAll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kubeloop.informer.dispatch import Dispatcher
    from kubeloop.informer.metrics import InformerMetrics
    from kubeloop.informer.reflector.events import Delta
    from kubeloop.informer.store import Store
    from kubeloop.objects.meta import Key, MetaAccess


T = TypeVar("T")

SLICE = 250
_log = logging.getLogger(__name__)


S = TypeVar("S")


@dataclasses.dataclass(eq=False, kw_only=True)
class QueueConsumer(Generic[T]):
    """Applies entries until cancelled.

    `on_synced` is called once, after the first list; `on_failure` after an entry that could not be
    applied: the store may then lack something, and a new list has to be asked for.
    `unknown_deletes` passes on deletions of keys that the store does not have.
    """

    queue: DeltaQueue[T]
    store: Store[T]
    dispatcher: Dispatcher[T]
    access: MetaAccess
    metrics: InformerMetrics
    on_synced: Callable[[], None]
    on_failure: Callable[[Exception], None]
    unknown_deletes: bool = False

    async def run(self) -> None:
        """Apply entries until cancelled."""
        time = asyncio.get_running_loop().time
        synced = False
        while True:
            entry = await self.queue.pop()
            began = time()
            try:
                count = await self._apply(entry)
                self._report(count, time() - began)
            except Exception as error:  # noqa: BLE001 -- reported, and answered by a new list
                self._failed(entry, error)
                continue
            self.queue.done(entry)
            if not synced and self.queue.has_synced:
                synced = True
                self.on_synced()

    def _report(self, count: int, seconds: float) -> None:
        self.metrics.applied(changes=count, seconds=seconds)
        self.metrics.queued(changes=len(self.queue))
        self.metrics.stored(objects=len(self.store.items), version=self.store.version)

    def _failed(self, entry: QueueEntry[T], error: Exception) -> None:
        _log.error("a %s could not be applied", type(entry).__name__, exc_info=error)
        self.metrics.apply_failed()
        self.queue.failed(entry)
        self.on_failure(error)

    async def _apply(self, entry: QueueEntry[T]) -> int:
        match entry:
            case Changes():
                await self._change(entry.items)
                return len(entry.items)
            case ReplacedAll():
                await self._replace(entry)
                return len(entry.items)
            case SyncAll():
                return await self._resync()
            case Bookmark():
                self.store.advance(entry.version)
                return 0

    # Changes

    async def _change(self, changes: list[Delta[T]]) -> None:
        if len(changes) <= SLICE:
            self._change_slice(changes)
            return
        budget = TimeBudget(items=4)
        for some in _slices(changes):
            self._change_slice(some)
            if budget.spent():
                await budget.rest()

    def _change_slice(self, changes: list[Delta[T]]) -> None:
        notes: list[Notification[T]] = []
        unchanged: set[int] = set()
        put, version_of, append = self.store.put, self.access.version, notes.append
        version = ""
        with self.store.lock:
            for change in changes:
                key, obj = change.key, change.obj
                version = change.version or version
                if change.deleted:
                    if self.store.delete(key) is not None or self.unknown_deletes:
                        append(Deleted(key, obj))
                    continue
                old = put(key, obj)
                if old is None:
                    append(Added(key, obj))
                    continue
                if change.version and change.version == version_of(old):
                    unchanged.add(len(notes))
                append(Updated(key, old, obj))
            self.store.advance(version)
        self.dispatcher.distribute(notes, _without(notes, unchanged))

    # Lists and resyncs

    async def _replace(self, entry: ReplacedAll[T]) -> None:
        initial = not self.queue.has_synced
        staging = self.store.stage()
        budget = TimeBudget(items=SLICE)
        for key, obj in entry.items.items():
            staging.put(key, obj)
            if budget.spent():
                await budget.rest()
        old = self.store.swap(staging, entry.version)
        recipients = self.dispatcher.recipients()
        for some in _slices(self._differences(old, staging.items, initial=initial)):
            changed = [note for note in some if not self._is_repeat(note)]
            self.dispatcher.distribute(some, changed, recipients=recipients)
            await budget.rest()

    def _differences(
        self, old: Mapping[Key, T], new: Mapping[Key, T], *, initial: bool
    ) -> Iterator[Notification[T]]:
        for key, obj in old.items():
            if key not in new:
                yield Deleted(key, obj, stale=True)
        for key, obj in new.items():
            before = old.get(key)
            yield Added(key, obj, initial) if before is None else Updated(key, before, obj)

    def _is_repeat(self, note: Notification[T]) -> bool:
        if not isinstance(note, Updated):
            return False
        # Objects without a version (a transform dropped it) may always have changed.
        version = self.access.version(note.new)
        return bool(version) and version == self.access.version(note.old)

    async def _resync(self) -> int:
        recipients = self.dispatcher.syncing()
        # No other task changes the store, so it does not change while we pause.
        for some in _slices(self.store.items.items()):
            notes: list[Notification[T]] = [Updated(key, obj, obj) for key, obj in some]
            self.dispatcher.distribute(notes, recipients=recipients)
            await asyncio.sleep(0)
        for listener in recipients:
            listener.resynced()
        return len(self.store.items)


def _slices(items: Iterable[S]) -> Iterator[list[S]]:
    iterator = iter(items)
    while some := list(itertools.islice(iterator, SLICE)):
        yield some


def _without(notes: list[Notification[T]], left_out: set[int]) -> list[Notification[T]] | None:
    if not left_out:
        return None
    return [note for position, note in enumerate(notes) if position not in left_out]
