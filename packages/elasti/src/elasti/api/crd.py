"""The CustomResourceDefinition, generated from the types by `kubeloop.crd`.

What the types cannot say is added here: which triggers there are and what each needs, rules between
fields, times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import inspect

from elasti.api.names import API_VERSION, ELASTISERVICES, VERSION
from elasti.api.types import ElastiService
from elasti.triggers.registry import trigger_types
from kubeloop import crd
from kubeloop.crd import Column, Schema
from kubeloop.objects.meta import JsonObject

_COLUMNS = (
    Column("State", ".status.phase"),
    Column("Why", '.status.conditions[?(@.type=="MaySleep")].reason'),
    Column("Since", ".status.since", "date"),
    Column("Target", ".spec.scaleTargetRef.name"),
    Column("Replicas", ".status.replicas", "integer"),
    Column("Ready", '.status.conditions[?(@.type=="Ready")].status', priority=1),
    Column("Mode", ".status.mode", priority=1),
    Column("Age", ".metadata.creationTimestamp", "date"),
)

# What one field's schema cannot say about another.
_SPEC_RULES = (
    (
        "self.scaleTargetRef.kind != 'Service'",
        "scaleTargetRef is the workload behind the Service, not the Service itself",
    ),
)


def custom_resource_definition() -> Schema:
    """Return the CRD as an object ready to apply."""
    definition = crd.custom_resource_definition(
        ElastiService, ELASTISERVICES, columns=_COLUMNS, short_names=("es",), categories=("all",)
    )
    (version,) = definition["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    parts = schema["properties"]
    del parts["unreadable"]  # what we make of an object that does not fit; never on the wire
    schema["description"] = f"A Service and its workload that may sleep ({API_VERSION})."
    _complete_spec(parts["spec"])
    _complete_status(parts["status"])
    return definition


def _complete_spec(schema: Schema) -> None:
    _complete_triggers(schema["properties"]["triggers"])
    schema |= crd.validations(*_SPEC_RULES).extra_json_schema or {}


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
    trigger |= crd.validations(*rules).extra_json_schema or {}
    schema["maxItems"] = 32


def _complete_status(schema: Schema) -> None:
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
    parts["conditions"] |= crd.map_by("type").extra_json_schema or {}


def missing_fields(definition: JsonObject) -> list[str]:
    """Return our fields that a definition does not have, and a server therefore drops."""
    there, ours = _schema(definition), _schema(custom_resource_definition())
    return [field for field in _missing(ours, there) if field.startswith(("spec", "status"))]


def schema_hash(definition: JsonObject) -> str:
    """Return a short hash of the served schema."""
    encoded = msgspec.json.encode(_schema(definition), order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:12]


def _schema(definition: JsonObject) -> Schema:
    versions = definition.get("spec", {}).get("versions") or ()
    served: Schema = next((item for item in versions if item.get("name") == VERSION), {})
    schema: Schema = (served.get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


def _missing(ours: Schema, there: Schema, path: str = "") -> Iterator[str]:
    if there.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = there.get("properties") or {}
    for name, part in sorted(ours.get("properties", {}).items()):
        if name in known:
            yield from _missing(part, known[name], f"{path}{name}.")
        else:
            yield path + name
    if "items" in ours:
        yield from _missing(ours["items"], there.get("items") or {}, f"{path[:-1]}[].")
