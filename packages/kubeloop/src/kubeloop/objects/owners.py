"""References between objects: what an object is, what an event is about, and who owns an object.

An owner is recognised by group, kind and name: a reference written by an older version of the API
is the same owner. At most one owner is the controller. Owners live in the object's own namespace
or are cluster-scoped; anything else the garbage collector would treat as a missing owner and
delete the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kubeloop.objects.gvk import GroupVersion, GroupVersionKind
from kubeloop.objects.meta import OwnerReference, access_for


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
    """Read `apiVersion` and `kind` of an object. Raises ValueError if one is missing."""
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


class OwnershipError(ValueError):
    """An owner reference that must not be written, or is not there to be removed."""


class AlreadyOwnedError(OwnershipError):
    """Another controller owns the object; `owner` is its reference."""

    def __init__(self, message: str, owner: OwnerReference) -> None:
        super().__init__(message)
        self.owner = owner


def controller_of(owners: Iterable[OwnerReference]) -> OwnerReference | None:
    """Return the reference that is marked as controller, or None."""
    return next((owner for owner in owners if owner.controller), None)


def is_same_owner(left: OwnerReference, right: OwnerReference) -> bool:
    """Whether both name one object; versions and uids are not looked at."""
    return _identity(left) == _identity(right)


def is_of_kind(owner: OwnerReference, group: str, kind: str) -> bool:
    """Whether the owner is of that kind, in any version."""
    return owner.kind == kind and GroupVersion.parse(owner.api_version).group == group


def owner_reference(
    owner: Any,
    gvk: GroupVersionKind | None = None,
    *,
    controller: bool = False,
    block_owner_deletion: bool = False,
) -> OwnerReference:
    """Build a reference to `owner`, a Struct or a dictionary.

    `gvk` may be left out for an object that says itself what it is. Raises OwnershipError if the
    uid is unknown (what was never created cannot own anything), ValueError if the kind is.
    """
    access, kind = access_for(type(owner)), gvk or kind_of(owner)
    if not access.uid(owner) or not access.name(owner):
        raise OwnershipError(
            f"owner {kind.kind} {access.name(owner)!r} has no uid; create it, or read it, first"
        )
    return OwnerReference(
        api_version=kind.api_version,
        kind=kind.kind,
        name=access.name(owner),
        uid=access.uid(owner),
        controller=True if controller else None,
        block_owner_deletion=True if block_owner_deletion else None,
    )


def check_scope(*, owner_namespace: str, namespace: str) -> None:
    """Raise OwnershipError if an owner in that namespace may not own an object in this one."""
    if not owner_namespace or owner_namespace == namespace:
        return
    if not namespace:
        raise OwnershipError(
            f"a cluster-scoped object cannot have an owner in namespace {owner_namespace!r}"
        )
    raise OwnershipError(
        f"an owner in namespace {owner_namespace!r} cannot own an object in {namespace!r}"
    )


def with_owner(
    owners: Sequence[OwnerReference], reference: OwnerReference
) -> tuple[OwnerReference, ...]:
    """Return the owners with `reference` in the place of an older one to the same object.

    Raises AlreadyOwnedError if it would be the second controller.
    """
    present = controller_of(owners)
    if reference.controller and present and not is_same_owner(present, reference):
        raise AlreadyOwnedError(
            f"the object is already controlled by {present.kind} {present.name!r};"
            f" {reference.kind} {reference.name!r} cannot control it too",
            present,
        )
    if not any(is_same_owner(owner, reference) for owner in owners):
        return (*owners, reference)
    return tuple(reference if is_same_owner(owner, reference) else owner for owner in owners)


def without_owner(
    owners: Sequence[OwnerReference], reference: OwnerReference
) -> tuple[OwnerReference, ...]:
    """Return the owners but this one; raises OwnershipError if it is not among them."""
    rest = tuple(owner for owner in owners if not is_same_owner(owner, reference))
    if len(rest) == len(owners):
        raise OwnershipError(f"{reference.kind} {reference.name!r} does not own the object")
    return rest


def set_controller_reference(
    obj: Any, owner: Any, owner_gvk: GroupVersionKind | None = None
) -> None:
    """Make `owner` the controller of `obj`, in place, before `obj` is written.

    Raises OwnershipError by the rules of this module; `obj` is unchanged then.
    """
    access, owners = access_for(type(obj)), access_for(type(owner))
    reference = owner_reference(owner, owner_gvk, controller=True, block_owner_deletion=True)
    check_scope(owner_namespace=owners.namespace(owner), namespace=access.namespace(obj))
    _write(obj, with_owner(access.owners(obj), reference))


def remove_controller_reference(
    obj: Any, owner: Any, owner_gvk: GroupVersionKind | None = None
) -> None:
    """Take `owner` from the owners of `obj`, in place; raises OwnershipError if it is not its controller."""
    reference = owner_reference(owner, owner_gvk)
    owners = access_for(type(obj)).owners(obj)
    present = controller_of(owners)
    if present is None or not is_same_owner(present, reference):
        raise OwnershipError(f"{reference.kind} {reference.name!r} does not control the object")
    _write(obj, without_owner(owners, reference))


def _write(obj: Any, owners: tuple[OwnerReference, ...]) -> None:
    if isinstance(obj, dict):
        metadata = obj.setdefault("metadata", {})
        metadata["ownerReferences"] = [msgspec.to_builtins(owner) for owner in owners]
    else:
        obj.metadata.owner_references = owners


def _identity(owner: OwnerReference) -> tuple[str, str, str]:
    return GroupVersion.parse(owner.api_version).group, owner.kind, owner.name
