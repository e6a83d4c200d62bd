"""Shape a custom object by its type: prune what is not declared, fill in defaults, find repeats."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.ownership.walk import MergeError, element_of
from elasti.devcluster.apiserver.schema.types import Relation, Shape, Type
from elasti.devcluster.apiserver.status import duplicate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.status import FieldError


def prune(value: Any, kind: Type, path: str, unknown: list[str]) -> Any:
    """Return a copy without undeclared fields; their paths go to `unknown`."""
    if isinstance(value, dict) and kind.shape is Shape.STRUCT:
        result = {}
        for name, child in value.items():
            field = kind.fields.get(name)
            where = f"{path}.{name}" if path else name
            if field is not None:
                result[name] = prune(child, field.type, where, unknown)
            elif kind.element is not None:
                result[name] = child
            else:
                unknown.append(where)
        return result
    element = kind.element
    if isinstance(value, dict) and kind.shape is Shape.MAP and element is not None:
        return {
            name: prune(child, element, f"{path}.{name}", unknown) for name, child in value.items()
        }
    if isinstance(value, list) and kind.shape is Shape.LIST and element is not None:
        return [
            prune(item, element, f"{path}[{index}]", unknown) for index, item in enumerate(value)
        ]
    return value


def fill(value: Any, kind: Type) -> None:
    """Fill in declared defaults; a null that the schema does not allow counts as absent."""
    if isinstance(value, dict) and kind.shape is Shape.STRUCT:
        for name, field in kind.fields.items():
            if name in value and value[name] is None and not _takes_null(field.type):
                del value[name]
            if name not in value and field.default is not None:
                value[name] = copy.deepcopy(field.default)
            if name in value:
                fill(value[name], field.type)
    elif isinstance(value, dict) and kind.shape is Shape.MAP and kind.element is not None:
        for child in value.values():
            fill(child, kind.element)
    elif isinstance(value, list) and kind.shape is Shape.LIST and kind.element is not None:
        for child in value:
            fill(child, kind.element)


def _takes_null(kind: Type) -> bool:
    return kind.nullable or kind.shape is Shape.ANY


def repeats(value: Any, kind: Type, path: str) -> Iterator[FieldError]:
    """Yield items that occur twice in sets and keyed lists."""
    if isinstance(value, dict) and kind.shape in (Shape.STRUCT, Shape.MAP):
        for name, child in value.items():
            below = kind.child(name)
            if below is not None:
                yield from repeats(child, below, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and kind.shape is Shape.LIST:
        yield from _repeated_items(value, kind, path)
        if kind.element is not None:
            for index, child in enumerate(value):
                yield from repeats(child, kind.element, f"{path}[{index}]")


def _repeated_items(value: list[Any], kind: Type, path: str) -> Iterator[FieldError]:
    if kind.relation not in (Relation.SET, Relation.KEYED):
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        try:
            element = element_of(kind, item)
        except MergeError:
            continue  # the schema's own validation says what is missing
        if element in seen:
            shown = (
                item if kind.relation is Relation.SET else {key: item.get(key) for key in kind.keys}
            )
            yield duplicate(f"{path}[{index}]", shown)
        seen.add(element)
