"""The CustomResourceDefinition, generated from the types."""

from __future__ import annotations

from typing import Any

from elasti.api.names import API_VERSION, GROUP, KIND, PLURAL, VERSION
from elasti.api.schema import Schema, struct_schema
from elasti.api.types import ElastiServiceSpec, ElastiServiceStatus

_COLUMNS = (
    ("Mode", "string", ".status.mode"),
    ("Target", "string", ".spec.scaleTargetRef.name"),
    ("Replicas", "integer", ".status.replicas"),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("Age", "date", ".metadata.creationTimestamp"),
)

# What one field's schema cannot say about another.
_TRIGGER_RULES = (
    (
        "self.type != 'prometheus' || (has(self.metadata) && has(self.metadata.query))",
        "a prometheus trigger needs metadata.query",
    ),
    (
        "self.type != 'pods' || (has(self.metadata) && has(self.metadata.metric))",
        "a pods trigger needs metadata.metric",
    ),
)
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
    columns = [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS]
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
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec_schema(),
            "status": _status_schema(),
        },
    }


def _spec_schema() -> Schema:
    schema = struct_schema(ElastiServiceSpec)
    trigger = schema["properties"]["triggers"]["items"]
    trigger["properties"]["metadata"] = _trigger_metadata_schema()
    trigger["x-kubernetes-validations"] = _validations(_TRIGGER_RULES)
    schema["properties"]["triggers"]["maxItems"] = 32
    schema["x-kubernetes-validations"] = _validations(_SPEC_RULES)
    return schema


def _trigger_metadata_schema() -> Schema:
    # The fields that rules look at must be declared; everything else passes through. A threshold
    # is a number or a string, which no structural type can say.
    return {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "query": {"type": "string"},
            "metric": {"type": "string"},
            "threshold": {"x-kubernetes-preserve-unknown-fields": True},
        },
    }


def _status_schema() -> Schema:
    schema = struct_schema(ElastiServiceStatus)
    for name in ("lastReconciledTime", "lastScaledUpTime"):
        schema["properties"][name]["format"] = "date-time"
    conditions = schema["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return schema


def _validations(rules: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]
