"""The CustomResourceDefinition, generated from the types by `kubeloop.crd`.

What the types cannot say is added here: which triggers there are and what each needs, rules between
fields, times.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import inspect

from elasti.api.names import (
    API_VERSION,
    ELASTISERVICES,
    GROUP,
    TEMPLATE_KIND,
    TEMPLATES_PLURAL,
    VERSION,
)
from elasti.api.triggers.registry import trigger_types
from elasti.api.types import ElastiService
from kubeloop import crd
from kubeloop.crd import Column, Schema
from kubeloop.objects.meta import JsonObject

_COLUMNS = (
    Column("State", ".status.phase"),
    Column("Why", '.status.conditions[?(@.type=="MaySleep")].reason'),
    Column("Since", ".status.since", "date"),
    Column("Held", ".status.held", "integer"),
    Column("Target", ".spec.scaleTargetRef.name"),
    Column("Replicas", ".status.replicas", "integer"),
    Column("Ready", '.status.conditions[?(@.type=="Ready")].status', priority=1),
    Column("Mode", ".status.mode", priority=1),
    Column("Age", ".metadata.creationTimestamp", "date"),
)

_TARGET_RULES = (
    # Every custom kind has a dot in its group.
    (
        "!has(self.apiVersion) || self.apiVersion.matches('^(v1|apps/v1|[^/]+[.][^/]+/.+)$')",
        (
            "write apiVersion: apps/v1 for a Deployment or a StatefulSet, or the group and version of a custom"
            " kind, such as argoproj.io/v1alpha1"
        ),
    ),
    (
        (
            "!has(self.kind) || !has(self.apiVersion) || self.apiVersion.contains('.')"
            " || self.kind.matches('(?i)^(deployment|statefulset|replicaset|replicationcontroller)s?$')"
        ),
        (
            "this kind cannot be scaled; name the workload behind the Service: a Deployment, a StatefulSet, a"
            " ReplicaSet, or a custom kind with a scale subresource"
        ),
    ),
)


_SPEC_RULES = (
    (
        (
            "!has(self.targets) || !self.targets.exists(one, one.kind == self.scaleTargetRef.kind"
            " && one.name == self.scaleTargetRef.name)"
        ),
        "targets names scaleTargetRef, which sleeps anyway; remove the entry",
    ),
    (
        "!has(self.policy) || self.policy != 'Observe' || (has(self.suspend) && self.suspend)",
        "policy: Observe needs suspend: true; to let it sleep, set policy: Enforce and suspend: false together",
    ),
)


def _cron_field(value: str) -> str:
    item = rf"([*]|({value})(-({value}))?)(/[0-9]+)?"
    return f"{item}(,{item})*"


_DAY = "L|LW|0?[1-9]|[12][0-9]|3[01]"
_WEEKDAY = "(0?[0-7]|(?i:sun|mon|tue|wed|thu|fri|sat))(L|#[1-5])?"
_MONTH = "0?[1-9]|1[0-2]|(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
CRON = " +".join(map(_cron_field, ("[0-5]?[0-9]", "[01]?[0-9]|2[0-3]", _DAY, _MONTH, _WEEKDAY)))
"""What a server can refuse in a cron expression; `problems` finds the rest."""

_PERIOD_RULES = (
    (
        f"!has(self.schedule) || self.schedule.matches('^ *{CRON} *$')",
        "write schedule as five cron fields (minute hour day month weekday), such as 0 9 * * 1-5",
    ),
    (
        "!has(self.duration) || self.duration.matches('^([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$')",
        "write duration like 8h, 90m or 8h30m",
    ),
    (
        "!has(self.timezone) || self.timezone.matches('^[A-Z][A-Za-z0-9_+-]*(/[A-Z][A-Za-z0-9_+-]*){0,2}$')",
        "write timezone as an IANA name, such as Europe/Berlin",
    ),
)
_SLEEP_RULES = (
    (
        "!has(self.doze) || self.mode == 'DozeThenZero' || self.doze.zeroAfter == '24h'",
        "doze.zeroAfter needs mode: DozeThenZero",
    ),
    ("!has(self.doze) || self.mode != 'Zero'", "doze needs mode: Doze or mode: DozeThenZero"),
)

_SCHEDULE_RULES = (
    ("has(self.during) != has(self.dates)", "write either during or dates"),
    (
        r"!has(self.during) || self.during.matches('^(Mon|Tue|Wed|Thu|Fri|Sat|Sun).* [0-9]{2}:[0-9]{2} ?-.*[0-9]{2}:[0-9]{2}$')",
        "write during like Mon-Fri 08:00-19:00, or like Fri 21:00 - Mon 06:00",
    ),
    (
        r"!has(self.dates) || self.dates.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}(/[0-9]{4}-[0-9]{2}-[0-9]{2})?$')",
        "write dates like 2026-12-24/2027-01-01",
    ),
    ("!has(self.warmBy) || !self.warmBy || self.keep == 'Awake'", "warmBy needs keep: Awake"),
)


def custom_resource_definition() -> Schema:
    """Return the CRD as an object ready to apply."""
    definition: Schema = msgspec.json.decode(_described())
    (version,) = definition["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    parts = schema["properties"]
    del parts["unreadable"]  # what we make of an object that does not fit; never on the wire
    schema["description"] = f"A Service and its workload that may sleep ({API_VERSION})."
    _complete_spec(parts["spec"])
    _complete_status(parts["status"])
    return definition


@functools.cache
def _described() -> bytes:
    # An installation asks for the definition four times; to describe the Structs is nearly all of its time.
    return msgspec.json.encode(
        crd.custom_resource_definition(
            ElastiService,
            ELASTISERVICES,
            columns=_COLUMNS,
            short_names=("es",),
            categories=("all",),
        )
    )


TEMPLATE_FIELDS = ("cooldownPeriod", "triggers", "schedules")
TEMPLATE_WAKE_FIELDS = ("page", "ignore")
"""What a template sets of an ElastiService's spec, and of its `wake`."""


def template_definition() -> Schema:
    """Return the CRD of ElastiTemplates: some fields of an ElastiService's spec, with the same rules."""
    definition = custom_resource_definition()
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    wake = {name: spec["wake"]["properties"][name] for name in TEMPLATE_WAKE_FIELDS}
    fields = {name: spec[name] for name in TEMPLATE_FIELDS}
    fields["wake"] = {
        "type": "object",
        "description": "How connections are held while the target wakes.",
        "properties": wake,
    }
    schema = {
        "type": "object",
        "description": f"What enrolled Services have in common ({API_VERSION}).",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {
                "type": "object",
                "description": "Fields of every ElastiService that is made from this template.",
                "properties": fields,
            },
        },
    }
    names = {
        "kind": TEMPLATE_KIND,
        "listKind": f"{TEMPLATE_KIND}List",
        "plural": TEMPLATES_PLURAL,
        "singular": TEMPLATE_KIND.lower(),
    }
    served = {"name": VERSION, "served": True, "storage": True}
    return {
        **definition,
        "metadata": {"name": f"{TEMPLATES_PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": names,
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _complete_spec(schema: Schema) -> None:
    _complete_triggers(schema["properties"]["triggers"])
    schedules = schema["properties"]["schedules"]
    schedules |= crd.map_by("name").extra_json_schema or {}
    schedules["items"] |= crd.validations(*_SCHEDULE_RULES).extra_json_schema or {}
    schema["properties"]["dependsOn"] |= crd.map_by("name").extra_json_schema or {}
    for name, rules in (
        ("scaleTargetRef", _TARGET_RULES),
        ("enabledPeriod", _PERIOD_RULES),
        ("sleep", _SLEEP_RULES),
    ):
        schema["properties"][name] |= crd.validations(*rules).extra_json_schema or {}
    targets = schema["properties"]["targets"]
    targets |= crd.map_by("apiVersion", "kind", "name").extra_json_schema or {}
    targets["items"] |= crd.validations(*_TARGET_RULES).extra_json_schema or {}
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
        (parts, "awakeUntil"),
        (parts, "since"),
        (parts["triggers"]["items"]["properties"], "quietSince"),
        (parts["lastWake"]["properties"], "time"),
        (parts["usage"]["properties"], "since"),
        (parts, "releasedSince"),
        (parts["doze"]["properties"], "since"),
        (parts["observed"]["properties"], "since"),
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
