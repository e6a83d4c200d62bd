"""The door of an informer: each object gets its key and is transformed, exactly once.

Both happen on entry, before anything is queued, so that what is queued can always be applied. The
key is taken from the object as it came, which proves that it has one, and then from what the
transform made of it: a transform that renames changes the key. One that drops the metadata keeps
the first key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from kubeloop.objects.names import Key

if TYPE_CHECKING:
    from kubeloop.objects.meta import MetaAccess

T = TypeVar("T")

Transform: TypeAlias = Callable[[Any], Any]
"""Takes an object and returns what to store instead; may change it in place.

It must be idempotent: an object that a server sends again is a new object and passes again.
"""


class Change(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One event, ready to be applied. `version` is "" where the stored object has none."""

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


class Intake(Generic[T]):
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
        self.prepare: Callable[[T, str, bool], Change[T]] = (
            self._prepare_plain if transform is None else self._prepare_transformed
        )

    def add(self, obj: T) -> Change[T]:
        """Prepare an object that was added or updated. Raises Rejected."""
        return self.prepare(obj, self.access.version(obj), False)  # noqa: FBT003 -- as below

    def delete(self, obj: T) -> Change[T]:
        """Prepare a deletion; `obj` is the last state. Raises Rejected."""
        return self.prepare(obj, self.access.version(obj), True)  # noqa: FBT003 -- as below

    def _prepare_plain(self, obj: T, version: str, deleted: bool) -> Change[T]:  # noqa: FBT001 -- positional for speed
        try:
            return Change(self._key(obj), obj, version, deleted)
        except KeyError as error:
            raise Rejected("key", obj, error) from error

    def _prepare_transformed(self, obj: T, _version: str, deleted: bool) -> Change[T]:  # noqa: FBT001 -- positional for speed
        try:
            key = self._key(obj)
        except KeyError as error:
            raise Rejected("key", obj, error) from error
        assert self._transform is not None
        try:
            stored = self._transform(obj)
            if stored is None:
                raise TypeError("the transform returned None instead of an object")  # noqa: TRY301 -- the same refusal as any error of a transform
            return Change(
                self._stored_key(stored, key), stored, self.stored.version(stored), deleted
            )
        except Exception as error:
            raise Rejected("transform", obj, error) from error

    def _stored_key(self, stored: T, original: Key) -> Key:
        try:
            return self.stored.key(stored)
        except KeyError:
            return original
