"""Fields of a fake API server's objects: who owns which, and JSON patches to them.

Ownership is that of server-side apply with one simplification: a list is one field, whatever its
kind says about merging it. A field belongs to the managers that applied it, or to the last one that
changed it otherwise; a manager that does both is two owners, as on a server. Owners are named as in
a Conflict: `"name"`, or `"name" using v1`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from kubeloop.client.errors import StatusCause
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import apply_merge_patch, same_json
from kubeloop.testing.fake_copies import copied
from kubeloop.testing.fake_errors import api_error

Path: TypeAlias = tuple[str, ...]

_OWNED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


class Ownership:
    """Which manager owns which fields, by the uid of the object."""

    def __init__(self) -> None:
        self._owned: dict[str, dict[str, set[Path]]] = {}

    def applied(
        self, before: JsonObject, content: JsonObject, *, manager: str, force: bool
    ) -> JsonObject:
        """Return what an apply makes of an object. Raises the Conflict with other managers."""
        manager = f'"{manager}"'
        conflicts = self._conflicts(before, content, manager)
        if conflicts and not force:
            raise _conflict(conflicts)
        owned = self._of(before)
        others = set().union(*(paths for other, paths in owned.items() if other != manager))
        result: JsonObject = apply_merge_patch(before, content)
        for path in owned.get(manager, set()) - _leaves(content).keys() - others:
            result = _without(result, path)
        return result

    def claim(self, before: JsonObject, content: JsonObject, *, manager: str) -> None:
        """Record an apply that was stored; what it took from others is theirs no longer."""
        owned, manager = self._of(before), f'"{manager}"'
        for other, path in self._conflicts(before, content, manager):
            owned[other].discard(path)
        owned[manager] = set(_leaves(content))

    def changed(self, before: JsonObject | None, after: JsonObject, *, owner: str) -> None:
        """Record a write other than an apply."""
        old, new = _leaves(before or {}), _leaves(after)
        changed = {path for path, value in new.items() if not same_json(old.get(path), value)}
        owned = self._of(after)
        for paths in owned.values():
            paths.difference_update(changed, old.keys() - new.keys())
        owned.setdefault(owner, set()).update(changed)

    def _of(self, obj: JsonObject) -> dict[str, set[Path]]:
        return self._owned.setdefault(obj["metadata"]["uid"], {})

    def _conflicts(
        self, before: JsonObject, content: JsonObject, manager: str
    ) -> list[tuple[str, Path]]:
        now, wanted = _leaves(before), _leaves(content)
        return [
            (other, path)
            for other, paths in self._of(before).items()
            for path in sorted(paths & wanted.keys())
            if other != manager and not same_json(now.get(path), wanted[path])
        ]


def _leaves(obj: JsonObject) -> dict[Path, Any]:
    kept = {name: value for name, value in obj.items() if name not in {"apiVersion", "kind"}}
    metadata = kept.pop("metadata", None) or {}
    owned = {name: metadata[name] for name in _OWNED_METADATA if name in metadata}
    return _flat(kept | {"metadata": owned}, ())


def _flat(value: Any, path: Path) -> dict[Path, Any]:
    if not isinstance(value, dict) or (path and not value):
        return {path: value}
    found: dict[Path, Any] = {}
    for name, inner in value.items():
        found |= _flat(inner, (*path, name))
    return found


def _without(obj: JsonObject, path: Path) -> JsonObject:
    removal: Any = None
    for name in reversed(path):
        removal = {name: removal}
    result: JsonObject = apply_merge_patch(obj, removal)
    return result


def _conflict(conflicts: list[tuple[str, Path]]) -> Exception:
    """Return the error of a server, which names each owner once."""
    fields: dict[str, list[str]] = {}
    for manager, path in conflicts:
        fields.setdefault(manager, []).append("." + ".".join(path))
    causes = tuple(
        StatusCause("FieldManagerConflict", f"conflict with {manager}", field)
        for manager, owned in fields.items()
        for field in owned
    )
    text = f"1 conflict: {causes[0].message}: {causes[0].field}"
    if len(causes) > 1:
        listed = ("\n- ".join([f"conflicts with {one}:", *fields[one]]) for one in fields)
        text = f"{len(causes)} conflicts: " + "\n".join(listed)
    return api_error(409, "Conflict", f"Apply failed with {text}", causes=causes)


def apply_json_patch(document: Any, operations: list[JsonObject]) -> Any:
    """Return what the operations make of a document; raises Invalid, with what a server says."""
    result = copied(document)
    for operation in operations:
        try:
            _operate(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            message = (
                "the server rejected our request due to an error in our request: the patch failed at"
                f" {operation}: {type(error).__name__}: {error}"
            )
            raise api_error(422, "Invalid", message) from error
    return result


def _operate(document: Any, operation: JsonObject) -> None:
    target, key = _target(document, operation["path"])
    match operation["op"]:
        case "remove":
            del target[key]
        case "test":
            if not same_json(target[key], operation["value"]):
                raise ValueError(f"the value is {target[key]!r}")
        case "replace" if isinstance(target, list):
            target[key] = operation["value"]
        case "add" | "replace":  # a server adds the field that a `replace` does not find
            _add(target, key, operation["value"])
        case "copy" | "move" as op:
            source, last = _target(document, operation["from"])
            _add(target, key, copied(source[last]) if op == "copy" else source.pop(last))
        case other:
            raise ValueError(f"a FakeClient knows no operation {other!r}")


def _target(document: Any, pointer: str) -> tuple[Any, Any]:
    """Return the container that a JSON pointer leads to, and the key or index there."""
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    for part in parents:
        document = document[int(part) if isinstance(document, list) else part]
    if isinstance(document, list):
        return document, len(document) if last == "-" else int(last)
    return document, last


def _add(target: Any, key: Any, value: Any) -> None:
    if isinstance(target, list):
        target.insert(key, value)
    else:
        target[key] = value
