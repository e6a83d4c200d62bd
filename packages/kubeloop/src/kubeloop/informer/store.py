"""The objects of one informer and their indices.

`Store` is the write handle: one consumer owns it and is the only one to change it. `StoreView` is
the read handle for all others. A change of an object and of its indices happens without an await
in between, so every query on the loop sees one state; queries from threads (blocking handlers)
take the same lock as the writer, which holds it for one batch at a time.

A list replaces everything at once: the new objects and indices are staged beside the old ones, as
slowly as fairness wants, and then swapped in one step.

An index maps a value to the keys of the objects that have it. An index function takes an object
and returns its values, any number of them. Values of the old object are recomputed on each change,
so an index costs no memory beyond its entries; a function must therefore be pure. One that raises
is logged and gives no values: an object is always in the store, at worst in fewer indices.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from kubeloop.objects.meta import Key

T = TypeVar("T")
IndexFunction: TypeAlias = Callable[[T], Iterable[str]]

NAMESPACE = "namespace"
"""The name of the standard index by namespace."""

_log = logging.getLogger(__name__)
_NO_KEYS: Mapping[Key, None] = {}


class UnknownIndex(LookupError):
    """A query named an index that the store does not have."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no index {name!r}; there are: {', '.join(sorted(known)) or 'none'}")


class IndexTable(Generic[T]):
    """One index. Its entries disappear with their last key."""

    __slots__ = ("_buckets", "_function", "_name")

    def __init__(self, name: str, function: IndexFunction[T]) -> None:
        self._name = name
        self._function = function
        self._buckets: dict[str, dict[Key, None]] = {}

    def empty_copy(self) -> IndexTable[T]:
        """Return a table of the same kind without entries."""
        return type(self)(self._name, self._function)

    def add(self, key: Key, obj: T) -> None:
        """Index a new object."""
        for value in self.values_of(key, obj):
            self._buckets.setdefault(value, {})[key] = None

    def remove(self, key: Key, obj: T) -> None:
        """Forget an object."""
        self._discard(key, self.values_of(key, obj))

    def update(self, key: Key, old: T, new: T) -> None:
        """Move a key from its old values to its new ones."""
        before, after = self.values_of(key, old), self.values_of(key, new)
        if before == after:
            return
        self._discard(key, [value for value in before if value not in after])
        for value in after:
            self._buckets.setdefault(value, {})[key] = None

    def keys(self, value: str) -> Mapping[Key, None]:
        """Return the keys under a value, in the order in which they came; not a copy."""
        return self._buckets.get(value, _NO_KEYS)

    def all_values(self) -> list[str]:
        """Return every value that some object has."""
        return list(self._buckets)

    def values_of(self, key: Key, obj: T) -> list[str]:
        """Return the object's values, none if the function fails."""
        try:
            values = self._function(obj)
            found = list(values)
        except Exception:  # noqa: BLE001 -- whatever it raises, the store stays consistent
            _log.exception("index function %s failed for %s", self._name, key)
            return []
        if isinstance(values, str):  # its letters would be the values
            words = "index function %s failed for %s: it returned %r; return a list, as in [value]"
            _log.error(words, self._name, key, values)
            return []
        return found

    def _discard(self, key: Key, values: Iterable[str]) -> None:
        for value in values:
            bucket = self._buckets.get(value)
            if bucket is not None:
                bucket.pop(key, None)
                if not bucket:
                    del self._buckets[value]


class NamespaceTable(IndexTable[T]):
    """The index by namespace. It reads the key, which no update changes, and never the object."""

    __slots__ = ()

    def __init__(self, name: str = NAMESPACE, function: IndexFunction[T] | None = None) -> None:
        super().__init__(name, function or _no_values)

    def values_of(self, key: Key, obj: T) -> list[str]:
        """Return the key's namespace; empty for cluster-scoped objects."""
        namespace, slash, _ = key.partition("/")
        return [namespace] if slash else []

    def update(self, key: Key, old: T, new: T) -> None:
        """Do nothing: the namespace is a part of the key."""


def _no_values(_obj: Any) -> tuple[str, ...]:
    return ()


class Staging(Generic[T]):
    """A future content of a store."""

    __slots__ = ("items", "tables")

    def __init__(self, tables: Mapping[str, IndexTable[T]]) -> None:
        self.items: dict[Key, T] = {}
        self.tables = {name: table.empty_copy() for name, table in tables.items()}

    def put(self, key: Key, obj: T) -> None:
        """Stage an object; of two with the same key the later wins."""
        _put(self.items, self.tables, key, obj)


class Store(Generic[T]):
    """The write handle. `lock` guards every change against readers in other threads."""

    __slots__ = ("_items", "_tables", "_version", "lock")

    def __init__(
        self, indexers: Mapping[str, IndexFunction[T]] | None = None, *, by_namespace: bool = True
    ) -> None:
        self.lock = threading.RLock()
        self._items: dict[Key, T] = {}
        self._tables: dict[str, IndexTable[T]] = {}
        if by_namespace:
            self._tables[NAMESPACE] = NamespaceTable()
        self._version = ""
        self.add_indexers(indexers or {})

    @property
    def version(self) -> str:
        """The resourceVersion up to which the store is complete; "" before the first list."""
        return self._version

    def advance(self, version: str) -> None:
        """Note that the store is complete up to `version`; anything but a number is ignored."""
        if version.isdecimal():
            self._version = version

    def put(self, key: Key, obj: T) -> T | None:
        """Add or update (client-go's Add and Update); returns what was there before."""
        return _put(self._items, self._tables, key, obj)

    def delete(self, key: Key) -> T | None:
        """Remove; returns what was there, None for an unknown key."""
        old = self._items.pop(key, None)
        if old is not None:
            for table in self._tables.values():
                table.remove(key, old)
        return old

    def stage(self) -> Staging[T]:
        """Begin a new content with the same indices."""
        return Staging(self._tables)

    def swap(self, staging: Staging[T], version: str) -> dict[Key, T]:
        """Replace everything by what was staged, in one step; returns the old objects.

        `version` is the list's own and may go back: a server restored from a backup does that.
        """
        with self.lock:
            for name, table in self._tables.items():
                if name not in staging.tables:  # the index was added while we staged
                    staging.tables[name] = _filled(table.empty_copy(), staging.items)
            old, self._items = self._items, staging.items
            self._tables = staging.tables
            self._version = version
            return old

    def add_indexers(self, indexers: Mapping[str, IndexFunction[T]]) -> None:
        """Add indices and fill them at once. Raises ValueError for a name that is taken."""
        with self.lock:
            taken = sorted(set(indexers) & set(self._tables))
            if taken:
                raise ValueError(f"index {', '.join(taken)} already exists; choose another name")
            for name, function in indexers.items():
                self._tables[name] = _filled(IndexTable(name, function), self._items)

    def table(self, name: str) -> IndexTable[T]:
        """Return an index; raises UnknownIndex."""
        try:
            return self._tables[name]
        except KeyError:
            raise UnknownIndex(name, self._tables) from None

    def has_table(self, name: str) -> bool:
        """Whether there is an index of that name."""
        return name in self._tables

    @property
    def items(self) -> Mapping[Key, T]:
        """The objects by key; not a copy."""
        return self._items


class StoreView(Generic[T]):
    """The read handle: every query returns a container of its own, of one state of the store.

    The objects themselves are shared by all readers: treat them as read-only.
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store[T]) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store.items)

    def __contains__(self, key: object) -> bool:
        return key in self._store.items

    @property
    def version(self) -> str:
        """The resourceVersion up to which the store is complete; "" before the first list."""
        return self._store.version

    def get(self, key: str) -> T | None:
        """Return the object, None if absent (client-go's GetByKey)."""
        return self._store.items.get(Key(key))

    def keys(self) -> list[Key]:
        """Return all keys (client-go's ListKeys)."""
        with self._store.lock:
            return list(self._store.items)

    def items(self) -> list[tuple[Key, T]]:
        """Return all keys with their objects."""
        with self._store.lock:
            return list(self._store.items.items())

    def by_index(self, name: str, value: str) -> list[T]:
        """Return the objects that have a value in an index (client-go's ByIndex)."""
        with self._store.lock:
            items = self._store.items
            return [items[key] for key in self._store.table(name).keys(value)]

    def index_keys(self, name: str, value: str) -> list[Key]:
        """Return the keys of the objects that have a value in an index."""
        with self._store.lock:
            return list(self._store.table(name).keys(value))

    def index_values(self, name: str) -> list[str]:
        """Return every value of an index (client-go's ListIndexFuncValues)."""
        with self._store.lock:
            return self._store.table(name).all_values()

    def has_index(self, name: str) -> bool:
        """Whether there is an index of that name."""
        return self._store.has_table(name)

    # Last of all, because its name hides the builtin in the annotations that follow it.
    def list(self) -> list[T]:
        """Return all objects."""
        with self._store.lock:
            return list(self._store.items.values())

    def __repr__(self) -> str:
        return f"<StoreView {len(self)} objects at version {self.version or '-'}>"


def _filled(table: IndexTable[T], items: Mapping[Key, T]) -> IndexTable[T]:
    for key, obj in items.items():
        table.add(key, obj)
    return table


def _put(items: dict[Key, T], tables: Mapping[str, IndexTable[T]], key: Key, obj: T) -> T | None:
    old = items.get(key)
    items[key] = obj
    for table in tables.values():
        if old is None:
            table.add(key, obj)
        else:
            table.update(key, old, obj)
    return old
