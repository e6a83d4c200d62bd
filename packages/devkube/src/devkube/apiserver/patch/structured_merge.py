"""Walks over typed values: which paths a value has, how two values differ, merging, removing.

The rules are those of Kubernetes' structured merge: structs and maps are granular unless atomic,
lists are atomic unless they are sets or keyed; what has no declared type is a granular map, an
atomic list or a scalar by what it looks like.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from devkube.apiserver.patch.managed_fields import FieldSet, key_element, show_path, value_element
from devkube.apiserver.schema.types import ANY, Relation, Type, TypeShape
from kubeloop.objects.meta import JsonObject

_ABSENT: Any = object()


class MergeError(ValueError):
    """A value that cannot be merged: a keyed list's item without keys, or twice the same key."""


def element_of(kind: Type, item: Any) -> str:
    """Return the path element of an item of a set or a keyed list."""
    if kind.relation is Relation.SET:
        return value_element(item)
    if not isinstance(item, dict):
        raise MergeError("associative list with keys may not have non-map elements")
    keys: JsonObject = {}
    for name in kind.keys:
        value = item.get(name)
        if value is None and kind.element is not None:
            field = kind.element.fields.get(name)
            value = field.default if field is not None else None
        if value is not None:
            keys[name] = value
    if not keys:
        raise MergeError(
            "associative list with keys has an element that omits all key fields"
            f" {', '.join(repr(name) for name in kind.keys)}"
        )
    return key_element(keys)


def is_leaf(kind: Type, *values: Any) -> bool:
    """Whether values of this type are owned as one."""
    shapes = [value for value in values if value is not _ABSENT and value is not None]
    if kind.shape is TypeShape.SCALAR or not shapes:
        return True
    if any(not isinstance(value, dict | list) for value in shapes):
        return True
    if any(isinstance(value, list) for value in shapes):
        return kind.shape is not TypeShape.LIST or kind.is_atomic
    return kind.is_atomic or kind.shape is TypeShape.LIST


def field_set(value: Any, kind: Type) -> FieldSet:
    """Return the paths that a value has, as its applier would own them."""
    result = FieldSet()
    _collect(value, kind, (), result)
    return result


def _collect(value: Any, kind: Type, path: tuple[str, ...], result: FieldSet) -> None:
    if is_leaf(kind, value):
        result.insert(path)
    elif isinstance(value, dict):
        for name, child in value.items():
            below = (*path, f"f:{name}")
            _collect(child, kind.child(name) or ANY, below, result)
            if child is None or child == {} or name not in kind.fields:
                result.insert(below)
    else:
        for item in value:
            below = (*path, element_of(kind, item))
            _collect(item, kind.element or ANY, below, result)
            result.insert(below)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """How a new value differs from an old one."""

    added: FieldSet = dataclasses.field(default_factory=FieldSet)
    modified: FieldSet = dataclasses.field(default_factory=FieldSet)
    removed: FieldSet = dataclasses.field(default_factory=FieldSet)

    def without(self, ignored: FieldSet) -> Comparison:
        """Leave out paths that no manager owns."""
        return self._each(lambda paths: paths.without(ignored))

    def only(self, element: str) -> Comparison:
        """Keep what begins with an element."""
        return self._each(lambda paths: paths.only(element))

    def _each(self, part: Callable[[FieldSet], FieldSet]) -> Comparison:
        return Comparison(part(self.added), part(self.modified), part(self.removed))


def compare(old: Any, new: Any, kind: Type) -> Comparison:
    """Compare two values of one type."""
    result = Comparison()
    _compare(old, new, kind, (), result)
    return result


def _compare(old: Any, new: Any, kind: Type, path: tuple[str, ...], result: Comparison) -> None:
    if is_leaf(kind, old, new) or (not _size(old) and not _size(new)):
        if old is not _ABSENT and new is not _ABSENT and old != new:
            result.modified.insert(path)
    elif isinstance(new if new is not _ABSENT else old, dict):
        for name, before, after in _zip(old, new):
            _compare(before, after, kind.child(name) or ANY, (*path, f"f:{name}"), result)
    else:
        for element, before, after in _zip(_by_element(old, kind), _by_element(new, kind)):
            _compare(before, after, kind.element or ANY, (*path, element), result)
    if old is _ABSENT:
        result.added.insert(path)
    elif new is _ABSENT:
        result.removed.insert(path)


def _size(value: Any) -> int:
    return 0 if value is _ABSENT or value is None else len(value)


def _zip(old: Any, new: Any) -> Iterable[tuple[str, Any, Any]]:
    before = old if isinstance(old, dict) else {}
    after = new if isinstance(new, dict) else {}
    for name in dict.fromkeys([*before, *after]):
        yield name, before.get(name, _ABSENT), after.get(name, _ABSENT)


def _by_element(value: Any, kind: Type) -> dict[str, Any]:
    items = value if isinstance(value, list) else []
    result: dict[str, Any] = {}
    for item in items:
        result.setdefault(element_of(kind, item), item)
    return result


def merge(live: Any, config: Any, kind: Type) -> Any:
    """Return the live value with the configuration merged into it."""
    if live is _ABSENT or is_leaf(kind, live, config):
        return config
    if isinstance(config, dict):
        merged = dict(live)
        for name, child in config.items():
            merged[name] = merge(live.get(name, _ABSENT), child, kind.child(name) or ANY)
        return merged
    return _merge_list(live, config, kind)


def _merge_list(live: list[Any], config: list[Any], kind: Type) -> list[Any]:
    _refuse_repeats(config, kind)
    before, after = _by_element(live, kind), _by_element(config, kind)
    return [
        merge(before.get(element, _ABSENT), after[element], kind.element or ANY)
        if element in after
        else before[element]
        for element in _merged_order(list(before), list(after))
    ]


def _refuse_repeats(config: list[Any], kind: Type) -> None:
    seen: set[str] = set()
    for item in config:
        element = element_of(kind, item)
        if element in seen:
            raise MergeError(f"duplicate entries for key {show_path([element])}")
        seen.add(element)


def _merged_order(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Order of a merged list: the configuration's order for its items, live ones where they were."""
    wanted = set(right)
    shared = [element for element in right if element in set(left)]
    result: list[str] = []
    done: set[str] = set()
    l_index = r_index = 0
    while l_index < len(left) or r_index < len(right):
        current = left[l_index] if l_index < len(left) else None
        if current is not None and current not in wanted:
            result.append(current)
            l_index += 1
        elif current is not None and (current in done or (shared and shared[0] != current)):
            l_index += 1
        elif r_index < len(right):
            element = right[r_index]
            r_index += 1
            result.append(element)
            done.add(element)
            if shared and shared[0] == element:
                shared.pop(0)
            if element == current:
                l_index += 1
    return result


def remove(value: Any, gone: FieldSet, kind: Type) -> Any:
    """Return a value without the paths of a set; None if nothing is left."""
    if is_leaf(kind, value) or not value:
        return value
    result: Any
    if isinstance(value, dict):
        result = {
            name: _removed_child(child, gone, f"f:{name}", kind.child(name) or ANY)
            for name, child in value.items()
            if f"f:{name}" not in gone.members
        }
    else:
        result = [
            _removed_child(item, gone, element_of(kind, item), kind.element or ANY)
            for item in value
            if element_of(kind, item) not in gone.members
        ]
    return result or None


def _removed_child(child: Any, gone: FieldSet, element: str, kind: Type) -> Any:
    below = gone.below(element)
    return child if below.is_empty else remove(child, below, kind)


def with_named_members(paths: FieldSet, kind: Type) -> FieldSet:
    """Return a set in which every struct field on the way is a member too."""
    result = FieldSet()
    result.members = set(paths.members)
    for element, child in paths.children.items():
        name = element[2:] if element.startswith("f:") else None
        below = (kind.child(name) if name is not None else kind.element) or ANY
        if name is not None and name in kind.fields:
            result.members.add(element)
        result.children[element] = with_named_members(child, below)
    return result
