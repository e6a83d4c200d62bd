"""Secondary indices over a store: from a value to the keys of the objects that have it.

An index function takes an object and returns its values, any number of them. Values of the old
object are recomputed on each change, so an index costs no memory beyond its entries; a function
must therefore be pure. One that raises is logged and gives no values: an object is always in the
store, at worst in fewer indices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from kubeloop.objects.names import Key

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
        """Return the object's values, none where the function fails."""
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
        """Return the key's namespace; cluster-scoped objects have none."""
        del obj
        namespace, slash, _ = key.partition("/")
        return [namespace] if slash else []

    def update(self, key: Key, old: T, new: T) -> None:
        """Do nothing: the namespace is a part of the key."""


def _no_values(_obj: Any) -> tuple[str, ...]:
    return ()
