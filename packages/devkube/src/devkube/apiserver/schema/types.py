"""Types of objects: what decoding, patching, applying and defaulting need to know.

One model for Kubernetes' own types and for those of custom resources. A `Type` is a struct (named
fields), a map, a list, a scalar or anything at all. Struct fields are built when first looked at,
because types refer to themselves and because most are never used. Kubernetes' own types are read from
the derived tables, a package at a time.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec

from kubeloop.objects.meta import JsonObject

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
OBJECT_META = f"{_META}.ObjectMeta"


class TypeShape(enum.Enum):
    """The five kinds of type."""

    STRUCT = "struct"
    MAP = "map"
    LIST = "list"
    SCALAR = "scalar"
    ANY = "any"


class Scalar(enum.Enum):
    """Scalar types, with the name under which Go's decoder reports a mismatch."""

    STRING = "string"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float64"
    BOOLEAN = "bool"
    BYTES = "[]uint8"
    TIME = "time"
    MICRO_TIME = "microtime"
    QUANTITY = "quantity"
    INT_OR_STRING = "intorstring"


class Relation(enum.Enum):
    """How the parts of a list, map or struct are owned: one by one, or only together."""

    ATOMIC = "atomic"
    GRANULAR = "granular"
    SET = "set"
    KEYED = "map"


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Type:
    """A type. `element` is a list's items, a map's values, or a struct's unknown fields (None: none).

    `name` is the Go name for messages. `keys` are a keyed list's. `build` makes the struct's fields.
    """

    shape: TypeShape
    name: str = ""
    scalar: Scalar = Scalar.STRING
    element: Type | None = None
    relation: Relation = Relation.GRANULAR
    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    nullable: bool = False
    build: Callable[[], Mapping[str, Field]] | None = None
    _fields: Mapping[str, Field] | None = None

    @property
    def fields(self) -> Mapping[str, Field]:
        """The struct's fields by JSON name; empty for other shapes."""
        if self._fields is None:
            self._fields = self.build() if self.build is not None else {}
        return self._fields

    def child(self, name: str) -> Type | None:
        """The type of a struct's field or a map's value; None for an unknown field."""
        found = self.fields.get(name) if self.shape is TypeShape.STRUCT else None
        return found.type if found is not None else self.element

    @property
    def is_atomic(self) -> bool:
        """Whether its parts have no owners of their own."""
        return self.relation is Relation.ATOMIC

    def related(self, relation: Relation) -> Type:
        """Return this type with another relation, as a reference may ask for."""
        return self if relation is self.relation else dataclasses.replace(self, relation=relation)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Field:
    """A struct's field: its type, and what patches and defaults do with it.

    `zero` says that an empty object has it all the same, as an empty struct.
    """

    type: Type
    default: Any = None
    choices: tuple[str, ...] = ()
    merge_key: str = ""
    strategies: frozenset[str] = frozenset()
    zero: bool = False


def walk(value: Any, kind: Type, path: str) -> Iterator[tuple[Any, Type, str]]:
    """Yield a value and every value below it, with its type and its path."""
    yield value, kind, path
    if isinstance(value, dict) and kind.shape in (TypeShape.STRUCT, TypeShape.MAP):
        for name, child in value.items():
            below = kind.child(name)
            if below is not None:
                yield from walk(child, below, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and kind.shape is TypeShape.LIST and kind.element is not None:
        for index, child in enumerate(value):
            yield from walk(child, kind.element, f"{path}[{index}]")


def zero_value(kind: Type) -> dict[str, Any]:
    """Return what an empty object of a type contains: structs, and null for required lists."""
    result: dict[str, Any] = {}
    for name, field in kind.fields.items():
        if field.zero:
            result[name] = zero_value(field.type)
        elif name in kind.required and field.type.shape is TypeShape.LIST:
            result[name] = None
    return result


ANY = Type(shape=TypeShape.ANY, name="interface {}")
ANY.element = ANY
STRING = Type(shape=TypeShape.SCALAR)
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
    file = resources.files("devkube.apiserver.schema") / "data" / f"{name}.json"
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
        """Return one definition by its full name; KeyError if absent."""
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
            return Type(shape=TypeShape.SCALAR, name=_go_name(name), scalar=scalar)
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
                return Type(shape=TypeShape.MAP, element=element, relation=_map_relation(schema))
            case "object" | None:
                return ANY
            case kind:
                scalar = _SCALAR_FORMATS.get((kind, schema.get("format", "")), Scalar.STRING)
                return Type(shape=TypeShape.SCALAR, scalar=scalar)

    def _struct(self, schema: JsonObject, name: str) -> Type:
        return Type(
            shape=TypeShape.STRUCT,
            name=name,
            relation=_map_relation(schema),
            required=tuple(schema.get("required", ())),
            build=functools.partial(self._fields, schema["properties"]),
        )

    def _list(self, schema: JsonObject) -> Type:
        return Type(
            shape=TypeShape.LIST,
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
