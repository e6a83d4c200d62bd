"""What is different between an object as it is and as it would be. Pure.

Items of a list are matched by their `name` where they have one, else by their place, so that a
variable that comes in between does not show as a change of all that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.objects.meta import JsonObject

# What the server keeps for itself, and changes with every write.
_SERVERS_OWN = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"}
)
_LONGEST = 60


class Difference(NamedTuple):
    """One field; None where it is not there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: JsonObject, after: JsonObject) -> list[Difference]:
    """Return the fields that differ, in order; the status and the server's own fields aside."""
    return list(_between("", _stripped(before), _stripped(after)))


def _stripped(obj: JsonObject) -> JsonObject:
    meta = {k: v for k, v in obj.get("metadata", {}).items() if k not in _SERVERS_OWN}
    return {**{k: v for k, v in obj.items() if k != "status"}, "metadata": meta}


def _between(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            yield from _between(_joined(path, key), before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _between_lists(path, before, after)
    else:
        yield Difference(path, before, after)


def _between_lists(path: str, before: list[Any], after: list[Any]) -> Iterator[Difference]:
    old, new = _keyed(before), _keyed(after)
    for key in (*old, *(key for key in new if key not in old)):
        yield from _between(f"{path}[{key}]", old.get(key), new.get(key))


def _keyed(items: list[Any]) -> dict[str, Any]:
    names = [item.get("name") for item in items if isinstance(item, dict)]
    if len(names) == len(items) == len({*names} - {None}):
        return dict(zip(map(str, names), items, strict=True))
    return {str(place): item for place, item in enumerate(items)}


def _joined(path: str, key: str) -> str:
    shown = f"[{key}]" if "." in key or "/" in key else f".{key}"
    return f"{path}{shown}".removeprefix(".")


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
