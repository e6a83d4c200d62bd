"""The versioned store: what exists, and what changed lately.

One counter of resource versions for everything, as with etcd: a version names one write. Objects
are kept as encoded JSON, which is what readers want and is never shared by mistake; beside the
bytes stands only what selectors look at. Every write is one synchronous step on the loop, so there
is one writer and a read-modify-write needs no lock.

With a database, a write is visible to readers and watchers once it is durable: `ObjectStore.settled`
waits for that, and the event logs publish then. Without one both happen at once.

An event log is a window of changes that one writer appends to and any number of cursors read: a
watcher owns no queue, only a position, so a hundred watchers of ten thousand writes hold no copies. An
event is encoded once for all of them. A cursor that falls out of the window gets an error; a log never
waits for a reader.
"""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from devkube.apiserver.database import Database
    from kubeloop.objects.meta import JsonObject


Texts: TypeAlias = "Mapping[str, str]"
_NOTHING: Texts = {}
_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWindow:
    """How much history one resource keeps: changes, and bytes of objects."""

    changes: int = 10_000
    octets: int = 8 * 1024 * 1024


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class StoredChange:
    """One write: the record it made (or the last state of what it removed), and what was before."""

    record: StoredObject
    previous: StoredObject | None
    deleted: bool
    lines: dict[tuple[str, object], bytes] = dataclasses.field(default_factory=dict)

    def line(self, kind: str, form: object, render: Callable[[StoredObject], bytes]) -> bytes:
        """Return the encoded event; `form` names the representation, None one not to be kept."""
        found = self.lines.get((kind, form)) if form is not None else None
        if found is None:
            shown = render(self._left() if kind == "DELETED" else self.record)
            found = b'{"type":"%b","object":%b}\n' % (kind.encode(), shown)
            if form is not None:
                self.lines[kind, form] = found
        return found

    def _left(self) -> StoredObject:
        """Return what a watcher sees in a DELETED event.

        One whose selection the object has left sees it as it was, at the version of the change.
        """
        if self.deleted or self.previous is None:
            return self.record
        return self.previous.at(self.record.version)


class FellBehind(Exception):
    """The cursor's next change is no longer kept."""


class EventLog:
    """Changes in the order of versions, newest last. One writer, many cursors."""

    def __init__(self, *, window: HistoryWindow, compacted: int) -> None:
        self.compacted = compacted
        self._window = window
        # A list, since slices from near its end are what cursors take.
        self._changes: list[StoredChange] = []
        self._first = 0
        self._visible = 0
        self._octets = 0
        self._woken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._changes)

    def append(self, change: StoredChange) -> None:
        """Add a change; it is visible once it is published."""
        self._changes.append(change)
        self._octets += len(change.record.data)
        drop = len(self._changes) - self._window.changes
        if drop > 0 or self._octets > self._window.octets:
            # In steps, since every step moves the rest of the list.
            self._forget(max(drop, 1) + len(self._changes) // 16)

    def undo(self, change: StoredChange) -> None:
        """Forget the latest change, which was not published."""
        assert self._changes[-1] is change
        del self._changes[-1]
        self._octets -= len(change.record.data)

    def publish(self, version: int) -> None:
        """Show every change up to a version, and wake who waits."""
        before = self._visible
        self._visible = max(self._visible, self._first + self._count_up_to(version))
        if self._visible != before:
            self.wake()

    def wake(self) -> None:
        """Let every waiting cursor read again."""
        self._woken.set()
        self._woken = asyncio.Event()

    def compact(self, version: int) -> None:
        """Forget every change; versions before `version` can no longer be asked for."""
        self._forget(self._count_up_to(version))
        self.compacted = max(self.compacted, version)
        self.wake()

    def after(self, version: int) -> list[StoredChange]:
        """Return the changes later than a version, published or not."""
        return self._changes[self._count_up_to(version) :]

    def cursor(self, version: int) -> Cursor:
        """Return a reader of the changes later than a version; FellBehind if they are gone."""
        if version < self.compacted:
            raise FellBehind
        return Cursor(self, self._first + self._count_up_to(version))

    def read(self, position: int) -> list[StoredChange]:
        """Return the published changes from a position on."""
        if position < self._first:
            raise FellBehind
        return self._changes[position - self._first : self._visible - self._first]

    async def changed(self) -> None:
        """Return when something was published, compacted or woken."""
        await self._woken.wait()

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

    def take(self) -> list[StoredChange]:
        """Return what was published since the last call; raises FellBehind."""
        changes = self._log.read(self._position)
        self._position += len(changes)
        return changes

    async def changed(self) -> None:
        """Return when `take` may have something."""
        await self._log.changed()


@dataclasses.dataclass(frozen=True, slots=True)
class StoredObject:
    """One object at one version. `key` is `namespace/name` or `name`; `data` its JSON."""

    key: str
    version: int
    data: bytes
    labels: Texts = dataclasses.field(default_factory=dict)
    fields: Texts = dataclasses.field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The namespace, empty for cluster-scoped objects."""
        return self.key.partition("/")[0] if "/" in self.key else ""

    @property
    def name(self) -> str:
        """The object's name."""
        return self.key.rpartition("/")[2]

    def at(self, version: int) -> StoredObject:
        """Return the same object as of another version."""
        obj = self.decode()
        obj["metadata"]["resourceVersion"] = str(version)
        return dataclasses.replace(self, version=version, data=_encode(obj))

    def decode(self) -> JsonObject:
        """Return a fresh dictionary, the caller's own."""
        return dict(msgspec.json.decode(self.data, type=dict))


class StorageFailed(Exception):
    """A write could not be made durable, and was not made."""


class Collection:
    """All objects of one resource, in the order of their keys, and their recent changes."""

    def __init__(self, name: str, *, window: HistoryWindow, compacted: int) -> None:
        self.name = name
        self.revision = 0
        """How often its objects changed; also when a write was taken back."""
        self.log: EventLog = EventLog(window=window, compacted=compacted)
        self._records: dict[str, StoredObject] = {}
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> StoredObject | None:
        """Return the object, or None."""
        return self._records.get(key)

    def scan(self, namespace: str = "") -> Iterator[StoredObject]:
        """Yield the objects of a namespace, or all, in key order."""
        if not namespace:
            for key in self._keys:
                yield self._records[key]
            return
        prefix = f"{namespace}/"
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[index]
            if not key.startswith(prefix):
                return
            yield self._records[key]

    def at(self, version: int) -> dict[str, StoredObject]:
        """Return the objects as they were at a version that the log still reaches back to."""
        state = dict(self._records)
        for change in reversed(self.log.after(version)):
            if change.previous is None:
                state.pop(change.record.key, None)
            else:
                state[change.record.key] = change.previous
        return {key: state[key] for key in sorted(state)}

    def load(self, record: StoredObject) -> None:
        """Take an object from the database; not a change."""
        self._set(record)

    def undo(self, change: StoredChange) -> None:
        """Take back the latest change, which was not published."""
        if change.previous is None:
            self._unset(change.record.key)
        else:
            self._set(change.previous)
        self.log.undo(change)

    def _set(self, record: StoredObject) -> StoredObject | None:
        previous = self._records.get(record.key)
        if previous is None:
            insort(self._keys, record.key)
        self._records[record.key] = record
        self.revision += 1
        return previous

    def _unset(self, key: str) -> StoredObject | None:
        previous = self._records.pop(key, None)
        if previous is not None:
            del self._keys[bisect_left(self._keys, key)]
            self.revision += 1
        return previous


class ObjectStore:
    """Every collection and the version counter. The only writer of both."""

    def __init__(self, *, window: HistoryWindow | None = None) -> None:
        self.version = 1
        self.window = window or HistoryWindow()
        self.taken_back: Callable[[], None] = lambda: None
        """Called after writes that could not be made durable were undone."""
        self._database: Database | None = None
        self._collections: dict[str, Collection] = {}
        self._compacted = 0

    def collection(self, name: str) -> Collection:
        """Return the collection of that name (`apps/deployments`), made on first use."""
        found = self._collections.get(name)
        if found is None:
            found = Collection(name, window=self.window, compacted=self._compacted)
            self._collections[name] = found
        return found

    def collections(self) -> Iterator[Collection]:
        """Yield every collection there is."""
        yield from self._collections.values()

    def restore(self, *, version: int, database: Database) -> None:
        """Go on after `version`; the history before it is gone."""
        self.version = max(self.version, version)
        self._database = database
        self.compact()

    def put(
        self, collection: Collection, key: str, obj: JsonObject, *, fields: Texts = _NOTHING
    ) -> StoredObject:
        """Write an object, stamped with a new version (in `obj` too)."""
        return self._change(collection, self._stamp(key, obj, fields), deleted=False)

    def delete(
        self, collection: Collection, key: str, obj: JsonObject, *, fields: Texts = _NOTHING
    ) -> StoredObject:
        """Remove an object; `obj` is its last state, stamped with the version of the removal."""
        return self._change(collection, self._stamp(key, obj, fields), deleted=True)

    async def settled(self) -> None:
        """Return when everything written so far is durable; raises StorageFailed."""
        if self._database is not None:
            await self._database.flushed()

    def published(self, version: int) -> None:
        """Take the database's word that all versions up to this one are durable."""
        for collection in self._collections.values():
            collection.log.publish(version)

    def compact(self) -> None:
        """Forget the history: a watch from any earlier version gets 410."""
        for collection in self._collections.values():
            collection.log.compact(self.version)
        self._compacted = self.version

    def _stamp(self, key: str, obj: JsonObject, fields: Texts) -> StoredObject:
        if self._database is not None:
            self._database.check()
        self.version += 1
        metadata = obj["metadata"]
        metadata["resourceVersion"] = str(self.version)
        labels = metadata.get("labels") or _NOTHING
        return StoredObject(key, self.version, _encode(obj), labels, fields)

    def _change(
        self, collection: Collection, record: StoredObject, *, deleted: bool
    ) -> StoredObject:
        previous = collection._unset(record.key) if deleted else collection._set(record)
        change = StoredChange(record=record, previous=previous, deleted=deleted)
        collection.log.append(change)
        if self._database is None:
            collection.log.publish(self.version)
        else:
            self._database.append(collection, change)
        return record
