"""The CustomResourceDefinition, generated from the types.

Kubernetes asks for structural schemas: inlined, typed, without unions. msgspec's own JSON
Schema has references and `anyOf`, so the types' descriptions are walked here, and whatever a
structural schema cannot say is refused with a TypeError instead of being left out. What one
field's schema cannot say about another is in the CEL rules below.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from elasti.api.names import API_VERSION, GROUP, KIND, PLURAL, VERSION
from elasti.api.types import ElastiServiceSpec, ElastiServiceStatus
from elasti.triggers.registry import trigger_types

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


def type_schema(described: inspect.Type) -> Schema:  # noqa: C901, PLR0911  (one case a type)
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
        case inspect.FloatType():
            return {"type": "number"}
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [member.value for member in cls]}
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


_COLUMNS = (
    ("State", "string", ".status.phase", 0),
    ("Why", "string", '.status.conditions[?(@.type=="MaySleep")].reason', 0),
    ("Since", "date", ".status.since", 0),
    ("Target", "string", ".spec.scaleTargetRef.name", 0),
    ("Replicas", "integer", ".status.replicas", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 1),
    ("Mode", "string", ".status.mode", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)

# What one field's schema cannot say about another.
_SPEC_RULES = (
    (
        "self.scaleTargetRef.kind != 'Service'",
        "scaleTargetRef is the workload behind the Service, not the Service itself",
    ),
)


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as an object ready to apply."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "elastiservice",
                "shortNames": ["es"],
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path} | ({"priority": wide} if wide else {})
        for name, kind, path, wide in _COLUMNS
    ]
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": _object_schema()},
    }


def _object_schema() -> Schema:
    return {
        "type": "object",
        "description": f"A Service and its workload that may sleep ({API_VERSION}).",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of this schema."},
            "kind": {"type": "string", "description": "ElastiService."},
            "metadata": {"type": "object"},  # a server has its own description of it
            "spec": _spec_schema(),
            "status": _status_schema(),
        },
    }


def _spec_schema() -> Schema:
    schema = struct_schema(ElastiServiceSpec)
    _complete_triggers(schema["properties"]["triggers"])
    schema["x-kubernetes-validations"] = _validations(_SPEC_RULES)
    return schema


def _complete_triggers(schema: Schema) -> None:
    """Say what the registered triggers need.

    Fields that rules look at must be declared; everything else passes through, and is checked by
    `problems`. A threshold is a number or a string, which no structural type can say.
    """
    trigger, rules = schema["items"], []
    properties: Schema = {}
    for kind in trigger_types().values():
        described = inspect.type_info(kind.metadata)
        assert isinstance(described, inspect.StructType)
        for field in described.fields:
            name, kept = field.encode_name, {"x-kubernetes-preserve-unknown-fields": True}
            inner = field.type
            described_by: Schema = {}
            if isinstance(inner, inspect.Metadata):
                described_by, inner = inner.extra_json_schema or {}, inner.type
            is_text = field.required and isinstance(inner, inspect.StrType)
            present = {"type": "string"} if is_text else kept
            properties.setdefault(name, present | described_by)
            if is_text:
                rule = f"self.type != '{kind.name}' || (has(self.metadata) && has(self.metadata.{name}))"
                rules.append((rule, f"a {kind.name} trigger needs metadata.{name}"))
    trigger["properties"]["type"] |= {"enum": list(trigger_types())}
    del trigger["properties"]["type"]["minLength"]
    trigger["properties"]["metadata"] |= {"properties": properties}
    trigger["x-kubernetes-validations"] = _validations(tuple(rules))
    schema["maxItems"] = 32


def _status_schema() -> Schema:
    schema = struct_schema(ElastiServiceStatus)
    parts = schema["properties"]
    for part, name in (
        (parts, "lastReconciledTime"),
        (parts, "lastScaledUpTime"),
        (parts, "quietSince"),
        (parts, "sleepsAt"),
        (parts, "asleepSince"),
        (parts, "since"),
        (parts["triggers"]["items"]["properties"], "quietSince"),
        (parts["lastWake"]["properties"], "time"),
        (parts["usage"]["properties"], "since"),
        (parts, "releasedSince"),
        (parts["recent"]["items"]["properties"], "since"),
        (parts["recent"]["items"]["properties"], "until"),
    ):
        part[name]["format"] = "date-time"
    conditions = schema["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return schema


def _validations(rules: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]
