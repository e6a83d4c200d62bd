"""Writing statuses: only what changed, and nothing where nothing did."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from kubeloop.client.errors import NotFound
from kubeloop.objects.meta import STRUCT_ACCESS
from kubeloop.objects.patches import MergePatch, create_merge_patch

if TYPE_CHECKING:
    from typing import Any

    from kubeloop.client.resource import Resource
    from kubeloop.objects.meta import JsonObject

S = TypeVar("S", bound=msgspec.Struct)


def status_patch(old: S, new: S, *, always: tuple[str, ...] = ()) -> JsonObject:
    """Return the merge patch from one status to another; empty where they are equal.

    `always` are fields that the API shows even when they are zero.
    """
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    patch = create_merge_patch(before, after)
    if patch or not before:
        patch.update({name: after.get(name, 0) for name in always})
    return patch


async def write_status(
    resource: Resource[JsonObject], obj: Any, patch: JsonObject
) -> JsonObject | None:
    """Patch an object's status, if it is still the same object; None where it is gone."""
    document = {"metadata": {"uid": STRUCT_ACCESS.uid(obj)}, "status": patch}
    try:
        return await resource.subresource("status").patch(
            STRUCT_ACCESS.name(obj),
            MergePatch(document),
            namespace=STRUCT_ACCESS.namespace(obj),
        )
    except NotFound:
        return None
