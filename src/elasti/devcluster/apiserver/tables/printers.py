"""Printers: columns of a kind, and the cells of an object."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.resources import Column
from elasti.devcluster.apiserver.tables import jsonpath
from elasti.devcluster.apiserver.tables.builtin import PRINTERS
from elasti.devcluster.apiserver.tables.cells import age

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from elasti.devcluster.apiserver.resources import Resource, Served
    from kubeloop.objects.meta import JsonObject

NAME = Column(name="Name", format="name")
AGE = Column(name="Age")


@dataclasses.dataclass(frozen=True, slots=True)
class Printer:
    """Columns, and a function from an object and the time to its cells."""

    columns: tuple[Column, ...]
    cells: Callable[[JsonObject, dt.datetime], list[Any]]


def printer_for(resource: Resource, served: Served) -> Printer:
    """Return the printer of a resource's version."""
    if resource.custom:
        return _custom(served)
    known = PRINTERS.get(resource.kind)
    if known is None:
        return Printer((NAME, AGE), lambda obj, now: [_name(obj), age(_created(obj), now)])
    columns, cells = known
    return Printer(columns, cells)


def _custom(served: Served) -> Printer:
    extra = served.columns or (Column(name="Age", type="date", path=".metadata.creationTimestamp"),)
    paths = [jsonpath.parse(column.path) for column in extra]

    def cells(obj: JsonObject, now: dt.datetime) -> list[Any]:
        values = [
            _custom_cell(jsonpath.first(path, obj), column.type, now)
            for path, column in zip(paths, extra, strict=True)
        ]
        return [_name(obj), *values]

    return Printer((NAME, *extra), cells)


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
            return value if isinstance(value, str) else jsonpath.show(value)


def _name(obj: JsonObject) -> str:
    return str(obj["metadata"].get("name", ""))


def _created(obj: JsonObject) -> str:
    return str(obj["metadata"].get("creationTimestamp", ""))


class Table:
    """A printer at one moment."""

    def __init__(self, printer: Printer, *, now: dt.datetime) -> None:
        self._printer = printer
        self._now = now

    def columns(self) -> list[JsonObject]:
        """Return the column definitions."""
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description or column.name,
                "priority": column.priority,
            }
            for column in self._printer.columns
        ]

    def cells(self, obj: JsonObject) -> list[Any]:
        """Return an object's cells."""
        return self._printer.cells(obj, self._now)
