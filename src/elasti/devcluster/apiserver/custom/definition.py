"""CustomResourceDefinitions: defaults and validation of the definition, and the resource it makes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver import names
from elasti.devcluster.apiserver.custom import structural
from elasti.devcluster.apiserver.custom.strategy import CustomStrategy
from elasti.devcluster.apiserver.custom.validation import Validator
from elasti.devcluster.apiserver.kinds.rules import Rules
from elasti.devcluster.apiserver.resources import (
    Column,
    Resource,
    ScalePaths,
    Served,
    unchanged,
)
from elasti.devcluster.apiserver.status import invalid, required, unsupported
from elasti.devcluster.apiserver.tables import jsonpath

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.schema.types import Type
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


def make_resource(definition: JsonObject, metadata: Type) -> Resource:
    """Return the resource that a valid definition declares."""
    spec = definition["spec"]
    named, group = spec["names"], spec["group"]
    served = [version for version in spec["versions"] if version.get("served")]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    schemas = {v["name"]: (v.get("schema") or {}).get("openAPIV3Schema") for v in served}
    namespaced = spec["scope"] == "Namespaced"
    return Resource(
        group=group,
        plural=named["plural"],
        singular=named["singular"],
        kind=named["kind"],
        list_kind=named["listKind"],
        namespaced=namespaced,
        versions=tuple(
            _served(version, spec, stored, metadata) for version in _by_priority(served)
        ),
        strategy=CustomStrategy(
            namespaced=namespaced,
            metadata=metadata,
            validators={n: Validator(s) if s is not None else None for n, s in schemas.items()},
            selectable=_selectable(served),
        ),
        short_names=tuple(named.get("shortNames") or ()),
        categories=tuple(named.get("categories") or ()),
        custom=True,
    )


def _by_priority(versions: list[JsonObject]) -> list[JsonObject]:
    """Order versions as discovery does: stable, beta, alpha, newest first."""

    def rank(version: JsonObject) -> tuple[int, list[int]]:
        name = version["name"]
        level = 0 if "alpha" in name else 1 if "beta" in name else 2
        digits = "".join(char if char.isdigit() else " " for char in name).split()
        return level, [int(text) for text in digits]

    return sorted(versions, key=rank, reverse=True)


def _served(version: JsonObject, spec: JsonObject, stored: str, metadata: Type) -> Served:
    name, group = version["name"], spec["group"]
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    subresources = version.get("subresources") or {}
    is_stored = name == stored
    reverse = ".".join(reversed(group.split(".")))
    return Served(
        version=name,
        type=structural.root_type(schema, metadata),
        subresources=frozenset(item for item in ("status", "scale") if item in subresources),
        scale=_scale(subresources.get("scale")),
        columns=tuple(_column(item) for item in version.get("additionalPrinterColumns") or ()),
        definition=f"{reverse}.{name}.{spec['names']['kind']}",
        schema=schema,
        load=unchanged if is_stored else functools.partial(_versioned, f"{group}/{name}"),
        store=unchanged if is_stored else functools.partial(_versioned, f"{group}/{stored}"),
    )


def _versioned(api_version: str, obj: JsonObject) -> JsonObject:
    return {**obj, "apiVersion": api_version}


def _scale(scale: JsonObject | None) -> ScalePaths | None:
    if scale is None:
        return None
    return ScalePaths(
        spec=scale["specReplicasPath"].removeprefix("."),
        status=scale["statusReplicasPath"].removeprefix("."),
        selector=(scale.get("labelSelectorPath") or "").removeprefix("."),
    )


def _column(item: JsonObject) -> Column:
    return Column(
        name=item["name"],
        type=item["type"],
        format=item.get("format", ""),
        description=item.get("description", ""),
        priority=item.get("priority", 0),
        path=item["jsonPath"],
    )


def _selectable(versions: list[JsonObject]) -> dict[str, tuple[str, ...]]:
    paths: list[Any] = [
        field.get("jsonPath", "")
        for version in versions
        for field in version.get("selectableFields") or ()
    ]
    return {
        path.removeprefix("."): tuple(path.removeprefix(".").split(".")) for path in paths if path
    }
