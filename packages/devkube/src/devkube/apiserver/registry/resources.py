"""Resources: what is served where, and how objects of each kind behave.

A `ServedResource` is one plural in one group, a `ServedVersion` is one of its versions. A strategy holds
what differs between kinds (decoding, defaults, what a write may change, validation); its methods change the
object that they are given, in place.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from devkube.apiserver import status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from devkube.apiserver.crd.serving import CustomStrategy
    from devkube.apiserver.schema.types import Type
    from devkube.apiserver.status import FieldError
    from devkube.apiserver.validation.strategy import BuiltinStrategy
    from kubeloop.objects.meta import JsonObject


ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
# Booleans that say false by being left out.
_ABSENT = {"spec.hostNetwork": False, "spec.unschedulable": False}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScalePaths:
    """Where a kind keeps what its scale subresource shows; paths are dotted, without a first dot."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = ""


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table: where its cell comes from is the table's own affair, or a JSONPath."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    path: str = msgspec.field(default="", name="jsonPath")


def no_conversion(obj: JsonObject) -> JsonObject:
    """Convert nothing."""
    return obj


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedVersion:
    """One version of a resource. `load` and `store` convert from and to the stored version.

    `warning` is what every answer says, for a version that is deprecated.
    """

    version: str
    type: Type
    warning: str = ""
    subresources: frozenset[str] = frozenset()
    scale: ScalePaths | None = None
    columns: tuple[TableColumn, ...] = ()
    definition: str = ""
    schema: JsonObject | None = None
    load: Callable[[JsonObject], JsonObject] = no_conversion
    store: Callable[[JsonObject], JsonObject] = no_conversion

    @property
    def is_stored(self) -> bool:
        """Whether objects are kept in this very version, so that no conversion is needed."""
        return self.load is no_conversion


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedResource:
    """One resource: a plural in a group, in one or several versions."""

    group: str
    plural: str
    singular: str
    kind: str
    list_kind: str
    namespaced: bool
    versions: tuple[ServedVersion, ...]
    strategy: BuiltinStrategy | CustomStrategy
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    collection: str = ""
    custom: bool = False

    def served(self, version: str) -> ServedVersion | None:
        """Return the version, or None if it is not served."""
        return next((served for served in self.versions if served.version == version), None)

    @property
    def stored_in(self) -> str:
        """The name of the collection that holds the objects."""
        return self.collection or f"{self.group}/{self.plural}"

    def api_version(self, served: ServedVersion) -> str:
        """Return the `apiVersion` of objects in a version."""
        return f"{self.group}/{served.version}" if self.group else served.version

    def not_found(self, name: str) -> status.StatusError:
        """404 for an object of this resource."""
        return status.not_found(self.group, self.plural, name)

    def conflict(self, name: str, why: str = status.MODIFIED) -> status.StatusError:
        """409 for an object of this resource."""
        return status.conflict(self.group, self.plural, name, why)

    def invalid(self, name: str, errors: Sequence[FieldError]) -> status.StatusError:
        """422 for an object of this resource."""
        return status.invalid_object(self.group, self.kind, name, errors)

    def fields_of(self, obj: JsonObject) -> dict[str, str]:
        """Return the values that field selectors compare, as text."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, path in self.strategy.selectable.items()
            if (value := dig(obj, path, _ABSENT.get(name))) is not None
        }


def dig(obj: Any, path: Sequence[str], default: Any = None) -> Any:
    """Return what lies at a path of keys; the default if there is nothing."""
    for key in path:
        if not isinstance(obj, dict):
            return default
        obj = obj.get(key)
    return default if obj is None else obj


def keep(new: JsonObject, old: JsonObject, name: str) -> None:
    """Copy a field of another object; drop it if that one lacks it."""
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


class ResourceRegistry:
    """Every resource that is served. `revision` changes with the set, for caches of discovery."""

    def __init__(self) -> None:
        self.revision = 0
        self._resources: dict[tuple[str, str], ServedResource] = {}
        self._order: list[tuple[str, str]] = []

    def add(
        self, resource: ServedResource, *, group_versions: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Serve a resource, in place of one of the same name."""
        self._resources[resource.group, resource.plural] = resource
        named = group_versions or [(resource.group, s.version) for s in resource.versions]
        self._order.extend(pair for pair in named if pair not in self._order)
        self.revision += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a resource."""
        if self._resources.pop((group, plural), None) is not None:
            alive = {(r.group, s.version) for r in self._resources.values() for s in r.versions}
            self._order = [pair for pair in self._order if pair in alive]
            self.revision += 1

    def get(self, group: str, plural: str) -> ServedResource | None:
        """Return a resource by group and plural."""
        return self._resources.get((group, plural))

    def find(self, group: str, version: str, plural: str) -> tuple[ServedResource, ServedVersion]:
        """Return a resource in a version; 404 if it is not served."""
        resource = self._resources.get((group, plural))
        served = resource.served(version) if resource is not None else None
        if resource is None or served is None:
            raise status.no_such_path()
        return resource, served

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(self._resources.values())

    def group_versions(self) -> list[tuple[str, str]]:
        """Return the (group, version) pairs served, in order of preference."""
        return list(self._order)

    def in_version(self, group: str, version: str) -> list[tuple[ServedResource, ServedVersion]]:
        """Return the resources of a group version."""
        return [
            (resource, served)
            for resource in self._resources.values()
            if resource.group == group and (served := resource.served(version)) is not None
        ]
