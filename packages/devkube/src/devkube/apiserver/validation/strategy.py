"""Rules of a kind, and the strategy that applies them to one of Kubernetes' own types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from devkube.apiserver import status
from devkube.apiserver.crd.validation import fill
from devkube.apiserver.registry.resources import ServedVersion, dig, keep
from devkube.apiserver.schema.conform import Conformer, required_fields
from devkube.apiserver.schema.types import Type, TypeShape, walk
from devkube.apiserver.status import FieldError, invalid
from devkube.apiserver.validation import names
from kubeloop.objects.meta import JsonObject


def _leave(*_objects: JsonObject) -> None:
    """Change nothing."""


def _accept(*_objects: JsonObject) -> Iterable[FieldError]:
    return ()


def fixed(
    *fields: str, why: str = "field is immutable"
) -> Callable[[JsonObject, JsonObject], Iterator[FieldError]]:
    """Return the rule that refuses another value of these fields; their paths are dotted."""

    def judge(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
        for field in fields:
            value = dig(new, field.split("."))
            if value != dig(old, field.split(".")):
                yield invalid(field, value, why)

    return judge


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """The rules of one kind."""

    default: Callable[[JsonObject], None] = _leave
    prepare_create: Callable[[JsonObject], None] = _leave
    prepare_update: Callable[[JsonObject, JsonObject], None] = _leave
    validate: Callable[[JsonObject], Iterable[FieldError]] = _accept
    validate_update: Callable[[JsonObject, JsonObject], Iterable[FieldError]] = _accept
    name_rule: Callable[[str], list[str]] = names.dns_subdomain
    generation: bool = False
    blind_update: bool = True
    check_required: bool = True
    born_with_status: bool = False
    selectable: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


class BuiltinStrategy:
    """A kind whose type is in the derived tables."""

    def __init__(self, rules: KindRules, *, namespaced: bool) -> None:
        self._rules = rules
        self._namespaced = namespaced
        # Whether a change of the desired state increments the generation.
        self.tracks_generation = rules.generation
        # Whether an update without resourceVersion is taken.
        self.blind_update = rules.blind_update
        # Fields that field selectors may name.
        self.selectable = rules.selectable

    def decode(self, obj: JsonObject, served: ServedVersion) -> tuple[JsonObject, list[str]]:
        """Return the object as its type allows, and its unknown fields."""
        conformer = Conformer()
        return conformer.conform(obj, served.type), conformer.unknown

    def default(self, obj: JsonObject, served: ServedVersion) -> None:
        """Fill in the type's defaults, then the kind's own."""
        fill(obj, served.type)
        self._rules.default(obj)

    def prepare_create(self, obj: JsonObject, served: ServedVersion) -> None:
        """Drop a status that is not the user's to set."""
        if "status" in served.subresources and not self._rules.born_with_status:
            obj["status"] = {}
        self._rules.prepare_create(obj)

    def prepare_update(self, new: JsonObject, old: JsonObject, served: ServedVersion) -> None:
        """Leave the status unchanged."""
        if "status" in served.subresources:
            keep(new, old, "status")
        self._rules.prepare_update(new, old)

    def validate(self, obj: JsonObject, served: ServedVersion) -> list[FieldError]:
        """Return what is wrong with an object."""
        errors = names.check_metadata(
            obj.get("metadata", {}), namespaced=self._namespaced, name_rule=self._rules.name_rule
        )
        errors += _generic(obj, served.type, required=self._rules.check_required)
        found = {error.field for error in errors}
        errors += [error for error in self._rules.validate(obj) if error.field not in found]
        return errors

    def validate_update(
        self, new: JsonObject, old: JsonObject, served: ServedVersion
    ) -> list[FieldError]:
        """Return what is wrong with a change."""
        return list(self._rules.validate_update(new, old))


def _generic(obj: JsonObject, kind: Type, *, required: bool) -> list[FieldError]:
    """Judge everything but metadata and status by the type alone."""
    errors: list[FieldError] = []
    for name, field in kind.fields.items():
        if name in ("metadata", "status", "apiVersion", "kind") or name not in obj:
            continue
        if required:
            errors += [
                status.required(path) for path in required_fields(obj[name], field.type, name)
            ]
        errors += _choices(obj[name], field.type, name)
    if required:
        wanted = (name for name in kind.required if obj.get(name) in (None, "", [], {}))
        errors += [status.required(name) for name in wanted]
    return errors


def _choices(obj: Any, whole: Type, path: str) -> Iterator[FieldError]:
    for value, kind, where in walk(obj, whole, path):
        if isinstance(value, dict) and kind.shape is TypeShape.STRUCT:
            for name, child in value.items():
                field = kind.fields.get(name)
                if field and field.choices and child not in (*field.choices, ""):
                    yield status.unsupported(f"{where}.{name}", child, field.choices)
