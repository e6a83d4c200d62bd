"""Objects that keep their JSON: typed metadata now, everything else when it is asked for.

A full dictionary of a pod is some 25 kB in hundreds of Python objects which the cyclic collector
visits again and again; its JSON without managedFields is some 3 kB in one. A store of `LazyObject`s
is therefore small and invisible to the collector, and an object that is never read is never decoded.

managedFields are cut out of the JSON when it comes in (replaced by `null`), because they are about
half of it: the copy that is made anyway gets smaller, and each later decode is cheaper by the same
half. The cut relies on one fact of JSON: the bytes `"managedFields":`, not after a backslash, are
always a key. If that key occurs exactly once, directly before its value, and the metadata has it,
it is the one in the metadata; in every other case the JSON is kept whole and the fields are dropped after decoding.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from kubeloop.objects.list_watch import NO_TYPE, ItemType
from kubeloop.objects.meta import JsonObject, ObjectMeta

S = TypeVar("S")

_MANAGED = b'"managedFields":'
_BACKSLASH = 0x5C
_SPACE = 0x20


_REMEDY = (
    "only its metadata is decoded; read to_dict(), or ask for a Struct of yours, as in"
    " factory.informer('v1/pods', Pod)"
)


class LazyMeta(ObjectMeta, rename="camel", omit_defaults=True, gc=False):
    """ObjectMeta as a LazyObject carries it; `managed_fields` is unset again after decoding."""

    managed_fields: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Head(msgspec.Struct, rename="camel", gc=False):
    """The fields that are decoded at once; everything else is skipped over."""

    api_version: str = ""
    kind: str = ""
    metadata: LazyMeta = msgspec.field(default_factory=LazyMeta)


class LazyObject(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An object of any kind: its metadata decoded, the rest as JSON in `raw`.

    `to_dict()` and `decode()` parse the JSON on every call (some 10 us for a pod of 3 kB) and keep
    nothing: hold on to the result if it is used twice. `raw` is this object's own bytes, without
    managedFields, and pins nothing else. Objects from a list have their kind from the list's.
    """

    metadata: ObjectMeta
    raw: bytes
    api_version: str = ""
    kind: str = ""

    def to_dict(self) -> JsonObject:
        """Decode the whole object, without managedFields; the dictionary is the caller's own."""
        obj: JsonObject = _decode_dict(self.raw)
        metadata = obj.get("metadata")
        if metadata is not None:
            metadata.pop("managedFields", None)
        if self.kind and "kind" not in obj:
            obj["apiVersion"] = self.api_version
            obj["kind"] = self.kind
        return obj

    def decode(self, kind: type[S]) -> S:
        """Decode into a Struct; raises msgspec.ValidationError that names the field at fault."""
        return msgspec.json.decode(self.raw, type=kind)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same; compares the JSON first, the decoded objects if need be."""
        if not isinstance(other, LazyObject):
            return NotImplemented
        same_type = (self.api_version, self.kind) == (other.api_version, other.kind)
        return same_type and (self.raw == other.raw or self.to_dict() == other.to_dict())

    __hash__ = None  # type: ignore[assignment]  # compares by value, so it has no hash

    if not TYPE_CHECKING:  # a checker that saw these would believe in any field

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"a LazyObject has no {name!r}: {_REMEDY}")

        def __getitem__(self, name: str) -> NoReturn:
            raise TypeError(f"a LazyObject is not a dictionary: {_REMEDY}")

    def __repr__(self) -> str:
        meta = self.metadata
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        return (
            f"<LazyObject {self.api_version} {self.kind} {name}"
            f" version={meta.resource_version} bytes={len(self.raw)}>"
        )


def parse_lazy(data: bytes, of: ItemType = NO_TYPE) -> LazyObject:
    """Build a LazyObject from an object's own JSON; `of` is its type if the JSON has no type.

    Raises one of `MALFORMED` for anything but one JSON object with well-formed metadata.
    """
    head = _decode_head(data)
    metadata = head.metadata
    managed = metadata.managed_fields
    if managed is not msgspec.UNSET:
        data = _without_managed_fields(data, len(managed))
        metadata.managed_fields = msgspec.UNSET
    # The same two strings for all objects of a kind instead of two for each.
    return LazyObject(
        metadata,
        data,
        sys.intern(head.api_version or of.api_version),
        sys.intern(head.kind or of.kind),
    )


def _without_managed_fields(data: bytes, length: int) -> bytes:
    found = data.find(_MANAGED)
    start = found + len(_MANAGED)
    certain = (
        found > 0
        and data[found - 1] != _BACKSLASH
        and data[start] > _SPACE
        and data.rfind(_MANAGED) == found
    )
    return data[:start] + b"null" + data[start + length :] if certain else data


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_dict: Any = msgspec.json.Decoder(dict[str, Any]).decode
