"""Kubernetes' own types, read from the derived tables a package at a time."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver.schema.types import ANY, Field, Relation, Scalar, Shape, Type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.objects.meta import JsonObject

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
OBJECT_META = f"{_META}.ObjectMeta"

_SCALAR_DEFINITIONS: Mapping[str, Scalar] = {
    f"{_META}.Time": Scalar.TIME,
    f"{_META}.MicroTime": Scalar.MICRO_TIME,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": Scalar.QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": Scalar.INT_OR_STRING,
}
_SCALAR_FORMATS: Mapping[tuple[str, str], Scalar] = {
    ("integer", "int32"): Scalar.INT32,
    ("integer", "int64"): Scalar.INT64,
    ("number", "double"): Scalar.FLOAT,
    ("string", "byte"): Scalar.BYTES,
    ("string", "date-time"): Scalar.TIME,
    ("boolean", ""): Scalar.BOOLEAN,
}
_RELATIONS: Mapping[str, Relation] = {relation.value: relation for relation in Relation}


def read_table(name: str) -> Any:
    """Decode one of the derived files."""
    file = resources.files("elasti.devcluster.apiserver.schema") / "data" / f"{name}.json"
    return msgspec.json.decode(file.read_bytes())


class BuiltinTypes:
    """The type tables: definitions as OpenAPI says them, and the types made of them."""

    def __init__(self) -> None:
        self._packages: dict[str, dict[str, JsonObject]] = {}
        self._types: dict[str, Type] = {}

    def package(self, name: str) -> dict[str, JsonObject]:
        """Return a Go package's definitions by short name; read once."""
        found = self._packages.get(name)
        if found is None:
            found = self._packages[name] = read_table(name)
        return found

    def definition(self, name: str) -> JsonObject:
        """Return one definition by its full name; KeyError where there is none."""
        package, _, short = name.rpartition(".")
        return self.package(package)[short]

    def type(self, name: str) -> Type:
        """Return the type of a definition."""
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = self._define(name)
        return found

    def _define(self, name: str) -> Type:
        scalar = _SCALAR_DEFINITIONS.get(name)
        if scalar is not None:
            return Type(shape=Shape.SCALAR, name=_go_name(name), scalar=scalar)
        return self._convert(self.definition(name), name=_go_name(name))

    def _convert(self, schema: JsonObject, *, name: str = "") -> Type:
        reference = schema.get("$ref")
        if reference is not None:
            found = self.type(reference)
            relation = schema.get("x-kubernetes-map-type")
            return found if relation is None else found.related(_RELATIONS[relation])
        match schema.get("type"):
            case "array":
                return self._list(schema)
            case "object" if "properties" in schema:
                return self._struct(schema, name)
            case "object" if "additionalProperties" in schema:
                element = self._convert(schema["additionalProperties"])
                return Type(shape=Shape.MAP, element=element, relation=_map_relation(schema))
            case "object" | None:
                return ANY
            case kind:
                scalar = _SCALAR_FORMATS.get((kind, schema.get("format", "")), Scalar.STRING)
                return Type(shape=Shape.SCALAR, scalar=scalar)

    def _struct(self, schema: JsonObject, name: str) -> Type:
        return Type(
            shape=Shape.STRUCT,
            name=name,
            relation=_map_relation(schema),
            required=tuple(schema.get("required", ())),
            build=functools.partial(self._fields, schema["properties"]),
        )

    def _list(self, schema: JsonObject) -> Type:
        return Type(
            shape=Shape.LIST,
            element=self._convert(schema["items"]),
            relation=_RELATIONS[schema.get("x-kubernetes-list-type", "atomic")],
            keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        )

    def _fields(self, properties: Mapping[str, JsonObject]) -> Mapping[str, Field]:
        return {name: self._field(schema) for name, schema in properties.items()}

    def _field(self, schema: JsonObject) -> Field:
        strategies = schema.get("x-kubernetes-patch-strategy", "")
        return Field(
            type=self._convert(schema),
            default=schema.get("default"),
            choices=tuple(schema.get("enum", ())),
            merge_key=schema.get("x-kubernetes-patch-merge-key", ""),
            strategies=frozenset(filter(None, strategies.split(","))),
            zero=schema.get("x-zero", False),
        )


def _map_relation(schema: JsonObject) -> Relation:
    return _RELATIONS[schema.get("x-kubernetes-map-type", "granular")]


def _go_name(definition: str) -> str:
    """`io.k8s.api.apps.v1.DeploymentSpec` as Go's decoder would name it: `v1.DeploymentSpec`."""
    return ".".join(definition.split(".")[-2:])
