"""Types of objects: what decoding, patching, applying and defaulting need to know.

One model for Kubernetes' own types and for those of custom resources. A `Type` is a struct (named
fields), a map, a list, a scalar or anything at all. Struct fields are built when first looked at,
because types refer to themselves and because most are never used.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Shape(enum.Enum):
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

    shape: Shape
    name: str = ""
    scalar: Scalar = Scalar.STRING
    element: Type | None = None
    relation: Relation = Relation.GRANULAR
    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    nullable: bool = False
    embedded: bool = False
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
        found = self.fields.get(name) if self.shape is Shape.STRUCT else None
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


def zero_value(kind: Type) -> dict[str, Any]:
    """Return what an empty object of a type contains: structs, and null for required lists."""
    result: dict[str, Any] = {}
    for name, field in kind.fields.items():
        if field.zero:
            result[name] = zero_value(field.type)
        elif name in kind.required and field.type.shape is Shape.LIST:
            result[name] = None
    return result


ANY = Type(shape=Shape.ANY, name="interface {}")
ANY.element = ANY
STRING = Type(shape=Shape.SCALAR)
