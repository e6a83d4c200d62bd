"""Structural schemas: from a definition's OpenAPI to a type, and what makes a schema structural."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.custom.validation import INT_OR_STRING, SchemaError, Validator
from elasti.devcluster.apiserver.schema.types import (
    ANY,
    STRING,
    Field,
    Relation,
    Scalar,
    Shape,
    Type,
)
from elasti.devcluster.apiserver.status import forbidden, invalid, required, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elasti.devcluster.apiserver.status import FieldError
    from kubeloop.objects.meta import JsonObject

PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
RULES = "x-kubernetes-validations"
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_SCALARS = {
    "string": Scalar.STRING,
    "integer": Scalar.INT64,
    "number": Scalar.FLOAT,
    "boolean": Scalar.BOOLEAN,
}
_LIST_RELATIONS = {"atomic": Relation.ATOMIC, "set": Relation.SET, "map": Relation.KEYED}


def root_type(schema: JsonObject | None, metadata: Type) -> Type:
    """Return the type of a custom kind; without a schema everything is kept."""
    built = convert(schema) if schema is not None else Type(shape=Shape.STRUCT, element=ANY)
    standard = {
        "apiVersion": Field(type=STRING),
        "kind": Field(type=STRING),
        "metadata": Field(type=metadata),
    }
    return Type(
        shape=Shape.STRUCT,
        element=built.element,
        required=built.required,
        build=lambda: {**built.fields, **standard},
    )


def convert(schema: JsonObject) -> Type:
    """Return the type that a structural schema describes."""
    nullable = bool(schema.get("nullable"))
    if schema.get(INT_OR_STRING):
        return Type(shape=Shape.SCALAR, scalar=Scalar.INT_OR_STRING, nullable=nullable)
    match schema.get("type"):
        case "object":
            return _object(schema, nullable=nullable)
        case "array":
            items = schema.get("items")
            return Type(
                shape=Shape.LIST,
                element=convert(items) if isinstance(items, dict) else ANY,
                relation=_LIST_RELATIONS[schema.get("x-kubernetes-list-type", "atomic")],
                keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
                nullable=nullable,
            )
        case None | "":
            return ANY
        case scalar:
            return Type(shape=Shape.SCALAR, scalar=_SCALARS[scalar], nullable=nullable)


def _object(schema: JsonObject, *, nullable: bool) -> Type:
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    relation = Relation.ATOMIC if atomic else Relation.GRANULAR
    values = schema.get("additionalProperties")
    properties = schema.get("properties") or {}
    if values and not properties:
        element = convert(values) if isinstance(values, dict) else ANY
        return Type(shape=Shape.MAP, element=element, relation=relation, nullable=nullable)
    embedded = bool(schema.get(EMBEDDED))
    return Type(
        shape=Shape.STRUCT,
        element=ANY if schema.get(PRESERVE) else None,
        relation=relation,
        required=tuple(schema.get("required") or ()),
        nullable=nullable,
        embedded=embedded,
        build=functools.partial(_fields, properties, embedded=embedded),
    )


def _fields(properties: Mapping[str, JsonObject], *, embedded: bool) -> Mapping[str, Field]:
    fields = {
        name: Field(type=convert(schema), default=schema.get("default"))
        for name, schema in properties.items()
    }
    if embedded:
        fields = {
            "apiVersion": Field(type=STRING),
            "kind": Field(type=STRING),
            "metadata": Field(type=ANY),
        } | fields
    return fields


def check(schema: JsonObject, path: str) -> Iterator[FieldError]:
    """Return what keeps a schema from being structural, at the root."""
    if schema.get("type") != "object":
        if not schema.get("type"):
            yield required(f"{path}.type", "must not be empty at the root")
        else:
            yield invalid(f"{path}.type", schema.get("type"), "must be object at the root")
    yield from _check(schema, path, root=True)


def _check(schema: Any, path: str, *, root: bool = False) -> Iterator[FieldError]:
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    free = schema.get(INT_OR_STRING) or schema.get(PRESERVE)
    if not kind and not free and not root:
        yield required(f"{path}.type", "must not be empty for specified object fields")
    elif kind and kind not in _TYPES:
        yield unsupported(f"{path}.type", kind, _TYPES)
    yield from _check_extensions(schema, path)
    yield from _check_values(schema, path)
    yield from _check_children(schema, path)


def _check_values(schema: JsonObject, path: str) -> Iterator[FieldError]:
    """Judge the pattern and the default, which are only looked at when an object comes."""
    pattern = schema.get("pattern")
    plain = {name: value for name, value in schema.items() if name != "default"}
    if isinstance(pattern, str):
        try:
            Validator({"pattern": pattern})
        except SchemaError as error:
            text = f"must be a valid regular expression, but isn't: {error}"
            yield invalid(f"{path}.pattern", pattern, text)
            return
    if schema.get("default") is not None:
        try:
            findings = Validator(plain).check(schema["default"])
        except SchemaError:
            return  # the part that cannot be compiled is reported where it is
        yield from (dataclasses.replace(item, field=f"{path}.default") for item in findings)


def _check_extensions(schema: JsonObject, path: str) -> Iterator[FieldError]:
    if schema.get("uniqueItems"):
        yield forbidden(
            f"{path}.uniqueItems",
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        )
    if schema.get("additionalProperties") and schema.get("properties"):
        yield forbidden(
            f"{path}.additionalProperties",
            "additionalProperties and properties are mutual exclusive",
        )
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield required(f"{path}.items", "must be specified")
    relation = schema.get("x-kubernetes-list-type")
    if relation is not None and relation not in _LIST_RELATIONS:
        yield unsupported(f"{path}.x-kubernetes-list-type", relation, tuple(_LIST_RELATIONS))
    keys = schema.get("x-kubernetes-list-map-keys") or []
    if relation == "map" and not keys:
        yield required(
            f"{path}.x-kubernetes-list-map-keys",
            "must not be empty if x-kubernetes-list-type is map",
        )
    if keys and relation != "map":
        yield required(
            f"{path}.x-kubernetes-list-type",
            "must be map if x-kubernetes-list-map-keys is non-empty",
        )
    items = schema.get("items")
    if relation == "map" and not isinstance(items, dict):
        yield required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map")
        return
    known = items.get("properties") or {} if isinstance(items, dict) else {}
    if relation == "map" and any(key not in known for key in keys):
        yield invalid(
            f"{path}.x-kubernetes-list-map-keys",
            keys,
            "entries must all be names of item properties",
        )


def _check_children(schema: JsonObject, path: str) -> Iterator[FieldError]:
    properties = schema.get("properties")
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield from _check(child, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        yield from _check(schema["items"], f"{path}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _check(schema["additionalProperties"], f"{path}.additionalProperties")


def has_rules(schema: Any) -> bool:
    """Whether a schema has CEL rules anywhere."""
    if isinstance(schema, dict):
        return RULES in schema or any(has_rules(child) for child in schema.values())
    return isinstance(schema, list) and any(has_rules(child) for child in schema)
