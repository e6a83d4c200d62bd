"""Make a decoded body fit its type: drop nulls and unknown fields, refuse wrong types.

What a Kubernetes server's decoder does, for Kubernetes' own kinds: a value of the wrong type is a
malformed request (400), an unknown field is dropped and reported, and the caller decides by
`fieldValidation` whether a report is an error, a warning or nothing.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.schema.scalars import DecodeError, Mismatch, mismatch, read_scalar
from elasti.devcluster.apiserver.schema.types import Scalar, Shape, Type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.objects.meta import JsonObject

# Lists that are optional and yet always written.
_STAY = frozenset(
    {
        ("ClusterRole", "rules"),
        ("EndpointSlice", "endpoints"),
        ("EndpointSlice", "ports"),
        ("HorizontalPodAutoscalerStatus", "currentMetrics"),
        ("ProjectedVolumeSource", "sources"),
        ("Role", "rules"),
        ("TokenRequestSpec", "audiences"),
    }
)
_INDEX = re.compile(r"\[\d+\]")


class Conformer:
    """One pass over one object; `unknown` collects the paths of unknown fields."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._owner = ""

    def conform(self, value: Any, kind: Type, path: str = "") -> Any:
        """Return a copy of `value` that fits `kind`. Raises DecodeError."""
        try:
            return self._fit(value, kind, path)
        except Mismatch as error:
            place = _INDEX.sub("", error.path)
            where = f"{self._owner}.{place}" if self._owner else place
            raise DecodeError(
                f"json: cannot unmarshal {error.found} into Go struct field {where} of type {error.wanted}"
            ) from error

    def _fit(self, value: Any, kind: Type, path: str) -> Any:
        match kind.shape:
            case Shape.STRUCT:
                return self._struct(_expect(value, dict, kind, path), kind, path)
            case Shape.MAP:
                return self._map(_expect(value, dict, kind, path), kind, path)
            case Shape.LIST:
                return self._list(_expect(value, list, kind, path), kind, path)
            case Shape.SCALAR:
                return read_scalar(value, kind, path)
            case Shape.ANY:
                return value

    def _struct(self, value: JsonObject, kind: Type, path: str) -> JsonObject:
        result = {}
        fields = kind.fields
        for name, child in value.items():
            field = fields.get(name)
            where = f"{path}.{name}" if path else name
            if field is None:
                self.unknown.append(where)
            elif child is not None:
                self._owner = kind.name.rpartition(".")[2]
                fitted = self._fit(child, field.type, where)
                if fitted or not _vanishes(name, kind, field.type):
                    result[name] = fitted
        return result

    def _map(self, value: JsonObject, kind: Type, path: str) -> JsonObject:
        assert kind.element is not None
        result = {}
        for name, child in value.items():
            if child is None:
                # Go's zero value of the element: only strings matter in practice.
                result[name] = "" if kind.element.shape is Shape.SCALAR else {}
            else:
                result[name] = self._fit(child, kind.element, path)
        return result

    def _list(self, value: list[Any], kind: Type, path: str) -> list[Any]:
        element = kind.element
        assert element is not None
        return [
            self._fit({} if child is None else child, element, f"{path}[{index}]")
            if child is not None or element.shape is Shape.STRUCT
            else _zero(element)
            for index, child in enumerate(value)
        ]


def _vanishes(name: str, owner: Type, kind: Type) -> bool:
    """Whether Go leaves an empty map or list of this field out."""
    if kind.shape not in (Shape.MAP, Shape.LIST) or name in owner.required:
        return False
    return (owner.name.rpartition(".")[2], name) not in _STAY


def _zero(kind: Type) -> Any:
    match kind.shape:
        case Shape.LIST:
            return []
        case Shape.SCALAR if kind.scalar in (Scalar.INT32, Scalar.INT64, Scalar.FLOAT):
            return 0
        case Shape.SCALAR if kind.scalar is Scalar.BOOLEAN:
            return False
        case Shape.SCALAR:
            return ""
        case _:
            return {}


def _expect(value: Any, wanted: type, kind: Type, path: str) -> Any:
    if isinstance(value, wanted):
        return value
    raise mismatch(value, path, _go_type(kind))


def _go_type(kind: Type) -> str:
    match kind.shape:
        case Shape.MAP:
            return f"map[string]{_go_type(kind.element)}" if kind.element else "map"
        case Shape.LIST:
            return f"[]{_go_type(kind.element)}" if kind.element else "[]"
        case Shape.SCALAR:
            return kind.scalar.value
        case _:
            return kind.name


def duplicate_fields(body: bytes) -> list[str]:
    """Return the paths of fields that a JSON body gives more than once; the last one counts."""
    found: list[str] = []
    _walk(json.loads(body, object_pairs_hook=_Pairs), "", found)
    return list(dict.fromkeys(found))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its repetitions."""


def _walk(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen = set()
        for name, child in value:
            where = f"{path}.{name}" if path else name
            if name in seen:
                found.append(where)
            seen.add(name)
            _walk(child, where, found)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _walk(child, f"{path}[{index}]", found)


def required_fields(value: Any, kind: Type, path: str) -> Iterable[str]:
    """Yield the paths of fields that the type requires and the value lacks."""
    if kind.shape is Shape.STRUCT and isinstance(value, dict):
        for name in kind.required:
            if value.get(name) in (None, "", [], {}):
                yield f"{path}.{name}" if path else name
        for name, child in value.items():
            field = kind.fields.get(name)
            if field is not None:
                yield from required_fields(child, field.type, f"{path}.{name}" if path else name)
    elif kind.shape is Shape.LIST and isinstance(value, list) and kind.element is not None:
        for index, child in enumerate(value):
            yield from required_fields(child, kind.element, f"{path}[{index}]")
