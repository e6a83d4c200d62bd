"""List and watch as values: their parameters, pages and events, and the envelopes on the wire.

`ListOptions` and `WatchOptions` are the parameters of a request, `Page` and `WatchEvent` what a
caller gets. `ListEnvelope`, `EventEnvelope` and `AnyEvent` are the JSON around objects as servers
write it, for the codec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

# Errors of msgspec for bytes that are not the expected JSON; the last is for endless nesting.
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class DecodeError(ValueError):
    """Bytes that are not what the API promises: malformed JSON, a wrong type, not a list."""


class ItemType(NamedTuple):
    """The type of a list's items; servers leave it out of the items themselves."""

    api_version: str = ""
    kind: str = ""


NO_TYPE = ItemType()


class ListMeta(msgspec.Struct, rename="camel", gc=False):
    """Metadata of a list."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class ListEnvelope(msgspec.Struct, Generic[T], rename="camel", gc=False):
    """A list as servers write it; Go writes an empty one as `null`."""

    kind: str = ""
    api_version: str = ""
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[T] | None = None

    @property
    def item_type(self) -> ItemType:
        """The type that the list's own kind gives to its items."""
        kind = self.kind.removesuffix("List")
        return ItemType(self.api_version, kind) if kind != self.kind else ItemType()


class EventEnvelope(msgspec.Struct, Generic[T], gc=False):
    """A watch event that says what became of an object."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T


class AnyEvent(msgspec.Struct, gc=False):
    """A watch event of which only the type is known yet."""

    type: str
    object: msgspec.Raw = msgspec.Raw(b"null")


def check_is_list(envelope: ListEnvelope[Any]) -> None:
    """Refuse a Table, which is made for people, and whatever else is not a list of objects."""
    if envelope.kind == "Table":
        raise DecodeError(
            "the server sent a Table, which has no whole objects: do not ask for one in Accept"
        )
    if envelope.items is None and not envelope.kind.endswith("List"):
        raise DecodeError(f"the server sent kind {envelope.kind!r} without items instead of a list")


@dataclasses.dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Objects of one list response; an empty `continue_token` means that no page follows.

    `remaining` is the server's estimate of what follows, None if it gives none.
    """

    items: list[T]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


class WatchEvent(NamedTuple, Generic[T]):
    """One event. `object` is a T for ADDED, MODIFIED and DELETED.

    For BOOKMARK it is a `PartialObjectMetadata`, for ERROR the `Status` as a dictionary, for any
    other type whatever came, as a dictionary.
    """

    type: str
    object: T | Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """A list request. Empty strings and 0 are left out of the query.

    `resource_version=None` leaves the parameter out; "" asks for the same thing explicitly in
    client-go's words (a consistent read), so both send nothing.

    `on_answer` is not sent: it is called when the server has accepted the request, before the body is read.
    """

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int = 0
    on_answer: Callable[[], None] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        return _present(
            labelSelector=self.label_selector,
            fieldSelector=self.field_selector,
            limit=str(self.limit or ""),
            resourceVersion=self.resource_version,
            resourceVersionMatch=self.resource_version_match,
            timeoutSeconds=str(self.timeout_seconds or ""),
        ) | _present(**{"continue": self.continue_token})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """A watch request; `send_initial_events` turns it into a streaming list."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int = 0
    allow_bookmarks: bool = True
    send_initial_events: bool = False

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        return {"watch": "true"} | _present(
            labelSelector=self.label_selector,
            fieldSelector=self.field_selector,
            resourceVersion=self.resource_version,
            resourceVersionMatch=self.resource_version_match,
            timeoutSeconds=str(self.timeout_seconds or ""),
            allowWatchBookmarks="true" if self.allow_bookmarks else "",
            sendInitialEvents="true" if self.send_initial_events else "",
        )


def _present(**parameters: str) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value}
