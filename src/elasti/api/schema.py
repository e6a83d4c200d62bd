"""Structural schemas from the types: what `openAPIV3Schema` wants, and nothing else.

Kubernetes asks for inlined, typed schemas without unions; msgspec's own JSON Schema has references
and `anyOf`. So the types' descriptions are walked here, and whatever a structural schema cannot say
is refused loudly instead of being left out.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

Schema: TypeAlias = dict[str, Any]

_INT32_MAX = 2_147_483_647


def struct_schema(kind: type[msgspec.Struct]) -> Schema:
    """Return the schema of a Struct's fields, with defaults, limits and descriptions."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    schema: Schema = {"type": "object", "description": _first_sentence(kind)}
    schema["properties"] = {field.encode_name: _field_schema(field) for field in described.fields}
    required = [field.encode_name for field in described.fields if field.required]
    if required:
        schema["required"] = required
    return schema


def _field_schema(field: inspect.Field) -> Schema:
    schema = type_schema(field.type)
    default = field.default
    if default not in (msgspec.NODEFAULT, None, "", ()) and not isinstance(default, msgspec.Struct):
        schema["default"] = default
    return schema


def type_schema(described: inspect.Type) -> Schema:  # noqa: PLR0911  (one return a type)
    """Return the schema of one described type; raises TypeError for what cannot be structural."""
    match described:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return type_schema(inner) | (extra or {})
        case inspect.StrType():
            return {"type": "string"} | _limits(
                described, minLength="min_length", maxLength="max_length", pattern="pattern"
            )
        case inspect.IntType():
            limits = _limits(described, minimum="ge", maximum="le")
            if limits.get("maximum") == _INT32_MAX:
                del limits["maximum"]
            return {"type": "integer", "format": "int32"} | limits
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.LiteralType(values=values):
            kind = "integer" if isinstance(values[0], int) else "string"
            return {"type": kind, "enum": sorted(values) if kind == "integer" else list(values)}
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            limits = _limits(described, minItems="min_length", maxItems="max_length")
            return {"type": "array", "items": type_schema(item)} | limits
        case inspect.StructType(cls=cls):
            return struct_schema(cls)
        case inspect.DictType():
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.UnionType(types=types):
            return _optional(types)
    raise TypeError(f"a structural schema cannot describe {described!r}")


def _optional(types: tuple[inspect.Type, ...]) -> Schema:
    present = [item for item in types if not isinstance(item, inspect.NoneType)]
    if len(present) != 1:
        raise TypeError(f"a structural schema has no unions: {types!r}")
    return type_schema(present[0])


def _limits(described: inspect.Type, **names: str) -> Schema:
    values = {ours: getattr(described, theirs, None) for ours, theirs in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def _first_sentence(kind: type[Any]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
