"""CustomResourceDefinitions as objects: defaults, validation, what is fixed, structural schemas.

A structural schema is converted to a type; what keeps a schema from being structural is a finding of
the definition's validation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from devkube.apiserver.crd.validation import INT_OR_STRING, SchemaError, SchemaValidator
from devkube.apiserver.schema.types import ANY, STRING, Field, Relation, Scalar, Type, TypeShape
from devkube.apiserver.status import FieldError, invalid, required, unsupported
from devkube.apiserver.tables import printers
from devkube.apiserver.validation import names
from devkube.apiserver.validation.strategy import KindRules, fixed
from kubeloop.objects.meta import JsonObject

PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
VALIDATIONS = "x-kubernetes-validations"
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_SCALARS = {
    "string": Scalar.STRING,
    "integer": Scalar.INT64,
    "number": Scalar.FLOAT,
    "boolean": Scalar.BOOLEAN,
}
_LIST_RELATIONS = {"set": Relation.SET, "map": Relation.KEYED}
_SCOPES = ("Cluster", "Namespaced")
_SIMPLE = "must be a simple json path starting with ."


def root_type(schema: JsonObject | None, metadata: Type) -> Type:
    """Return the type of a custom kind; without a schema everything is kept."""
    built = convert(schema) if schema is not None else Type(shape=TypeShape.STRUCT, element=ANY)
    standard = {
        "apiVersion": Field(type=STRING),
        "kind": Field(type=STRING),
        "metadata": Field(type=metadata),
    }
    return Type(
        shape=TypeShape.STRUCT,
        element=built.element,
        required=built.required,
        build=lambda: {**built.fields, **standard},
    )


def convert(schema: JsonObject) -> Type:
    """Return the type that a structural schema describes."""
    nullable = bool(schema.get("nullable"))
    if schema.get(INT_OR_STRING):
        return Type(shape=TypeShape.SCALAR, scalar=Scalar.INT_OR_STRING, nullable=nullable)
    match schema.get("type"):
        case "object":
            return _object(schema, nullable=nullable)
        case "array":
            items = schema.get("items")
            return Type(
                shape=TypeShape.LIST,
                element=convert(items) if isinstance(items, dict) else ANY,
                relation=_LIST_RELATIONS.get(
                    schema.get("x-kubernetes-list-type", ""), Relation.ATOMIC
                ),
                keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()),
                nullable=nullable,
            )
        case None | "":
            return ANY
        case scalar:
            return Type(shape=TypeShape.SCALAR, scalar=_SCALARS[scalar], nullable=nullable)


def _object(schema: JsonObject, *, nullable: bool) -> Type:
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    relation = Relation.ATOMIC if atomic else Relation.GRANULAR
    values = schema.get("additionalProperties")
    properties = schema.get("properties") or {}
    if values and not properties:
        element = convert(values) if isinstance(values, dict) else ANY
        return Type(shape=TypeShape.MAP, element=element, relation=relation, nullable=nullable)
    embedded = bool(schema.get(EMBEDDED))
    return Type(
        shape=TypeShape.STRUCT,
        element=ANY if schema.get(PRESERVE) else None,
        relation=relation,
        required=tuple(schema.get("required") or ()),
        nullable=nullable,
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


def check_structural(schema: JsonObject, path: str) -> Iterator[FieldError]:
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
        return VALIDATIONS in schema or any(has_rules(child) for child in schema.values())
    return isinstance(schema, list) and any(has_rules(child) for child in schema)


def default_definition(obj: JsonObject) -> None:
    """Fill in names and conversion."""
    spec = obj.setdefault("spec", {})
    named = spec.setdefault("names", {})
    kind = named.get("kind", "")
    if kind:
        named.setdefault("singular", kind.lower())
        named.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def validate_definition(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a definition."""
    spec = obj.get("spec") or {}
    named = spec.get("names") or {}
    expected = f"{named.get('plural', '')}.{spec.get('group', '')}"
    name = obj["metadata"].get("name", "")
    if name != expected:
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    yield from _validate_names(spec, named)
    if spec.get("scope") not in _SCOPES:
        yield unsupported("spec.scope", spec.get("scope", ""), _SCOPES)
    yield from _validate_conversion(spec)
    versions = spec.get("versions") or []
    stored = [item for item in versions if item.get("storage")]
    if versions and len(stored) != 1:
        text = "must have exactly one version marked as storage version"
        yield invalid("spec.versions", versions, text)
    seen: set[str] = set()
    for index, version in enumerate(versions):
        # The words of a single version are those of the definition as a whole.
        path = "spec" if len(versions) == 1 else f"spec.versions[{index}]"
        yield from _validate_version(version, path)
        if version.get("name") in seen:
            yield invalid("spec.versions", version.get("name"), "must contain unique version names")
        seen.add(version.get("name", ""))


def _validate_conversion(spec: JsonObject) -> Iterator[FieldError]:
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        text = "this development server converts nothing: use None, or versions with one schema"
        yield invalid("spec.conversion.strategy", strategy, text)
    if spec.get("preserveUnknownFields"):
        yield invalid("spec.preserveUnknownFields", spec["preserveUnknownFields"], "must be false")


def _validate_names(spec: JsonObject, named: JsonObject) -> Iterator[FieldError]:
    group = spec.get("group", "")
    if group:
        yield from (invalid("spec.group", group, text) for text in names.dns_subdomain(group))
        if "." not in group:
            yield invalid("spec.group", group, "should be a domain with at least one dot")
    for field in ("plural", "singular", "kind"):
        value = named.get(field, "").lower()
        if value:
            yield from (
                invalid(f"spec.names.{field}", value, t) for t in names.dns_label_1035(value)
            )


def _validate_version(version: JsonObject, path: str) -> Iterator[FieldError]:
    name = version.get("name", "")
    if name:
        yield from (invalid(f"{path}.name", name, text) for text in names.dns_label_1035(name))
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        yield required("spec.versions[0].schema.openAPIV3Schema")
    else:
        part = "validation" if path == "spec" else "schema"
        where = f"{path}.{part}.openAPIV3Schema"
        yield from check_structural(schema, where)
        try:
            SchemaValidator(schema)
        except SchemaError as error:
            yield invalid(where, schema, f"cannot be compiled: {error}")
    for index, column in enumerate(version.get("additionalPrinterColumns") or []):
        yield from _validate_column(column, f"{path}.additionalPrinterColumns[{index}]")


def _validate_column(column: JsonObject, path: str) -> Iterator[FieldError]:
    text = column.get("jsonPath", "")
    try:
        printers.parse_path(text)
    except ValueError:
        yield invalid(f"{path}.JSONPath", text, _SIMPLE)


DEFINITION_RULES = KindRules(
    default=default_definition,
    validate=validate_definition,
    validate_update=fixed("spec.group", "spec.scope", "spec.names.plural", "spec.names.kind"),
    generation=True,
    blind_update=False,
)
