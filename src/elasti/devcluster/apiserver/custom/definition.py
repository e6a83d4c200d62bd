"""CustomResourceDefinitions as objects: their defaults, their validation, what is fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import names
from elasti.devcluster.apiserver.custom import structural
from elasti.devcluster.apiserver.kinds.rules import Rules
from elasti.devcluster.apiserver.status import invalid, required, unsupported
from elasti.devcluster.apiserver.tables import jsonpath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.status import FieldError
    from kubeloop.objects.meta import JsonObject

_SCOPES = ("Cluster", "Namespaced")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


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
        yield invalid(
            "spec.versions", versions, "must have exactly one version marked as storage version"
        )
    seen: set[str] = set()
    for index, version in enumerate(versions):
        # The words of a single version are those of the definition as a whole.
        yield from _validate_version(
            version, "spec" if len(versions) == 1 else f"spec.versions[{index}]"
        )
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
    for field in ("plural", "singular"):
        value = named.get(field, "")
        if value:
            yield from (
                invalid(f"spec.names.{field}", value, t) for t in names.dns_label_1035(value)
            )
    for field in ("kind", "listKind"):
        value = named.get(field, "")
        if value:
            problems = names.dns_label_1035(value.lower())
            yield from (
                invalid(
                    f"spec.names.{field}",
                    value,
                    f"may have mixed case, but should otherwise match: {t}",
                )
                for t in problems
            )
    if named.get("kind") and named.get("kind") == named.get("listKind"):
        yield invalid(
            "spec.names.listKind", named["listKind"], "kind and listKind may not be the same"
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
        yield from structural.check(schema, f"{path}.{part}.openAPIV3Schema")
    for index, column in enumerate(version.get("additionalPrinterColumns") or []):
        yield from _validate_column(column, f"{path}.additionalPrinterColumns[{index}]")
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        yield from _validate_scale(scale, f"{path}.subresources.scale")


_SIMPLE = "must be a simple json path starting with ."


def _validate_column(column: JsonObject, path: str) -> Iterator[FieldError]:
    kind = column.get("type", "")
    if kind and kind not in _COLUMN_TYPES:
        yield invalid(f"{path}.type", kind, f"must be one of {','.join(_COLUMN_TYPES)}")
    text = column.get("jsonPath", "")
    try:
        jsonpath.parse(text)
    except ValueError:
        yield invalid(f"{path}.JSONPath", text, _SIMPLE)
    else:
        if text and not text.startswith("."):
            yield invalid(f"{path}.JSONPath", text, _SIMPLE)


def _validate_scale(scale: JsonObject, path: str) -> Iterator[FieldError]:
    places = (
        ("specReplicasPath", ".spec."),
        ("statusReplicasPath", ".status."),
        ("labelSelectorPath", "."),
    )
    for field, prefix in places:
        value = scale.get(field) or ""
        if not value:
            if field != "labelSelectorPath":
                yield required(f"{path}.{field}")
        elif not value.startswith(".") or "[" in value:
            yield invalid(f"{path}.{field}", value, _SIMPLE)
        elif not value.startswith(prefix):
            yield invalid(f"{path}.{field}", value, f"should be a json path under {prefix[:-1]}")


def definition_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Refuse another group, scope or set of identifying names."""
    after, before = new.get("spec") or {}, old.get("spec") or {}
    for name in ("group", "scope"):
        if after.get(name) != before.get(name):
            yield invalid(f"spec.{name}", after.get(name), "field is immutable")
    for name in ("plural", "kind"):
        value = (after.get("names") or {}).get(name)
        if value != (before.get("names") or {}).get(name):
            yield invalid(f"spec.names.{name}", value, "field is immutable")


RULES = Rules(
    default=default_definition,
    validate=validate_definition,
    validate_update=definition_update,
    generation=True,
    blind_update=False,
)
