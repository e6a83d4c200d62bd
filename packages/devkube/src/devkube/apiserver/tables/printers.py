"""Printers: columns of a kind, and the cells of an object.

Kubernetes' own kinds are in `kinds`; columns of custom kinds have a JSONPath of fields, indices, `[*]`
and `[?(@.a=="b")]` filters.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

from devkube.apiserver.registry.resources import ServedResource, ServedVersion, TableColumn
from devkube.apiserver.tables.cells import age
from devkube.apiserver.tables.kinds import KINDS, PLAIN
from kubeloop.objects.meta import JsonObject

_STEP = re.compile(
    r"""
      \.(?P<field>(?:[^.\[\]\\]|\\.)+)
    | \['(?P<quoted>[^']*)'\]
    | \[(?P<index>-?\d+)\]
    | (?P<all>\[\*\]|\.\*)
    | \[\?\(\s*@(?P<left>(?:\.[\w\-\\./]+)+)\s*(?P<sign>==|!=)\s*(?P<right>"[^"]*"|'[^']*'|[\w.\-]+)\s*\)\]
    """,
    re.VERBOSE,
)

JsonPath = tuple[tuple[str, Any], ...]
NAME = TableColumn(name="Name", format="name")


def parse_path(text: str) -> JsonPath:
    """Parse a path; ValueError for syntax that printer columns do not have."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[tuple[str, Any]] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            raise ValueError(f"{text!r} is not a JSON path at {text[position:]!r}")
        steps.append(_step(found))
        position = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> tuple[str, Any]:
    if found["field"] is not None:
        return "field", re.sub(r"\\(.)", r"\1", found["field"])
    if found["quoted"] is not None:
        return "field", found["quoted"]
    if found["index"] is not None:
        return "index", int(found["index"])
    if found["all"] is not None:
        return "all", None
    right = found["right"]
    value = right[1:-1] if right[0] in "\"'" else json.loads(right)
    return "filter", (parse_path(found["left"]), found["sign"] == "==", value)


def find_matches(path: JsonPath, value: Any) -> list[Any]:
    """Return every match."""
    found = [value]
    for kind, argument in path:
        found = [child for item in found for child in _children(kind, argument, item)]
    return found


def first_match(path: JsonPath, value: Any) -> Any:
    """Return the first match, or None."""
    found = find_matches(path, value)
    return found[0] if found else None


def _children(kind: str, argument: Any, value: Any) -> list[Any]:
    match kind:
        case "field":
            return [value[argument]] if isinstance(value, dict) and argument in value else []
        case "index":
            inside = isinstance(value, list) and -len(value) <= argument < len(value)
            return [value[argument]] if inside else []
        case "all":
            if isinstance(value, list):
                return value
            return list(value.values()) if isinstance(value, dict) else []
        case _:
            left, equal, right = argument
            items = value if isinstance(value, list) else []
            return [item for item in items if (first_match(left, item) == right) is equal]


@dataclasses.dataclass(frozen=True, slots=True)
class TablePrinter:
    """Columns, and a function from an object and the time to its cells."""

    columns: tuple[TableColumn, ...]
    cells: Callable[[JsonObject, dt.datetime], list[Any]]

    def definitions(self) -> list[JsonObject]:
        """Return the column definitions."""
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description or column.name,
                "priority": column.priority,
            }
            for column in self.columns
        ]


def printer_for(resource: ServedResource, served: ServedVersion) -> TablePrinter:
    """Return the printer of a resource's version."""
    if resource.custom:
        return _custom(served)
    printed = KINDS.get(resource.kind, PLAIN)
    return TablePrinter(
        tuple(item.column for item in printed),
        lambda obj, now: [item.cell(obj, now) for item in printed],
    )


def _custom(served: ServedVersion) -> TablePrinter:
    extra = served.columns or (
        TableColumn(name="Age", type="date", path=".metadata.creationTimestamp"),
    )
    paths = [parse_path(column.path) for column in extra]

    def cells(obj: JsonObject, now: dt.datetime) -> list[Any]:
        values = [
            _custom_cell(first_match(path, obj), column.type, now)
            for path, column in zip(paths, extra, strict=True)
        ]
        return [str(obj["metadata"].get("name", "")), *values]

    return TablePrinter((NAME, *extra), cells)


def _custom_cell(value: Any, kind: str, now: dt.datetime) -> Any:
    if value is None:
        return None
    match kind:
        case "date":
            return age(value, now) if isinstance(value, str) else "<unknown>"
        case "integer":
            return int(value) if isinstance(value, int | float) else None
        case "number":
            return value if isinstance(value, int | float) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
