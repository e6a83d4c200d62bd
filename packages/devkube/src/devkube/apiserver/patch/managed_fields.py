"""`metadata.managedFields`: sets of field paths, and the managers that own them.

A path is a tuple of elements in their written form: `f:name` for a field, `k:{...}` for an item of a
keyed list, `v:...` for an item of a set, `i:0` for an index. A set is a tree: the elements that are
members at this level, and a set below each element.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kubeloop.objects.meta import JsonObject

_SELF = "."


class FieldSet:
    """A set of paths. Operations return new sets; `insert` is for building one."""

    __slots__ = ("children", "members")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.children: dict[str, FieldSet] = {}

    @classmethod
    def of(cls, *paths: Sequence[str]) -> FieldSet:
        """Build a set of paths."""
        result = cls()
        for path in paths:
            result.insert(path)
        return result

    @classmethod
    def read(cls, fields: JsonObject) -> FieldSet:
        """Read `fieldsV1`; anything but an object is ignored there."""
        result = cls()
        for element, below in fields.items():
            if element == _SELF or not isinstance(below, dict):
                continue
            if not below or _SELF in below:
                result.members.add(element)
            child = cls.read(below)
            if not child.is_empty:
                result.children[element] = child
        return result

    def write(self) -> JsonObject:
        """Return `fieldsV1`."""
        result: JsonObject = {}
        for element in sorted(self.members | self.children.keys()):
            child = self.children.get(element)
            below = child.write() if child is not None else {}
            result[element] = {_SELF: {}, **below} if element in self.members and below else below
        return result

    def insert(self, path: Sequence[str]) -> None:
        """Add a path."""
        node = self
        for element in path[:-1]:
            node = node.children.setdefault(element, FieldSet())
        if path:
            node.members.add(path[-1])

    @property
    def is_empty(self) -> bool:
        """Whether there is no path in it."""
        return not self.members and all(child.is_empty for child in self.children.values())

    def below(self, element: str) -> FieldSet:
        """Return the set under an element."""
        return self.children.get(element) or FieldSet()

    def union(self, other: FieldSet) -> FieldSet:
        """Return paths of either."""
        result = FieldSet()
        result.members = self.members | other.members
        for element in self.children.keys() | other.children.keys():
            mine, theirs = self.children.get(element), other.children.get(element)
            if mine is None or theirs is None:
                result.children[element] = mine or theirs or FieldSet()
            else:
                result.children[element] = mine.union(theirs)
        return result

    def intersection(self, other: FieldSet) -> FieldSet:
        """Return paths of both."""
        result = FieldSet()
        result.members = self.members & other.members
        for element in self.children.keys() & other.children.keys():
            result._keep(element, self.children[element].intersection(other.children[element]))
        return result

    def difference(self, other: FieldSet) -> FieldSet:
        """Return paths that the other has not."""
        return self._minus(other, below=False)

    def without(self, other: FieldSet) -> FieldSet:
        """Return paths that are not in the other and not under one of its members."""
        return self._minus(other, below=True)

    def _minus(self, other: FieldSet, *, below: bool) -> FieldSet:
        result = FieldSet()
        result.members = self.members - other.members
        for element, child in self.children.items():
            if not below or element not in other.members:
                theirs = other.children.get(element)
                left = child if theirs is None else child._minus(theirs, below=below)
                result._keep(element, left)
        return result

    def only(self, element: str) -> FieldSet:
        """Return paths that begin with an element."""
        result = FieldSet()
        result.members = self.members & {element}
        if element in self.children:
            result.children[element] = self.children[element]
        return result

    def paths(self) -> Iterator[tuple[str, ...]]:
        """Yield every path, a level's own before those below it."""
        yield from ((element,) for element in sorted(self.members))
        for element in sorted(self.children):
            for rest in self.children[element].paths():
                yield (element, *rest)

    def _keep(self, element: str, child: FieldSet) -> None:
        if not child.is_empty:
            self.children[element] = child

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldSet) and self.write() == other.write()

    __hash__ = None  # type: ignore[assignment]  # a set that is built step by step has no hash


def show_path(path: Sequence[str]) -> str:
    """Write a path for people: `.spec.containers[name="web"].image`."""
    return "".join(_show_element(element) for element in path)


def _show_element(element: str) -> str:
    kind, _, rest = element.partition(":")
    match kind:
        case "f":
            return f".{rest}"
        case "k":
            pairs = json.loads(rest).items()
            return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in pairs) + "]"
        case "v":
            return f"[={rest}]"
        case _:
            return f"[{rest}]"


def value_element(value: Any) -> str:
    """Return the element of a set's item."""
    return "v:" + json.dumps(value, separators=(",", ":"), sort_keys=True)


def key_element(keys: JsonObject) -> str:
    """Return the element of a keyed list's item."""
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldManager:
    """Who owns fields: a name, by which operation, in which version, through which subresource."""

    name: str
    operation: str
    version: str
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.version}" if self.operation == "Update" else text


@dataclasses.dataclass(frozen=True, slots=True)
class ManagedFieldsEntry:
    """The fields that one manager owns, in which version of the kind, with the time."""

    fields: FieldSet
    version: str
    time: str


Entries = dict[FieldManager, ManagedFieldsEntry]


def read_entries(written: Iterable[Any]) -> Entries:
    """Read managedFields; what is malformed is ignored."""
    entries: Entries = {}
    for item in written:
        if not isinstance(item, dict) or not isinstance(item.get("fieldsV1"), dict):
            continue
        operation, version = item.get("operation", "Update"), item.get("apiVersion", "")
        manager = FieldManager(
            item.get("manager", ""),
            operation,
            version if operation == "Update" else "",
            item.get("subresource", ""),
        )
        entries[manager] = ManagedFieldsEntry(
            FieldSet.read(item["fieldsV1"]), version, item.get("time", "")
        )
    return entries


def write_entries(obj: JsonObject, entries: Entries) -> None:
    """Put managedFields into an object's metadata; nothing if no manager owns anything."""
    ordered = sorted(
        entries.items(), key=lambda pair: (pair[0].operation, pair[1].time, pair[0].name)
    )
    written = [_write_entry(manager, entry) for manager, entry in ordered]
    if written:
        obj["metadata"]["managedFields"] = written
    else:
        obj["metadata"].pop("managedFields", None)


def _write_entry(manager: FieldManager, entry: ManagedFieldsEntry) -> JsonObject:
    written = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": entry.version,
        "time": entry.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields.write(),
    }
    if manager.subresource:
        written["subresource"] = manager.subresource
    return written


def timeless(obj: JsonObject) -> JsonObject:
    """Return an object without the times of its managers, for comparing."""
    metadata = {**obj["metadata"]}
    metadata["managedFields"] = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in metadata.get("managedFields") or ()
    ]
    return {**obj, "metadata": metadata}
