"""Make a decoded body fit its type: drop nulls and unknown fields, refuse wrong types.

What a Kubernetes server's decoder does, for Kubernetes' own kinds: a value of the wrong type is a
malformed request (400), an unknown field is dropped and reported, and the caller decides by
`fieldValidation` whether a report is an error, a warning or nothing. Scalars are taken as Go's decoder
takes them: numbers in range, times, quantities, base64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from devkube.apiserver.schema.types import Scalar, Type, TypeShape, walk
from kubeloop.objects.meta import JsonObject

_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?\Z")
_MICRO = re.compile(r"\.\d{6}(\D|\Z)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")
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


class FieldDecodeError(ValueError):
    """A value of the wrong type; the text is what Go's decoder would say."""


class TypeMismatch(ValueError):
    """A value of the wrong type, before it is known which struct it is in."""

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(path)
        self.path = path
        self.found = found
        self.wanted = wanted


def mismatch(value: Any, path: str, wanted: str) -> TypeMismatch:
    """Build the error of a value that is not of the type wanted."""
    names = {bool: "bool", str: "string", int: "number", float: "number", list: "array"}
    return TypeMismatch(path, names.get(type(value), "object"), wanted)


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise mismatch(value, path, "string")
    return value


def _integer(bits: int) -> Callable[[Any, str], int]:
    limit = 1 << (bits - 1)

    def check(value: Any, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mismatch(value, path, f"int{bits}")
        if int(value) != value or not -limit <= value < limit:
            raise TypeMismatch(path, f"number {json.dumps(value)}", f"int{bits}")
        return int(value)

    return check


def _float(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise mismatch(value, path, "float64")
    return value


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise mismatch(value, path, "bool")
    return value


def _bytes(value: Any, path: str) -> str:
    text = _string(value, path)
    trimmed = text.replace("\n", "").replace("\r", "")
    if len(trimmed) % 4 or not re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", trimmed):
        raise FieldDecodeError("illegal base64 data")
    return text


def _time(value: Any, path: str, layout: str = "2006-01-02T15:04:05Z07:00") -> str:
    text = _string(value, path)
    if not _TIME.match(text):
        raise FieldDecodeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"'
        )
    return text


def _micro_time(value: Any, path: str) -> str:
    layout = "2006-01-02T15:04:05.000000Z07:00"
    text = _time(value, path, layout)
    if not _MICRO.match(text, 19):
        raise FieldDecodeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{text[19:]}" as ".000000"'
        )
    return text


def _quantity(value: Any, path: str) -> str:
    text = json.dumps(value) if _is_number(value) else value
    if not isinstance(text, str) or not _QUANTITY.match(text):
        raise FieldDecodeError(
            "quantities must match the regular expression"
            " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    return text


_INT32 = _integer(32)


def _int_or_string(value: Any, path: str) -> int | str:
    return value if isinstance(value, str) else _INT32(value, path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_SCALARS: Mapping[Scalar, Callable[[Any, str], Any]] = {
    Scalar.STRING: _string,
    Scalar.INT32: _INT32,
    Scalar.INT64: _integer(64),
    Scalar.FLOAT: _float,
    Scalar.BOOLEAN: _boolean,
    Scalar.BYTES: _bytes,
    Scalar.TIME: _time,
    Scalar.MICRO_TIME: _micro_time,
    Scalar.QUANTITY: _quantity,
    Scalar.INT_OR_STRING: _int_or_string,
}


class Conformer:
    """One pass over one object; `unknown` collects the paths of unknown fields."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._owner = ""

    def conform(self, value: Any, kind: Type, path: str = "") -> Any:
        """Return a copy of `value` that fits `kind`. Raises DecodeError."""
        try:
            return self._fit(value, kind, path)
        except TypeMismatch as error:
            place = _INDEX.sub("", error.path)
            where = f"{self._owner}.{place}" if self._owner else place
            raise FieldDecodeError(
                f"json: cannot unmarshal {error.found} into Go struct field {where} of type {error.wanted}"
            ) from error

    def _fit(self, value: Any, kind: Type, path: str) -> Any:
        match kind.shape:
            case TypeShape.STRUCT:
                return self._struct(_expect(value, dict, kind, path), kind, path)
            case TypeShape.MAP:
                return self._map(_expect(value, dict, kind, path), kind, path)
            case TypeShape.LIST:
                return self._list(_expect(value, list, kind, path), kind, path)
            case TypeShape.SCALAR:
                return _SCALARS[kind.scalar](value, path)
            case TypeShape.ANY:
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
                result[name] = "" if kind.element.shape is TypeShape.SCALAR else {}
            else:
                result[name] = self._fit(child, kind.element, path)
        return result

    def _list(self, value: list[Any], kind: Type, path: str) -> list[Any]:
        element = kind.element
        assert element is not None
        return [
            self._fit(child, element, f"{path}[{index}]")
            for index, child in enumerate(value)
            if child is not None
        ]


def _vanishes(name: str, owner: Type, kind: Type) -> bool:
    """Whether Go leaves an empty map or list of this field out."""
    if kind.shape not in (TypeShape.MAP, TypeShape.LIST) or name in owner.required:
        return False
    return (owner.name.rpartition(".")[2], name) not in _STAY


def _expect(value: Any, wanted: type, kind: Type, path: str) -> Any:
    if isinstance(value, wanted):
        return value
    raise mismatch(value, path, _go_type(kind))


def _go_type(kind: Type) -> str:
    match kind.shape:
        case TypeShape.MAP:
            return f"map[string]{_go_type(kind.element)}" if kind.element else "map"
        case TypeShape.LIST:
            return f"[]{_go_type(kind.element)}" if kind.element else "[]"
        case TypeShape.SCALAR:
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


def required_fields(obj: Any, whole: Type, path: str) -> Iterable[str]:
    """Yield the paths of required fields that are missing or empty."""
    for value, kind, where in walk(obj, whole, path):
        if isinstance(value, dict) and kind.shape is TypeShape.STRUCT:
            for name in kind.required:
                if value.get(name) in (None, "", [], {}):
                    yield f"{where}.{name}" if where else name
