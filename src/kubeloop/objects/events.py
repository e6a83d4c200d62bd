"""Watch events as values: what a stream says happened to one object."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class WatchEvent(NamedTuple, Generic[T]):
    """One event. `object` is a T for ADDED, MODIFIED and DELETED.

    For BOOKMARK it is a `PartialObjectMetadata`, for ERROR the `Status` as a dictionary, for any
    other type whatever came, as a dictionary.
    """

    type: str
    object: T | Any
