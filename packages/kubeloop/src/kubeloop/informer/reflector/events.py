"""Events of a watch become deltas: each object gets its key and is transformed, exactly once.

`ObjectPreparer` does that on entry, before anything is queued, so that what is queued can always
be applied. The key is taken from the object as it came, which proves that it has one, and then
from what the transform made of it: a transform that renames changes the key. One that drops the
metadata keeps the first key.

`EventReader` says what each event of one watch means: a delta, a bookmark, an error, or nothing
that can be used. It is the innermost loop of an informer; it runs once for each event, and all
that is the same for a whole stream is looked up before it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from kubeloop.client.errors import ApiError, error_from_object
from kubeloop.objects.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    INITIAL_EVENTS_END,
    MODIFIED,
    WatchEvent,
)
from kubeloop.objects.meta import DICT_ACCESS, STRUCT_ACCESS, Key, MetaAccess

if TYPE_CHECKING:
    from kubeloop.informer.metrics import InformerMetrics


T = TypeVar("T")

Transform: TypeAlias = Callable[[Any], Any]
"""Takes an object and returns what to store instead; may change it in place.

It must be idempotent: an object that a server sends again is a new object and passes again.
"""


_log = logging.getLogger(__name__)


class Delta(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One event, ready to be applied. `version` is "" if the stored object has no version."""

    key: Key
    obj: T
    version: str
    deleted: bool = False


class Rejected(Exception):
    """An object that cannot be stored; `reason` is `key` or `transform`, the cause is attached."""

    def __init__(self, reason: str, obj: Any, cause: Exception) -> None:
        super().__init__(f"object refused by its {reason}: {cause!r}")
        self.reason = reason
        self.obj = obj


class ObjectPreparer(Generic[T]):
    """Prepares objects. `access` reads what the source gives, `stored` what the transform makes."""

    __slots__ = ("_key", "_transform", "access", "prepare", "stored")

    def __init__(
        self,
        access: MetaAccess,
        transform: Transform | None = None,
        *,
        stored: MetaAccess | None = None,
    ) -> None:
        self.access = access
        self.stored = stored or access
        self._transform = transform
        self._key = access.key
        # Chosen once: most informers have no transform, and this is called for every event.
        self.prepare: Callable[[T, str, bool], Delta[T]] = (
            self._prepare_plain if transform is None else self._prepare_transformed
        )

    def add(self, obj: T) -> Delta[T]:
        """Prepare an object that was added or updated. Raises Rejected."""
        return self.prepare(obj, self.access.version(obj), False)  # noqa: FBT003 -- as below

    def delete(self, obj: T) -> Delta[T]:
        """Prepare a deletion; `obj` is the last state. Raises Rejected."""
        return self.prepare(obj, self.access.version(obj), True)  # noqa: FBT003 -- as below

    def _prepare_plain(self, obj: T, version: str, deleted: bool) -> Delta[T]:  # noqa: FBT001 -- positional for speed
        try:
            return Delta(self._key(obj), obj, version, deleted)
        except KeyError as error:
            raise Rejected("key", obj, error) from error

    def _prepare_transformed(self, obj: T, _version: str, deleted: bool) -> Delta[T]:  # noqa: FBT001 -- positional for speed
        try:
            key = self._key(obj)
        except KeyError as error:
            raise Rejected("key", obj, error) from error
        assert self._transform is not None
        try:
            stored = self._transform(obj)
            if stored is None:
                raise TypeError("the transform returned None instead of an object")  # noqa: TRY301 -- the same refusal as any error of a transform
            return Delta(
                self._stored_key(stored, key), stored, self.stored.version(stored), deleted
            )
        except Exception as error:
            raise Rejected("transform", obj, error) from error

    def _stored_key(self, stored: T, original: Key) -> Key:
        try:
            return self.stored.key(stored)
        except KeyError:
            return original


_IS_DELETE: Mapping[str, bool] = {ADDED: False, MODIFIED: False, DELETED: True}


@dataclasses.dataclass(frozen=True, slots=True)
class BookmarkSeen:
    """The stream is at `version`; `ends_initial` closes the initial events of a streaming list."""

    version: str
    ends_initial: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorSeen:
    """The server ended the watch with an error."""

    error: ApiError


ControlEvent: TypeAlias = BookmarkSeen | ErrorSeen


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class EventReader(Generic[T]):
    """Reads the events of one watch.

    `version` is where the watch would resume: the version of the last accepted event. A watch that
    began at "" or "0" first replays existing objects in any order, and a watch cannot resume at
    their versions: `version` changes only after an event other than ADDED.
    """

    preparer: ObjectPreparer[T]
    version: str
    metrics: InformerMetrics
    mismatch: Callable[[Any], str] | None = None
    accepted: int = dataclasses.field(default=0, init=False)
    _replaying: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._replaying = self.version in {"", "0"}

    def read(self, events: Iterator[WatchEvent[T]]) -> tuple[list[Delta[T]], ControlEvent | None]:
        """Read on to the next bookmark or error, or to the end of `events`.

        Returns the changes up to there, and what stopped the reading, None at the end.
        """
        changes: list[Delta[T]] = []
        append, prepare = changes.append, self.preparer.prepare
        version_of, mismatch = self.preparer.access.version, self.mismatch
        version, accepted = self.version, 0
        special: ControlEvent | None = None
        for kind, obj in events:
            deleted = _IS_DELETE.get(kind)
            if deleted is None:
                special, found = self._special(kind, obj)
                if found:
                    version, accepted, self._replaying = found, accepted + 1, False
                if special is None:
                    continue
                break
            if mismatch is not None and (why := mismatch(obj)):
                self._drop("type", why)
                continue
            found = version_of(obj)
            if not found:
                self._drop("metadata", f"{kind} without metadata or resourceVersion")
                continue
            try:
                append(prepare(obj, found, deleted))
            except Rejected as error:
                self._drop(error.reason, f"{kind} at version {found}: {error}")
            accepted += 1
            if self._replaying:
                if kind == ADDED:
                    continue
                self._replaying = False
            version = found
        self.version = version
        self.accepted += accepted
        return changes, special

    def _special(self, kind: str, obj: Any) -> tuple[ControlEvent | None, str]:
        if kind == ERROR:
            return ErrorSeen(error_from_object(obj if isinstance(obj, dict) else {})), ""
        access = DICT_ACCESS if isinstance(obj, dict) else STRUCT_ACCESS
        version = access.version(obj)
        if kind != BOOKMARK:
            self._drop("event", f"unknown event type {kind!r}")
            return None, version
        if not version:
            self._drop("metadata", "BOOKMARK without a resourceVersion")
            return None, ""
        ends = access.annotations(obj).get(INITIAL_EVENTS_END) == "true"
        return BookmarkSeen(version, ends), version

    def _drop(self, reason: str, why: str) -> None:
        self.metrics.rejected(reason=reason)
        _log.warning("watch event dropped: %s", why)


def drop_managed_fields(obj: Any) -> Any:
    """Remove `metadata.managedFields`, about half of a dictionary's memory, in place.

    Structs never have them.
    """
    if isinstance(obj, dict):
        metadata = obj.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
    return obj
