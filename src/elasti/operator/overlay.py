"""Our own writes, until the caches show them.

A reconcile that follows a write closely may find the cache without it, and take its own work for
somebody else's. What was written is kept beside the cache, by name, for as long as the cache is
older; versions of one resource can be ordered, which is all that this needs.
"""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

from kubeloop.objects.versions import compare_versions

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Written(Generic[T]):
    version: str
    obj: T | None


class Overlay(Generic[T]):
    """The newest known state of a few named objects: written or cached, whichever is newer."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[str, _Written[T]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether there is something that the cache may not show yet."""
        return bool(self._written)

    def wrote(self, name: str, version: str, obj: T) -> None:
        """Remember what the server answered to a write."""
        self._written[name] = _Written(version, obj)

    def deleted(self, name: str, version: str) -> None:
        """Remember that an object of that version was deleted."""
        self._written[name] = _Written(version, None)

    def newest(self, name: str, cached: T | None, version: str) -> T | None:
        """Return the newer of what was written and what the cache has (`version` "" for nothing).

        A cache without the object is taken for older than a write and newer than a delete.
        """
        written = self._written.get(name)
        if written is None:
            return cached
        if not version:
            if written.obj is None:
                del self._written[name]
            return written.obj
        if _is_newer(version, written):
            del self._written[name]
            return cached
        return written.obj

    def gone(self, name: str, version: str) -> None:
        """The cache was told that an object went, by whomever; `version` is what it was last."""
        written = self._written.get(name)
        if written is not None and (
            written.obj is None or compare_versions(version, written.version) >= 0
        ):
            del self._written[name]


def _is_newer(version: str, written: _Written[T]) -> bool:
    order = compare_versions(version, written.version)
    # A deleted object's cached version is the deleted one itself until the cache hears of it.
    return order >= 0 if written.obj is not None else order > 0
