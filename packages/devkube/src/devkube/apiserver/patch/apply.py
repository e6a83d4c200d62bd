"""Server-side apply: managedFields kept up to date by every write, conflicts, pruning."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TypeVar

from devkube.apiserver import status
from devkube.apiserver.calls import Call
from devkube.apiserver.patch.managed_fields import (
    Entries,
    FieldManager,
    FieldSet,
    ManagedFieldsEntry,
    read_entries,
    show_path,
    timeless,
    write_entries,
)
from devkube.apiserver.patch.structured_merge import (
    Comparison,
    MergeError,
    compare,
    field_set,
    merge,
    remove,
    with_named_members,
)
from devkube.apiserver.schema.types import zero_value
from devkube.apiserver.validation.names import Stamps
from kubeloop.objects.meta import JsonObject

_BEFORE_APPLY = "before-first-apply"
_UNOWNED = FieldSet.of(
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        )
    ),
)


_STATUS = FieldSet.of(("f:status",))
F = TypeVar("F", FieldSet, Comparison)


class FieldTracker:
    """Computes `metadata.managedFields`."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    def created(self, call: Call, obj: JsonObject) -> None:
        """Make the creator the owner of everything in a new object."""
        self._record(call, zero_value(call.served.type), obj, {})

    def updated(self, call: Call, new: JsonObject, old: JsonObject) -> None:
        """Make the writer the owner of what it changed; others lose it."""
        metadata = new["metadata"]
        given = metadata.pop("managedFields", None)
        known = old["metadata"].get("managedFields")
        if given is not None and not any(given):
            return  # asked to forget all owners
        if known:
            self._record(call, old, new, read_entries(given or known))

    def applied_new(self, call: Call, obj: JsonObject, config: JsonObject) -> None:
        """Make the applier the owner of its configuration in an object that apply created."""
        manager = self._manager(call, "Apply")
        write_entries(obj, {manager: self._entry(call, self._owned(call, config))})

    def check(self, call: Call, config: JsonObject) -> None:
        """Refuse a configuration whose lists repeat a key."""
        try:
            # Merged into itself, so that every list is looked at.
            merge(config, config, call.served.type)
        except MergeError as error:
            raise unusable(call, str(error)) from error

    def apply(self, call: Call, live: JsonObject, config: JsonObject) -> JsonObject:
        """Return the live object with a configuration applied; 409 where others own its fields."""
        kind = call.served.type
        self.check(call, config)
        entries = read_entries(live["metadata"].get("managedFields") or [])
        if not entries:
            entries = self._adopted(call, live)
        manager = self._manager(call, "Apply")
        last = entries.get(manager)
        try:
            merged = merge(live, config, kind)
            owned = self._owned(call, config)
            entries[manager] = self._entry(call, owned)
            if last is not None:
                merged = self._prune(call, merged, entries, last.fields)
        except MergeError as error:
            raise unusable(call, str(error)) from error
        merged["metadata"] = dict(merged.get("metadata") or {})
        entries = self._settle(call, live, merged, entries, manager)
        if last is not None and manager in entries and last.fields == owned:
            entries[manager] = dataclasses.replace(entries[manager], time=last.time)
        write_entries(merged, entries)
        return dict(merged)

    def same(self, new: JsonObject, old: JsonObject) -> bool:
        """Whether two states differ in nothing but the times of managers."""
        return timeless(new) == timeless(old)

    def _adopted(self, call: Call, live: JsonObject) -> Entries:
        manager = FieldManager(_BEFORE_APPLY, "Update", call.resource.api_version(call.served))
        change = self._compare(call, zero_value(call.served.type), live)
        return {manager: self._entry(call, change.added.union(change.modified))}

    def _settle(
        self,
        call: Call,
        live: JsonObject,
        merged: JsonObject,
        entries: Entries,
        manager: FieldManager,
    ) -> Entries:
        change = self._compare(call, live, merged)
        conflicts = _conflicts(entries, change, manager)
        if conflicts and not call.force:
            raise _refusal(conflicts)
        return _released(entries, change, conflicts, manager)

    def _prune(
        self, call: Call, merged: JsonObject, entries: Entries, last: FieldSet
    ) -> JsonObject:
        """Remove what the manager applied last time, not this time, and no other manager owns."""
        kind = call.served.type
        named = functools.partial(with_named_members, kind=kind)
        pruned = remove(merged, named(last), kind) or {}
        everything, left = named(field_set(merged, kind)), named(field_set(pruned, kind))
        owned = FieldSet()
        for entry in entries.values():
            owned = owned.union(entry.fields)
        pruned = remove(merged, everything.difference(left.union(named(owned))), kind) or {}
        left = named(field_set(pruned, kind))
        gone = everything.difference(left).intersection(named(last))
        return dict(remove(merged, gone, kind) or {})

    def _record(self, call: Call, old: JsonObject, new: JsonObject, entries: Entries) -> None:
        try:
            change = self._compare(call, old, new)
        except MergeError:
            # A list that breaks its own keys cannot be tracked; the write itself is judged elsewhere.
            write_entries(new, entries)
            return
        conflicts = _conflicts(entries, change, None)
        entries = _released(entries, change, conflicts, None)
        taken = change.modified.union(change.added)
        if not taken.is_empty:
            manager = self._manager(call, "Update")
            known = entries.pop(manager, None)
            fields = taken.union(known.fields) if known is not None else taken
            entries[manager] = self._entry(call, fields)
        write_entries(new, entries)

    def _compare(self, call: Call, old: JsonObject, new: JsonObject) -> Comparison:
        change = compare(old, new, call.served.type).without(_UNOWNED)
        change.added.members.discard("f:metadata")
        change.removed.members.discard("f:metadata")
        return _written_at(call, change)

    def _owned(self, call: Call, config: JsonObject) -> FieldSet:
        fields = field_set(config, call.served.type).without(_UNOWNED)
        fields.members.discard("f:metadata")
        return _written_at(call, fields)

    def _manager(self, call: Call, operation: str) -> FieldManager:
        version = call.resource.api_version(call.served) if operation == "Update" else ""
        return FieldManager(call.manager, operation, version, call.attributes.subresource)

    def _entry(self, call: Call, fields: FieldSet) -> ManagedFieldsEntry:
        return ManagedFieldsEntry(
            fields, call.resource.api_version(call.served), self._stamps.now()
        )


def _written_at(call: Call, fields: F) -> F:
    """Return what of these fields the call's path writes: the status has a path of its own."""
    if call.attributes.subresource == "status":
        return fields.only("f:status")
    return fields.without(_STATUS) if "status" in call.served.subresources else fields


def unusable(call: Call, why: str) -> status.StatusError:
    """400 for a configuration that the type does not allow; the real server says 500."""
    name = f"{call.namespace}/{call.name}"
    version = call.resource.api_version(call.served)
    return status.bad_request(
        f"failed to create typed patch object ({name}; {version}, Kind={call.resource.kind}): {why}"
    )


def _conflicts(
    entries: Entries, change: Comparison, manager: FieldManager | None
) -> Mapping[FieldManager, FieldSet]:
    touched = change.modified.union(change.added)
    found = {
        other: entry.fields.intersection(touched)
        for other, entry in entries.items()
        if other != manager
    }
    return {other: fields for other, fields in found.items() if not fields.is_empty}


def _released(
    entries: Entries,
    change: Comparison,
    conflicts: Mapping[FieldManager, FieldSet],
    manager: FieldManager | None,
) -> Entries:
    """Take from the other managers what changed hands and what is gone."""
    result: Entries = {}
    for other, entry in entries.items():
        fields = entry.fields
        if other != manager:
            fields = fields.difference(conflicts.get(other) or FieldSet())
            fields = fields.difference(change.removed)
        if not fields.is_empty:
            result[other] = dataclasses.replace(entry, fields=fields)
    return result


def _refusal(conflicts: Mapping[FieldManager, FieldSet]) -> status.StatusError:
    pairs = [
        (str(manager), show_path(path)) for manager, f in conflicts.items() for path in f.paths()
    ]
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in pairs
    ]
    if len(pairs) == 1:
        message = f"Apply failed with 1 conflict: conflict with {pairs[0][0]}: {pairs[0][1]}"
    else:
        lines = []
        for manager in sorted({manager for manager, _ in pairs}):
            lines.append(f"conflicts with {manager}:")
            lines += [f"- {path}" for owner, path in pairs if owner == manager]
        message = f"Apply failed with {len(pairs)} conflicts: " + "\n".join(lines)
    return status.failure(409, "Conflict", message, details={"causes": causes})
