"""The resource that a valid CustomResourceDefinition makes."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.custom import structural
from elasti.devcluster.apiserver.custom.strategy import CustomStrategy
from elasti.devcluster.apiserver.custom.validation import Validator
from elasti.devcluster.apiserver.resources import Column, Resource, ScalePaths, Served, unchanged

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.schema.types import Type
    from kubeloop.objects.meta import JsonObject


def make_resource(definition: JsonObject, metadata: Type) -> Resource:
    """Return the resource that a valid definition declares."""
    spec = definition["spec"]
    named, group = spec["names"], spec["group"]
    served = [version for version in spec["versions"] if version.get("served")]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    schemas = {v["name"]: (v.get("schema") or {}).get("openAPIV3Schema") for v in served}
    namespaced = spec["scope"] == "Namespaced"
    ordered = _by_priority(served)
    return Resource(
        group=group,
        plural=named["plural"],
        singular=named["singular"],
        kind=named["kind"],
        list_kind=named["listKind"],
        namespaced=namespaced,
        versions=tuple(
            dataclasses.replace(
                _served(version, spec, stored, metadata), warning=_warning(version, ordered, spec)
            )
            for version in ordered
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


def _warning(version: JsonObject, ordered: list[JsonObject], spec: JsonObject) -> str:
    """Return what every answer in a deprecated version says: its own words, or which to use."""
    if not version.get("deprecated"):
        return ""
    if version.get("deprecationWarning"):
        return str(version["deprecationWarning"])
    group, kind = spec["group"], spec["names"]["kind"]
    text = f"{group}/{version['name']} {kind} is deprecated"
    better = next((v["name"] for v in ordered if not v.get("deprecated")), "")
    return f"{text}; use {group}/{better} {kind}" if better else text


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
