"""CustomResourceDefinitions from msgspec Structs.

    class Spec(msgspec.Struct, frozen=True):
        text: Annotated[str, Meta(max_length=1000, description="What the page says.")]

    class Website(msgspec.Struct, frozen=True):
        metadata: ObjectMeta
        spec: Annotated[Spec, validations(("self.text != ''", "text is empty"))]
        status: Status = Status()

    custom_resource_definition(Website, "example.com/v1/websites")

Kubernetes asks for structural schemas: inlined, typed, without unions. msgspec's own JSON Schema
has references and `anyOf`, so the types are walked here, and what a structural schema cannot say is
a TypeError that names the field, never left out. Descriptions are the first line of a Struct's
docstring and the `description` of a field's `Meta`; limits are those of `Meta`; whatever else a
schema may have goes through `Meta(extra_json_schema=...)`, of which `validations` makes one for CEL.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import inspect

from kubeloop.objects.conditions import Condition
from kubeloop.objects.gvk import GroupVersionResource

Schema: TypeAlias = dict[str, Any]
Within: TypeAlias = "tuple[type[msgspec.Struct], ...]"

_INT32_MAX = 2_147_483_647
_ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_SERVERS: Schema = {
    "apiVersion": {"type": "string", "description": "The version of this schema."},
    "kind": {"type": "string", "description": "The kind of the object."},
    "metadata": {"type": "object"},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; with a priority above 0 it is shown only with `-o wide`."""

    name: str
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    priority: int = 0

    def to_json(self) -> Schema:
        """Return the column as the definition has it."""
        shown: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return shown | ({"priority": self.priority} if self.priority else {})


def custom_resource_definition(
    kind: type[msgspec.Struct],
    resource: str | GroupVersionResource,
    *,
    name: str = "",
    namespaced: bool = True,
    columns: tuple[Column, ...] = (),
    short_names: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
) -> Schema:
    """Return the definition of a kind with one version, as an object ready to apply.

    `kind` is the Struct of whole objects: its `spec`, `status` and whatever else it has beside
    `metadata`. `name` is the kind's name if it is not the Struct's. A field `status` makes it a
    subresource. Raises TypeError for what no structural schema can say.
    """
    gvr, name = GroupVersionResource.parse(resource), name or kind.__name__
    schema = object_schema(kind)
    version: Schema = {"name": gvr.version, "served": True, "storage": True}
    if "status" in schema["properties"]:
        version["subresources"] = {"status": {}}
    for column in cast("tuple[object, ...]", columns):
        if not isinstance(column, Column):
            raise TypeError(f"columns has {column!r}: write Column(name, path)")
    if columns:
        version["additionalPrinterColumns"] = [column.to_json() for column in columns]
    version["schema"] = {"openAPIV3Schema": schema}
    names: Schema = {
        "kind": name,
        "listKind": f"{name}List",
        "plural": gvr.resource,
        "singular": name.lower(),
    }
    if short_names:
        names["shortNames"] = list(short_names)
    if categories:
        names["categories"] = list(categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{gvr.resource}.{gvr.group}"},
        "spec": {
            "group": gvr.group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def validations(*rules: tuple[str, str]) -> msgspec.Meta:
    """Return CEL rules, each with its message, as the `Meta` of the field that they are about."""
    listed = [{"rule": rule, "message": message} for rule, message in rules]
    return msgspec.Meta(extra_json_schema={"x-kubernetes-validations": listed})


def map_by(*keys: str) -> msgspec.Meta:
    """Return the `Meta` of a list whose items are keyed by fields, as conditions by `type`."""
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return msgspec.Meta(extra_json_schema=keyed)


def object_schema(kind: type[msgspec.Struct]) -> Schema:
    """Return the schema of whole objects; their metadata is the server's own business."""
    schema = struct_schema(kind)
    own = {name: part for name, part in schema["properties"].items() if name not in _SERVERS}
    schema["properties"] = _SERVERS | own
    required = [name for name in schema.pop("required", ()) if name in own]
    return schema | ({"required": required} if required else {})


def struct_schema(kind: type[msgspec.Struct], path: str = "", within: Within = ()) -> Schema:
    """Return the schema of a Struct's fields, with defaults, limits and descriptions."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return _described_schema(described, path or kind.__name__, within)


def _described_schema(described: inspect.StructType, path: str, within: Within) -> Schema:
    kind = described.cls
    if kind in within:
        raise TypeError(f"{path}: a structural schema cannot contain itself ({kind.__name__})")
    schema: Schema = {"type": "object"}
    if kind.__doc__:
        schema["description"] = kind.__doc__.strip().splitlines()[0]
    if any(field.encode_name == "observed_generation" for field in described.fields):
        raise TypeError(f'{path}: write rename="camel": clients read observedGeneration')
    schema["properties"] = {
        field.encode_name: _field_schema(field, f"{path}.{field.encode_name}", (*within, kind))
        for field in described.fields
    }
    required = [field.encode_name for field in described.fields if field.required]
    return schema | ({"required": required} if required else {})


def _field_schema(field: inspect.Field, path: str, within: Within) -> Schema:
    schema, default = type_schema(field.type, path, within), field.default
    unsaid = (msgspec.NODEFAULT, msgspec.UNSET, None, "", ())
    if default not in unsaid and not isinstance(default, msgspec.Struct):
        schema["default"] = default
    return schema


def type_schema(  # noqa: C901, PLR0911, PLR0912  (one case a type)
    described: inspect.Type, path: str = "it", within: Within = ()
) -> Schema:
    """Return the schema of one described type; raises TypeError for what cannot be structural."""
    match described:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return type_schema(inner, path, within) | (extra or {})
        case inspect.StrType():
            return {"type": "string"} | _limits(
                described, minLength="min_length", maxLength="max_length", pattern="pattern"
            )
        case inspect.IntType():
            limits = _limits(described, minimum="ge", maximum="le")
            small = limits.get("maximum", _INT32_MAX + 1) <= _INT32_MAX
            if limits.get("maximum") == _INT32_MAX:
                del limits["maximum"]  # the format says it
            return {"type": "integer", "format": "int32" if small else "int64"} | limits
        case inspect.FloatType():
            return {"type": "number"} | _limits(described, minimum="ge", maximum="le")
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case inspect.EnumType(cls=cls):
            return _enum([member.value for member in cls])
        case inspect.LiteralType(values=values):
            return _enum(list(values))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            limits = _limits(described, minItems="min_length", maxItems="max_length")
            found = {"type": "array", "items": type_schema(item, f"{path}[]", within)} | limits
            of_conditions = isinstance(item, inspect.StructType) and item.cls is Condition
            return found | ((map_by("type").extra_json_schema or {}) if of_conditions else {})
        case inspect.StructType():
            return _described_schema(described, path, within)
        case inspect.DictType(key_type=inspect.StrType(), value_type=inspect.AnyType()):
            return {"type": "object"} | _ANYTHING
        case inspect.DictType(key_type=inspect.StrType(), value_type=value):
            limits = _limits(described, minProperties="min_length", maxProperties="max_length")
            each = type_schema(value, f"{path}{{}}", within)
            return {"type": "object", "additionalProperties": each} | limits
        case inspect.AnyType():
            return dict(_ANYTHING)
        case inspect.UnionType(types=types):
            return _union(types, path, within)
    raise TypeError(
        f"{path}: a structural schema cannot describe {_word(described)}: use a string, a number, a"
        " bool, a datetime, a Literal, a list, a dict with string keys, or a Struct"
    )


def _word(described: inspect.Type) -> str:
    return type(described).__name__.removesuffix("Type").lower()


def _union(types: tuple[inspect.Type, ...], path: str, within: Within) -> Schema:
    present = [item for item in types if not isinstance(item, inspect.NoneType)]
    if len(present) == 1:
        return type_schema(present[0], path, within)
    if {type(item) for item in present} == {inspect.IntType, inspect.StrType}:
        return {"x-kubernetes-int-or-string": True}
    named = " | ".join(map(_word, types))
    raise TypeError(f"{path}: a structural schema has no unions but int | str: {named}")


def _enum(values: list[Any]) -> Schema:
    if isinstance(values[0], int):
        return {"type": "integer", "enum": sorted(values)}
    return {"type": "string", "enum": values}


def _limits(described: inspect.Type, **names: str) -> Schema:
    values = {ours: getattr(described, theirs, None) for ours, theirs in names.items()}
    return {name: value for name, value in values.items() if value is not None}
