"""Patches as values: what to send, and with which content type.

Also RFC 7386 (merge patches) and the making of RFC 6902 (JSON patches) as pure functions. Nothing here
sends anything.
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
    """Return the smallest patch from `old` to `new`; empty if nothing differs.

    A merge patch cannot express a null in `new`: it counts as an absent field.
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


def create_json_patch(old: Any, new: Any, path: str = "") -> list[JsonObject]:
    """Return the operations of RFC 6902 that make `new` of `old`, which is at `path`; none if nothing differs."""
    if same_json(old, new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        operations: list[JsonObject] = [
            {"op": "remove", "path": path + pointer(name)} for name in old if name not in new
        ]
        for name, value in new.items():
            place = path + pointer(name)
            if name in old:
                operations += create_json_patch(old[name], value, place)
            else:
                operations.append({"op": "add", "path": place, "value": value})
        return operations
    if isinstance(old, list) and isinstance(new, list):
        return _item_operations(old, new, path)
    return [{"op": "replace", "path": path, "value": new}]


def _item_operations(old: list[Any], new: list[Any], path: str) -> list[JsonObject]:
    """Keep what both lists begin and end with; replace, remove or add in between."""
    shorter, start, end = min(len(old), len(new)), 0, 0
    while start < shorter and same_json(old[start], new[start]):
        start += 1
    while end < shorter - start and same_json(old[-1 - end], new[-1 - end]):
        end += 1
    left, right = len(old) - end, len(new) - end
    operations: list[JsonObject] = []
    for place in range(start, min(left, right)):
        operations += create_json_patch(old[place], new[place], path + pointer(place))
    for place in range(left - 1, right - 1, -1):
        operations.append({"op": "remove", "path": path + pointer(place)})
    for place in range(left, right):
        operations.append({"op": "add", "path": path + pointer(place), "value": new[place]})
    return operations


def same_json(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal; unlike for `==`, `true` differs from `1`."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right) and isinstance(left, bool) is isinstance(right, bool)
