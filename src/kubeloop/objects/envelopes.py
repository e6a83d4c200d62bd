"""What lists and watch events wrap around objects, as servers write it."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

# What msgspec raises for bytes that are not the JSON asked for; the last is nesting without end.
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class DecodeError(ValueError):
    """Bytes that are not what the API promises: malformed JSON, a wrong type, not a list."""


class ItemType(NamedTuple):
    """What a list says its items are; servers leave it out of the items themselves."""

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


class Change(msgspec.Struct, Generic[T], gc=False):
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
        raise DecodeError(
            f"the server sent kind {envelope.kind!r} without items where a list is due"
        )
