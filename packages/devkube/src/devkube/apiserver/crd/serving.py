"""The resource that a valid CustomResourceDefinition makes, and how its objects behave.

Objects are pruned, defaulted and validated by their definition's schema.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from devkube.apiserver.crd import definition
from devkube.apiserver.crd.validation import SchemaValidator, fill, prune, repeats
from devkube.apiserver.registry.resources import (
    ScalePaths,
    ServedResource,
    ServedVersion,
    TableColumn,
    keep,
    no_conversion,
)
from devkube.apiserver.schema.conform import Conformer, FieldDecodeError
from devkube.apiserver.schema.types import Type
from devkube.apiserver.status import FieldError
from devkube.apiserver.validation import names
from kubeloop.objects.meta import JsonObject


@dataclasses.dataclass(eq=False, kw_only=True)
class CustomStrategy:
    """A kind that a CustomResourceDefinition declares."""

    tracks_generation = True
    blind_update = False

    namespaced: bool
    metadata: Type
    validators: Mapping[str, SchemaValidator | None]
    selectable: Mapping[str, tuple[str, ...]]

    def decode(self, obj: JsonObject, served: ServedVersion) -> tuple[JsonObject, list[str]]:
        """Prune the object; metadata is Kubernetes' own and is decoded strictly."""
        metadata = obj.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise FieldDecodeError("metadata is not an object")
        conformer = Conformer()
        clean = conformer.conform(metadata, self.metadata)
        unknown: list[str] = []
        rest = {name: value for name, value in obj.items() if name != "metadata"}
        pruned = prune(rest, served.type, "", unknown)
        odd = [f"metadata.{path}" for path in conformer.unknown]
        return {**pruned, "metadata": clean}, odd + unknown

    def default(self, obj: JsonObject, served: ServedVersion) -> None:
        """Fill in the schema's defaults."""
        fill(obj, served.type)

    def prepare_create(self, obj: JsonObject, served: ServedVersion) -> None:
        """Drop a status that is not the user's to set."""
        if "status" in served.subresources:
            obj.pop("status", None)

    def prepare_update(self, new: JsonObject, old: JsonObject, served: ServedVersion) -> None:
        """Leave the status unchanged."""
        if "status" in served.subresources:
            keep(new, old, "status")

    def validate(self, obj: JsonObject, served: ServedVersion) -> list[FieldError]:
        """Return what is wrong with an object."""
        errors = names.check_metadata(
            obj["metadata"], namespaced=self.namespaced, name_rule=names.dns_subdomain
        )
        validator = self.validators.get(served.version)
        rest = {name: value for name, value in obj.items() if name != "metadata"}
        if validator is not None:
            errors += validator.check(rest)
        errors += repeats(rest, served.type)
        return errors

    def validate_update(
        self, new: JsonObject, old: JsonObject, served: ServedVersion
    ) -> list[FieldError]:
        """Have nothing to add."""
        return []


def make_resource(definition: JsonObject, metadata: Type) -> ServedResource:
    """Return the resource that a valid definition declares."""
    spec = definition["spec"]
    named, group = spec["names"], spec["group"]
    served = [version for version in spec["versions"] if version.get("served")]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    schemas = {v["name"]: (v.get("schema") or {}).get("openAPIV3Schema") for v in served}
    namespaced = spec["scope"] == "Namespaced"
    ordered = _by_priority(served)
    return ServedResource(
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
            validators={
                n: SchemaValidator(s) if s is not None else None for n, s in schemas.items()
            },
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


def _served(version: JsonObject, spec: JsonObject, stored: str, metadata: Type) -> ServedVersion:
    name, group = version["name"], spec["group"]
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    subresources = version.get("subresources") or {}
    is_stored = name == stored
    reverse = ".".join(reversed(group.split(".")))
    return ServedVersion(
        version=name,
        type=definition.root_type(schema, metadata),
        subresources=frozenset(item for item in ("status", "scale") if item in subresources),
        scale=_scale(subresources.get("scale")),
        columns=msgspec.convert(
            version.get("additionalPrinterColumns") or (), tuple[TableColumn, ...]
        ),
        definition=f"{reverse}.{name}.{spec['names']['kind']}",
        schema=schema,
        load=no_conversion if is_stored else functools.partial(_versioned, f"{group}/{name}"),
        store=no_conversion if is_stored else functools.partial(_versioned, f"{group}/{stored}"),
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


def _selectable(versions: list[JsonObject]) -> dict[str, tuple[str, ...]]:
    paths: list[Any] = [
        field.get("jsonPath", "")
        for version in versions
        for field in version.get("selectableFields") or ()
    ]
    return {
        path.removeprefix("."): tuple(path.removeprefix(".").split(".")) for path in paths if path
    }
