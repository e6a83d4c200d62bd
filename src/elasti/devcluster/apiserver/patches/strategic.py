"""Strategic merge patch: a merge patch that knows which lists have keys.

Directives: `$patch` (replace, delete, merge), `$deleteFromPrimitiveList/…`, `$setElementOrder/…`,
`$retainKeys`. Lists without the merge strategy are replaced, as are types that are not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.schema.types import ANY, Field, Shape, Type

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"
_UNTYPED = Field(type=ANY)


def strategic_patch(target: JsonObject, patch: JsonObject, kind: Type) -> JsonObject:
    """Return the target with a patch applied."""
    return _patch_map(target, patch, kind)


def _bad(why: str) -> status.StatusError:
    return status.bad_request(f"invalid strategic merge patch: {why}")


def _patch_map(target: JsonObject, patch: JsonObject, kind: Type) -> JsonObject:
    match patch.get(_PATCH):
        case "replace":
            return {name: value for name, value in patch.items() if name != _PATCH}
        case "delete":
            return {}
        case None | "merge":
            pass
        case other:
            raise _bad(f"unknown {_PATCH} type {other!r}")
    result = dict(target)
    _retain(result, patch)
    for name, value in patch.items():
        if name in (_PATCH, _RETAIN) or name.startswith((_ORDER, _DELETE)):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _patch_value(result.get(name), value, _field(kind, name), patch, name)
    _apply_list_directives(result, patch, kind)
    return result


def _field(kind: Type, name: str) -> Field:
    if kind.shape is Shape.STRUCT and name in kind.fields:
        return kind.fields[name]
    return Field(type=kind.element or ANY) if kind.shape is Shape.MAP else _UNTYPED


def _retain(result: JsonObject, patch: JsonObject) -> None:
    keys = patch.get(_RETAIN)
    if keys is None:
        return
    if not isinstance(keys, list):
        raise _bad(f"{_RETAIN} must be a list")
    for name in [name for name in result if name not in keys]:
        del result[name]


def _patch_value(old: Any, new: Any, field: Field, patch: JsonObject, name: str) -> Any:
    if isinstance(new, dict):
        return _patch_map(old if isinstance(old, dict) else {}, new, field.type)
    if isinstance(new, list) and "merge" in field.strategies:
        return _merge_list(old if isinstance(old, list) else [], new, field, patch, name)
    if isinstance(new, list):
        return [_clean(item) for item in new]
    return new


def _clean(value: Any) -> Any:
    """Drop directives from what is taken as it is."""
    if isinstance(value, dict):
        return {
            name: _clean(child)
            for name, child in value.items()
            if not name.startswith("$") and child is not None
        }
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _merge_list(
    old: list[Any], new: list[Any], field: Field, patch: JsonObject, name: str
) -> list[Any]:
    if not field.merge_key:
        merged = [*old, *(item for item in new if item not in old)]
        return _ordered(merged, new, "", old)
    if not all(isinstance(item, dict) for item in new):
        raise _bad(f"items of {name} must be objects")
    if any(item.get(_PATCH) == "replace" for item in new):
        return [_clean(item) for item in new if item.get(_PATCH) != "replace" or len(item) > 1]
    result = list(old)
    for item in new:
        _merge_item(result, item, field)
    order = patch.get(_ORDER + name)
    return _ordered(result, order if isinstance(order, list) else new, field.merge_key, old)


def _merge_item(result: list[Any], item: JsonObject, field: Field) -> None:
    key = field.merge_key
    if key not in item:
        raise _bad(f"map: {item} does not contain declared merge key: {key}")
    places = [
        index
        for index, candidate in enumerate(result)
        if isinstance(candidate, dict) and candidate.get(key) == item[key]
    ]
    element = field.type.element or ANY
    if item.get(_PATCH) == "delete":
        for index in reversed(places):
            del result[index]
    elif places:
        result[places[0]] = _patch_map(result[places[0]], item, element)
    else:
        result.append(_patch_map({}, item, element))


def _apply_list_directives(result: JsonObject, patch: JsonObject, kind: Type) -> None:
    for name, value in patch.items():
        target = name.partition("/")[2]
        if name.startswith((_DELETE, _ORDER)) and not isinstance(value, list):
            raise _bad(f"{name} must be a list")
        if not isinstance(result.get(target), list):
            continue
        if name.startswith(_DELETE):
            result[target] = [item for item in result[target] if item not in value]
        elif name.startswith(_ORDER):
            result[target] = _ordered(result[target], value, _field(kind, target).merge_key)


def _ordered(
    items: list[Any], order: list[Any], key: str, live: list[Any] | None = None
) -> list[Any]:
    """Put the items that the patch names in its order, the others where the live list has them.

    An item that is new to the live list goes before those that it cannot be compared with.
    """

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    places = [identity(item) for item in (items if live is None else live)]
    named = sorted(
        (item for item in items if identity(item) in wanted),
        key=lambda item: wanted.index(identity(item)),
    )
    others = [item for item in items if identity(item) not in wanted]
    result: list[Any] = []
    while named and others:
        left, right = identity(others[0]), identity(named[0])
        first = left in places and right in places and places.index(left) < places.index(right)
        result.append(others.pop(0) if first else named.pop(0))
    return result + others + named
