"""References to objects: what an event is about, and which kind an object says it is."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.meta import access_for


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A core/v1 ObjectReference."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


def kind_of(obj: Any) -> GroupVersionKind:
    """Read `apiVersion` and `kind` of an object. Raises ValueError where one is missing."""
    if isinstance(obj, dict):
        api_version, kind = obj.get("apiVersion"), obj.get("kind")
    else:
        api_version, kind = getattr(obj, "api_version", ""), getattr(obj, "kind", "")
    if not api_version or not kind:
        raise ValueError("the object has no apiVersion or kind; pass its GroupVersionKind")
    return GroupVersionKind.of(api_version, kind)


def reference_to(obj: Any, gvk: GroupVersionKind | None = None) -> ObjectReference:
    """Refer to an object, a Struct or a dictionary; `gvk` for one that does not say what it is."""
    access, kind = access_for(type(obj)), gvk or kind_of(obj)
    return ObjectReference(
        api_version=kind.api_version,
        kind=kind.kind,
        namespace=access.namespace(obj),
        name=access.name(obj),
        uid=access.uid(obj),
        resource_version=access.version(obj),
    )
