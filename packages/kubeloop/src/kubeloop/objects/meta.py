"""Object metadata: keys, resource versions, metadata Structs, and access to any representation.

An object is a msgspec Struct with a `metadata` attribute (slim or full), or a dictionary as JSON
gives it. `access_for(type)` chooses the accessor once, so that hot paths never choose again.

A `Key` is an object's identity inside one resource: `namespace/name`, or `name` if it is
cluster-scoped. Resource versions are opaque to readers; `compare_versions` is for freshness only.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NewType, Protocol, TypeAlias

import msgspec

Key = NewType("Key", str)


_WELL_FORMED = re.compile(r"[1-9][0-9]*\Z")


class ObjectName(NamedTuple):
    """A key taken apart; cluster-scoped objects have the empty namespace."""

    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """The joined form."""
        return make_key(self.namespace, self.name)

    def __str__(self) -> str:
        return self.key


def make_key(namespace: str, name: str) -> Key:
    """Join a namespace (may be empty) and a name."""
    return Key(f"{namespace}/{name}" if namespace else name)


def split_key(key: str) -> ObjectName:
    """Take a key apart; raises ValueError if there is more than one slash or no name."""
    parts = key.split("/")
    if len(parts) > 2 or not parts[-1]:
        raise ValueError(f"key {key!r} is not 'name' or 'namespace/name'")
    return ObjectName("", parts[0]) if len(parts) == 1 else ObjectName(parts[0], parts[1])


def compare_versions(left: str, right: str) -> int:
    """Order two resource versions of the same resource: negative, 0 or positive.

    Raises ValueError for what is not a decimal number without leading zero; `0` is not one either.
    For freshness gates only; never decide by it whether to accept an event.
    """
    for version in (left, right):
        if not _WELL_FORMED.match(version):
            raise ValueError(f"resourceVersion {version!r} is not a positive decimal number")
    if len(left) != len(right):
        return len(left) - len(right)
    return (left > right) - (left < right)


JsonObject: TypeAlias = dict[str, Any]


class SlimMeta(msgspec.Struct, rename="camel", gc=False):
    """The least metadata that an informer needs; the base of slim projections."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class LabeledMeta(SlimMeta, rename="camel", gc=False):
    """Slim metadata with what selectors and predicates read."""

    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class OwnerReference(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A reference from an object to one of its owners."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(LabeledMeta, rename="camel", omit_defaults=True, gc=False):
    """All metadata but managedFields, which informers never keep."""

    generate_name: str = ""
    creation_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class PartialObjectMetadata(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """An object of any kind with nothing but its metadata."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class MetaAccess(Protocol):
    """How to read the metadata of one representation. Missing values are empty, never errors."""

    def key(self, obj: Any) -> Key:
        """Return `namespace/name`; raises KeyError(obj) if the object has no name."""

    def name(self, obj: Any) -> str:
        """Return the name."""

    def namespace(self, obj: Any) -> str:
        """Return the namespace, empty for cluster-scoped objects."""

    def uid(self, obj: Any) -> str:
        """Return the uid."""

    def version(self, obj: Any) -> str:
        """Return the resourceVersion."""

    def generation(self, obj: Any) -> int:
        """Return the generation, 0 if absent."""

    def labels(self, obj: Any) -> dict[str, str]:
        """Return the labels; treat as read-only."""

    def annotations(self, obj: Any) -> dict[str, str]:
        """Return the annotations; treat as read-only."""

    def finalizers(self, obj: Any) -> list[str]:
        """Return the finalizers; treat as read-only."""

    def owners(self, obj: Any) -> tuple[OwnerReference, ...]:
        """Return the owner references."""

    def is_deleting(self, obj: Any) -> bool:
        """Whether the object has a deletionTimestamp."""


class _StructAccess:
    """Objects with a `metadata` attribute; slim metadata may lack any of the optional fields."""

    def key(self, obj: Any) -> Key:
        meta = getattr(obj, "metadata", None)
        if meta is None or not meta.name:
            raise KeyError(obj)
        return make_key(meta.namespace, meta.name)

    def name(self, obj: Any) -> str:
        return str(obj.metadata.name)

    def namespace(self, obj: Any) -> str:
        return str(obj.metadata.namespace)

    def uid(self, obj: Any) -> str:
        return str(obj.metadata.uid)

    def version(self, obj: Any) -> str:
        meta = getattr(obj, "metadata", None)
        return "" if meta is None else str(meta.resource_version)

    def generation(self, obj: Any) -> int:
        return getattr(obj.metadata, "generation", None) or 0

    def labels(self, obj: Any) -> dict[str, str]:
        return getattr(obj.metadata, "labels", None) or {}

    def annotations(self, obj: Any) -> dict[str, str]:
        return getattr(obj.metadata, "annotations", None) or {}

    def finalizers(self, obj: Any) -> list[str]:
        return getattr(obj.metadata, "finalizers", None) or []

    def owners(self, obj: Any) -> tuple[OwnerReference, ...]:
        return getattr(obj.metadata, "owner_references", None) or ()

    def is_deleting(self, obj: Any) -> bool:
        return bool(getattr(obj.metadata, "deletion_timestamp", None))


class _DictAccess:
    """Objects as JSON dictionaries."""

    def key(self, obj: Any) -> Key:
        meta = _meta(obj)
        if not meta.get("name"):
            raise KeyError(obj)
        return make_key(meta.get("namespace") or "", meta["name"])

    def name(self, obj: Any) -> str:
        return _meta(obj).get("name") or ""

    def namespace(self, obj: Any) -> str:
        return _meta(obj).get("namespace") or ""

    def uid(self, obj: Any) -> str:
        return _meta(obj).get("uid") or ""

    def version(self, obj: Any) -> str:
        return _meta(obj).get("resourceVersion") or ""

    def generation(self, obj: Any) -> int:
        return _meta(obj).get("generation") or 0

    def labels(self, obj: Any) -> dict[str, str]:
        return _meta(obj).get("labels") or {}

    def annotations(self, obj: Any) -> dict[str, str]:
        return _meta(obj).get("annotations") or {}

    def finalizers(self, obj: Any) -> list[str]:
        return _meta(obj).get("finalizers") or []

    def owners(self, obj: Any) -> tuple[OwnerReference, ...]:
        references = _meta(obj).get("ownerReferences") or ()
        return tuple(msgspec.convert(item, OwnerReference) for item in references)

    def is_deleting(self, obj: Any) -> bool:
        return bool(_meta(obj).get("deletionTimestamp"))


def _meta(obj: Any) -> JsonObject:
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return meta if isinstance(meta, dict) else {}


STRUCT_ACCESS: MetaAccess = _StructAccess()
DICT_ACCESS: MetaAccess = _DictAccess()


def access_for(kind: type[Any]) -> MetaAccess:
    """Return the accessor for objects represented as `kind` (dict, or a class with `metadata`)."""
    return DICT_ACCESS if issubclass(kind, dict) else STRUCT_ACCESS
