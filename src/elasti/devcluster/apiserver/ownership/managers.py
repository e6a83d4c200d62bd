"""Managers of fields and what they own: `metadata.managedFields`, read and written."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.ownership.fieldset import FieldSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.objects.meta import JsonObject

_UPDATERS_LIMIT = 10
_ANCIENT = "ancient-changes"


@dataclasses.dataclass(frozen=True, slots=True)
class Manager:
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
class Entry:
    """What one manager owns, in which version of the kind, and since when."""

    fields: FieldSet
    version: str
    time: str


Entries = dict[Manager, Entry]


def read_entries(written: Iterable[Any]) -> Entries:
    """Read managedFields; what is malformed is ignored."""
    entries: Entries = {}
    for item in written:
        if not isinstance(item, dict) or not isinstance(item.get("fieldsV1"), dict):
            continue
        operation, version = item.get("operation", "Update"), item.get("apiVersion", "")
        manager = Manager(
            item.get("manager", ""),
            operation,
            version if operation == "Update" else "",
            item.get("subresource", ""),
        )
        entries[manager] = Entry(FieldSet.read(item["fieldsV1"]), version, item.get("time", ""))
    return entries


def write_entries(obj: JsonObject, entries: Entries) -> None:
    """Put managedFields into an object's metadata; nothing where nobody owns anything."""
    ordered = sorted(
        entries.items(), key=lambda pair: (pair[0].operation, pair[1].time, pair[0].name)
    )
    written = [_write_entry(manager, entry) for manager, entry in ordered]
    if written:
        obj["metadata"]["managedFields"] = written
    else:
        obj["metadata"].pop("managedFields", None)


def _write_entry(manager: Manager, entry: Entry) -> JsonObject:
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


def capped(entries: Entries) -> Entries:
    """Merge the oldest updaters into one when there are too many of them."""
    updaters = sorted(
        (pair for pair in entries.items() if pair[0].operation == "Update"),
        key=lambda pair: pair[1].time,
    )
    surplus = len(updaters) - _UPDATERS_LIMIT
    if surplus <= 0:
        return entries
    result = dict(entries)
    for manager, entry in updaters[: surplus + 1]:
        del result[manager]
        ancient = Manager(_ANCIENT, "Update", manager.version)
        known = result.get(ancient)
        fields = known.fields.union(entry.fields) if known is not None else entry.fields
        result[ancient] = dataclasses.replace(entry, fields=fields)
    return result


def timeless(obj: JsonObject) -> JsonObject:
    """Return an object without the times of its managers, for comparing."""
    metadata = {**obj["metadata"]}
    metadata["managedFields"] = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in metadata.get("managedFields") or ()
    ]
    return {**obj, "metadata": metadata}
