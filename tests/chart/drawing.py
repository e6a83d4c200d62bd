"""Values of the chart, drawn from its schema."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

from tests.chart.rendering import CHART, JsonObject

NAMESPACES = ("elasti", "shop", "blog")
"""Those that are there."""

_SCHEMA: JsonObject = json.loads((CHART / "values.schema.json").read_text())
# Helm refuses values with control characters: they are no YAML.
_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), max_size=20
)
_SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | _TEXT
_LABELLED = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}

# Where the schema leaves the shape to Kubernetes, or a rule connects two fields: some that fit.
_CHOSEN: dict[str, st.SearchStrategy[Any]] = {
    "affinity": st.sampled_from(
        [
            {},
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_LABELLED]}},
        ]
    ),
    "tolerations": st.lists(
        st.sampled_from(
            [
                {"operator": "Exists"},
                {"key": "spot", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 60},
            ]
        ),
        max_size=2,
    ),
    "topologySpreadConstraints": st.just([]),
    "resources": st.sampled_from(
        [
            {},
            {
                "limits": {"memory": "80Mi", "cpu": "200m"},
                "requests": {"memory": "40Mi", "cpu": "1m"},
            },
            {"limits": {"memory": "2Gi", "cpu": 4}, "requests": {"memory": "1.5Gi", "cpu": 0.5}},
            {"limits": {"memory": 1073741824}, "requests": {"memory": "200M"}},
            {"limits": {"memory": None}},
        ]
    ),
    "podSecurityContext": st.sampled_from([{}, {"runAsUser": 1000, "fsGroup": 0}]),
    "containerSecurityContext": st.sampled_from(
        [{}, {"capabilities": {"add": ["NET_BIND_SERVICE"]}}]
    ),
    "portRange": st.sampled_from(["20000-29999", "9000-48999", "65436-65535", "32000-33000"]),
    "allowedNamespaces": st.lists(st.sampled_from(NAMESPACES), unique=True, max_size=2),
}


def values() -> st.SearchStrategy[JsonObject]:
    """What the schema lets pass."""
    return _of(_SCHEMA)


def _of(schema: JsonObject) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _of(_SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "anyOf" in schema:
        return st.one_of([_of(one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return st.one_of([_of({**schema, "type": kind}) for kind in kinds])
    match kinds:
        case "object":
            return _object(schema)
        case "array":
            items = _of(schema["items"])
            least, unique = schema.get("minItems", 0), schema.get("uniqueItems", False)
            return st.lists(items, min_size=least, max_size=2, unique=unique)
        case "string":
            return _matching(schema["pattern"]) if "pattern" in schema else _TEXT
        case "integer":
            return st.integers(schema.get("minimum", 0), schema.get("maximum", 10**6))
        case "number":
            return st.floats(0, 10**6)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            return _SCALARS


def _object(schema: JsonObject) -> st.SearchStrategy[JsonObject]:
    if "properties" in schema:
        fields = {
            name: _CHOSEN[name] if name in _CHOSEN else _of(part)
            for name, part in schema["properties"].items()
        }
        needed = schema.get("required", [])
        return st.fixed_dictionaries(
            {name: fields[name] for name in needed},
            optional={name: part for name, part in fields.items() if name not in needed},
        )
    if "propertyNames" not in schema:
        return st.just({})
    keys = _matching(schema["propertyNames"]["pattern"]).filter(lambda key: len(key) < 100)
    return st.dictionaries(keys, _of(schema["additionalProperties"]), max_size=2)


def _matching(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(re.sub(r"\$$", r"\\Z", pattern), alphabet=st.characters(codec="ascii"))
