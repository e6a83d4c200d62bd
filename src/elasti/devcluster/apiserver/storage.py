"""The versioned store: what exists, and what changed lately.

One counter of resource versions for everything, as with etcd: a version names one write. Objects
are kept as encoded JSON, which is what readers want and is never shared by mistake; beside the
bytes stands only what selectors look at. Every write is one synchronous step on the loop, so there
is one writer and a read-modify-write needs no lock.

With a journal, a write is visible to readers and watchers once it is durable: `Store.settled` waits
for that, and the event logs publish then. Without one both happen at once.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Protocol

import msgspec

from elasti.devcluster.apiserver.eventlog import Change, EventLog, Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kubeloop.objects.meta import JsonObject

_NOTHING: Mapping[str, str] = {}
_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One object at one version. `key` is `namespace/name` or `name`; `data` its JSON."""

    key: str
    version: int
    data: bytes
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The namespace, empty for cluster-scoped objects."""
        return self.key.partition("/")[0] if "/" in self.key else ""

    @property
    def name(self) -> str:
        """The object's name."""
        return self.key.rpartition("/")[2]

    def at(self, version: int) -> Record:
        """Return the same object as of another version."""
        obj = self.decode()
        obj["metadata"]["resourceVersion"] = str(version)
        return dataclasses.replace(self, version=version, data=_encode(obj))

    def decode(self) -> JsonObject:
        """Return a fresh dictionary, the caller's own."""
        return dict(msgspec.json.decode(self.data, type=dict))


class Durability(Protocol):
    """Where writes survive the process."""

    def append(self, collection: str, record: Record, *, deleted: bool) -> None:
        """Queue one write; order is the order of versions."""

    async def flushed(self, version: int) -> None:
        """Return when every write up to `version` is on the disk."""


class Collection:
    """All objects of one resource, in the order of their keys, and their recent changes."""

    def __init__(self, name: str, *, window: Window, compacted: int) -> None:
        self.name = name
        self.log: EventLog = EventLog(window=window, compacted=compacted)
        self._records: dict[str, Record] = {}
        self._keys: list[str] = []

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> Record | None:
        """Return the object, or None."""
        return self._records.get(key)

    def scan(self, namespace: str = "") -> Iterator[Record]:
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

    def at(self, version: int) -> dict[str, Record]:
        """Return the objects as they were at a version that the log still reaches back to."""
        state = dict(self._records)
        for change in reversed(self.log.after(version)):
            if change.previous is None:
                state.pop(change.record.key, None)
            else:
                state[change.record.key] = change.previous
        return {key: state[key] for key in sorted(state)}

    def load(self, record: Record) -> None:
        """Take an object from the journal; not a change."""
        self._set(record)

    def drop(self, key: str) -> None:
        """Forget an object that the journal says was deleted."""
        self._unset(key)

    def _set(self, record: Record) -> Record | None:
        previous = self._records.get(record.key)
        if previous is None:
            insort(self._keys, record.key)
        self._records[record.key] = record
        return previous

    def _unset(self, key: str) -> Record | None:
        previous = self._records.pop(key, None)
        if previous is not None:
            del self._keys[bisect_left(self._keys, key)]
        return previous


class Store:
    """Every collection and the version counter. The only writer of both."""

    def __init__(
        self, *, window: Window | None = None, durability: Durability | None = None
    ) -> None:
        self.version = 1
        self.window = window or Window()
        self._durability = durability
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

    def restore(self, *, version: int, durability: Durability) -> None:
        """Go on after `version`; the history before it is gone."""
        self.version = max(self.version, version)
        self._compacted = self.version
        self._durability = durability
        for collection in self._collections.values():
            collection.log.compact(self.version)

    def put(
        self,
        collection: Collection,
        key: str,
        obj: JsonObject,
        *,
        fields: Mapping[str, str] = _NOTHING,
    ) -> Record:
        """Write an object, stamped with a new version (in `obj` too)."""
        record = self._stamp(key, obj, fields)
        previous = collection._set(record)
        self._publish(collection, Change(record=record, previous=previous, deleted=False))
        return record

    def delete(
        self,
        collection: Collection,
        key: str,
        obj: JsonObject,
        *,
        fields: Mapping[str, str] = _NOTHING,
    ) -> Record:
        """Remove an object; `obj` is its last state, stamped with the version of the removal."""
        record = self._stamp(key, obj, fields)
        previous = collection._unset(key)
        self._publish(collection, Change(record=record, previous=previous, deleted=True))
        return record

    async def settled(self) -> None:
        """Return when everything written so far is durable."""
        if self._durability is not None:
            version = self.version
            await self._durability.flushed(version)

    def published(self, version: int) -> None:
        """Take the journal's word that all versions up to this one are durable."""
        for collection in self._collections.values():
            collection.log.publish(version)

    def compact(self) -> None:
        """Forget the history: a watch from any earlier version is told 410."""
        for collection in self._collections.values():
            collection.log.compact(self.version)
        self._compacted = self.version

    def _stamp(self, key: str, obj: JsonObject, fields: Mapping[str, str]) -> Record:
        self.version += 1
        metadata = obj["metadata"]
        metadata["resourceVersion"] = str(self.version)
        labels = metadata.get("labels") or _NOTHING
        return Record(key, self.version, _encode(obj), labels, fields)

    def _publish(self, collection: Collection, change: Change) -> None:
        collection.log.append(change)
        if self._durability is None:
            collection.log.publish(self.version)
        else:
            self._durability.append(collection.name, change.record, deleted=change.deleted)
