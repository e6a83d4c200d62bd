"""Custom objects by their schema: pruned, defaulted, validated in the API server's words.

The schema is compiled once for jsonschema-rs; its findings are translated. Kubernetes' additions
(nullable, int-or-string) are written as what JSON Schema has for them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs

from devkube.apiserver.patch.structured_merge import MergeError, element_of
from devkube.apiserver.schema.types import Relation, Type, TypeShape, walk
from devkube.apiserver.status import (
    FieldError,
    FieldErrorType,
    duplicate,
    invalid,
    required,
    unsupported,
)
from kubeloop.objects.meta import JsonObject

INT_OR_STRING = "x-kubernetes-int-or-string"
_KEPT = (
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
)


class SchemaError(ValueError):
    """A schema that cannot be compiled, for example with a malformed pattern."""


class SchemaValidator:
    """A compiled schema."""

    def __init__(self, schema: JsonObject) -> None:
        try:
            self._compiled = jsonschema_rs.Draft4Validator(
                to_json_schema(schema), validate_formats=True
            )
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise SchemaError(str(error).splitlines()[0]) from error

    def check(self, obj: Any) -> list[FieldError]:
        """Return every finding."""
        if self._compiled.is_valid(obj):
            return []
        findings = [item for error in self._compiled.iter_errors(obj) for item in _translate(error)]
        return sorted(findings, key=lambda finding: finding.field)


def to_json_schema(schema: JsonObject) -> JsonObject:
    """Write an OpenAPI schema as JSON Schema draft 4."""
    result: JsonObject = {name: schema[name] for name in _KEPT if schema.get(name) is not None}
    for name in ("properties", "patternProperties"):
        if isinstance(schema.get(name), dict):
            result[name] = {key: to_json_schema(child) for key, child in schema[name].items()}
    for name in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(name), dict):
            result[name] = to_json_schema(schema[name])
    for name in ("allOf", "anyOf", "oneOf"):
        if schema.get(name):
            result[name] = [to_json_schema(child) for child in schema[name]]
    if schema.get(INT_OR_STRING):
        result["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in result:
        kinds = result["type"] if isinstance(result["type"], list) else [result["type"]]
        result["type"] = [*kinds, "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
    return result


def _translate(error: Any) -> Iterator[FieldError]:
    path = field_path(error.instance_path)
    facts = error.kind.as_dict()
    translate = _WORDS.get(error.kind.name)
    if translate is None:
        yield invalid(path, error.instance, error.message)
    else:
        yield translate(path, error.instance, facts)


def field_path(path: Sequence[str | int]) -> str:
    """Write a path as the API server does: `spec.items[0].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "<nil>"


def _type(path: str, value: Any, facts: JsonObject) -> FieldError:
    kinds = [kind for kind in facts["types"] if kind != "null"]
    wanted = "integer,string" if len(kinds) > 1 else kinds[0]
    return FieldError(
        FieldErrorType.TYPE_INVALID,
        path,
        json_type(value),
        f'{path} in body must be of type {wanted}: "{json_type(value)}"',
    )


def json_type(value: Any) -> str:
    """Name a value's JSON type."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _says(text: str) -> Callable[[str, Any, JsonObject], FieldError]:
    def translate(path: str, value: Any, facts: JsonObject) -> FieldError:
        return invalid(path, value, f"{path} in body {text.format(value=value, **facts)}")

    return translate


def _missing(path: str, value: Any, facts: JsonObject) -> FieldError:
    name = facts["property"]
    return required(name if path == "<nil>" else f"{path}.{name}")


def _enum(path: str, value: Any, facts: JsonObject) -> FieldError:
    return unsupported(
        path, value, [str(option) for option in facts["options"] if option is not None]
    )


def _too_long(path: str, value: Any, facts: JsonObject) -> FieldError:
    return FieldError(
        FieldErrorType.TOO_LONG, path, "", f"may not be more than {facts['limit']} bytes"
    )


def _too_many(path: str, value: Any, facts: JsonObject) -> FieldError:
    return FieldError(
        FieldErrorType.TOO_MANY, path, len(value), f"must have at most {facts['limit']} items"
    )


_WORDS: Mapping[str, Callable[[str, Any, JsonObject], FieldError]] = {
    "type": _type,
    "required": _missing,
    "enum": _enum,
    "format": _says('must be of type {format}: "{value}"'),
    "maxLength": _too_long,
    "maxItems": _too_many,
    "minimum": _says("should be greater than or equal to {limit}"),
    "exclusiveMinimum": _says("should be greater than {limit}"),
    "maximum": _says("should be less than or equal to {limit}"),
    "exclusiveMaximum": _says("should be less than {limit}"),
    "multipleOf": _says("should be a multiple of {multiple_of}"),
    "minLength": _says("should be at least {limit} chars long"),
    "minItems": _says("should have at least {limit} items"),
    "minProperties": _says("should have at least {limit} properties"),
    "maxProperties": _says("should have at most {limit} properties"),
    "pattern": _says("should match '{pattern}'"),
    "anyOf": _says("must validate at least one schema (anyOf)"),
    "oneOf": _says("must validate one and only one schema (oneOf)"),
    "not": _says("must not validate the schema (not)"),
}


def prune(value: Any, kind: Type, path: str, unknown: list[str]) -> Any:
    """Return a copy without undeclared fields; their paths go to `unknown`."""
    if isinstance(value, dict) and kind.shape is TypeShape.STRUCT:
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
    if isinstance(value, dict) and kind.shape is TypeShape.MAP and element is not None:
        return {
            name: prune(child, element, f"{path}.{name}", unknown) for name, child in value.items()
        }
    if isinstance(value, list) and kind.shape is TypeShape.LIST and element is not None:
        return [
            prune(item, element, f"{path}[{index}]", unknown) for index, item in enumerate(value)
        ]
    return value


def fill(value: Any, kind: Type) -> None:
    """Fill in declared defaults; a null that the schema does not allow counts as absent."""
    if isinstance(value, dict) and kind.shape is TypeShape.STRUCT:
        for name, field in kind.fields.items():
            if name in value and value[name] is None and not _takes_null(field.type):
                del value[name]
            if name not in value and field.default is not None:
                value[name] = copy.deepcopy(field.default)
            if name in value:
                fill(value[name], field.type)
    elif isinstance(value, dict) and kind.shape is TypeShape.MAP and kind.element is not None:
        for child in value.values():
            fill(child, kind.element)
    elif isinstance(value, list) and kind.shape is TypeShape.LIST and kind.element is not None:
        for child in value:
            fill(child, kind.element)


def _takes_null(kind: Type) -> bool:
    return kind.nullable or kind.shape is TypeShape.ANY


def repeats(obj: Any, whole: Type) -> Iterator[FieldError]:
    """Yield items that occur twice in sets and keyed lists."""
    for value, kind, path in walk(obj, whole, ""):
        if isinstance(value, list) and kind.shape is TypeShape.LIST:
            yield from _repeated_items(value, kind, path)


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
