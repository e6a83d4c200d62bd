"""Patches as values: what to send, and with which content type.

Also RFC 7386 (merge patches) as two pure functions. Nothing here sends anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from kubeloop.objects.meta import JsonObject


@dataclasses.dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902: a list of operations, applied in order, all or none.

    A `test` operation makes the whole patch conditional; a failed one is `Invalid` (422).
    """

    operations: Sequence[Mapping[str, Any]]
    content_type: ClassVar[str] = "application/json-patch+json"

    @property
    def body(self) -> bytes:
        """The operations as JSON."""
        return msgspec.json.encode(self.operations)


class _ContentPatch:
    __slots__ = ()
    content: Any

    @property
    def body(self) -> bytes:
        """The content as JSON, which is YAML too."""
        return msgspec.json.encode(self.content)


@dataclasses.dataclass(frozen=True, slots=True)
class MergePatch(_ContentPatch):
    """RFC 7386: fields to set, null for fields to remove; lists are replaced whole."""

    content: Mapping[str, Any]
    content_type: ClassVar[str] = "application/merge-patch+json"


@dataclasses.dataclass(frozen=True, slots=True)
class StrategicMergePatch(_ContentPatch):
    """A merge patch that merges lists by key; for built-in kinds only, never custom resources."""

    content: Mapping[str, Any]
    content_type: ClassVar[str] = "application/strategic-merge-patch+json"


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyPatch(_ContentPatch):
    """Server-side apply: the fields that the field manager wants, and no others.

    `content` is a dictionary or a Struct with `apiVersion`, `kind` and `metadata.name`. The field
    manager and `force` are parameters of the request.
    """

    content: Any
    content_type: ClassVar[str] = "application/apply-patch+yaml"


Patch: TypeAlias = JsonPatch | MergePatch | StrategicMergePatch | ApplyPatch
"""The body of a PATCH request, which says of which kind it is."""


def pointer(*parts: str | int) -> str:
    """Join path parts to an RFC 6901 pointer, escaping `~` and `/`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return what RFC 7386 makes of `target`; neither argument is changed.

    Unchanged parts are shared with `target`.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = apply_merge_patch(merged.get(name), value)
    return merged


def create_merge_patch(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the smallest patch that makes `new` of `old`; empty where nothing differs.

    A null in `new` cannot be said in a merge patch and counts as an absent field.
    """
    patch: JsonObject = {name: None for name in old if new.get(name) is None}
    for name, value in new.items():
        if value is not None and not same_json(old.get(name), value):
            patch[name] = _difference(old.get(name), value)
    return patch


def _difference(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return create_merge_patch(before, after)
    return after


def same_json(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; unlike `==` it tells `true` from `1`."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right) and isinstance(left, bool) is isinstance(right, bool)
