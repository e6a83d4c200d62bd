"""Scalar values as Go's decoder takes them: numbers in range, times, quantities, base64."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.schema.types import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elasti.devcluster.apiserver.schema.types import Type

_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?\Z")
_MICRO = re.compile(r"\.\d{6}(\D|\Z)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")


class DecodeError(ValueError):
    """A value of the wrong type; the text is what Go's decoder would say."""


class Mismatch(ValueError):
    """A value of the wrong type, before it is known which struct it is in."""

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(path)
        self.path = path
        self.found = found
        self.wanted = wanted


def mismatch(value: Any, path: str, wanted: str) -> Mismatch:
    """Build the error of a value that is not of the type wanted."""
    return Mismatch(path, _json_name(value), wanted)


def _json_name(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def read_scalar(value: Any, kind: Type, path: str) -> Any:
    """Return a scalar as its type has it. Raises Mismatch, or DecodeError for malformed text."""
    return _SCALARS[kind.scalar](value, path)


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
            raise Mismatch(path, f"number {json.dumps(value)}", f"int{bits}")
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
        raise DecodeError(f"illegal base64 data at input byte {_first_illegal(text)}")
    return text


def _first_illegal(text: str) -> int:
    for index, char in enumerate(text):
        if not re.match(r"[A-Za-z0-9+/=\r\n]", char):
            return index
    return max(len(text) - len(text) % 4, 0)


def _time(value: Any, path: str, layout: str = "2006-01-02T15:04:05Z07:00") -> str:
    text = _string(value, path)
    if not _TIME.match(text):
        raise DecodeError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    return text


def _micro_time(value: Any, path: str) -> str:
    layout = "2006-01-02T15:04:05.000000Z07:00"
    text = _time(value, path, layout)
    if not _MICRO.match(text, 19):
        raise DecodeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{text[19:]}" as ".000000"'
        )
    return text


def _quantity(value: Any, path: str) -> str:
    text = json.dumps(value) if _is_number(value) else value
    if not isinstance(text, str) or not _QUANTITY.match(text):
        raise DecodeError(
            "quantities must match the regular expression"
            " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    return text


_INT32 = _integer(32)


def _int_or_string(value: Any, path: str) -> int | str:
    if isinstance(value, str):
        return value
    return _INT32(value, path)


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
