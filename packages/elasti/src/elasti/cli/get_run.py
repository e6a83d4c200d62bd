"""What `elasti get` does: reads ElastiServices and what their resolvers hold, and prints rows."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

import click

from elasti.api.names import NAMESPACE
from elasti.cli import view
from elasti.cli.elastiservices import ElastiServices, watch_elastiservices
from elasti.cli.held import HeldCounts, read_held
from elasti.cli.rendering import line, render, render_line, table, widths
from elasti.cli.running import connected
from elasti.cli.view import ElastiServiceRow, NotAsleepReason, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.cli.elastiservices import ElastiServiceChange
    from elasti.cli.options import AccessOptions
    from kubeloop.client import Client

_TABLES = ("table", "wide")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetQuery:
    """What is asked for, and in which form."""

    names: tuple[str, ...] = ()
    namespace: str | None = None
    everywhere: bool = False
    output: str = "table"
    elasti_namespace: str = NAMESPACE

    def place(self, client: Client) -> str:
        """Return the namespace to look in; empty for all."""
        return "" if self.everywhere else self.namespace or client.namespace

    def includes(self, name: str) -> bool:
        """Whether an ElastiService of that name is wanted."""
        return not self.names or name in self.names


async def show(access: AccessOptions, wanted: GetQuery, *, say: Callable[..., None]) -> None:
    """Print what there is. Raises Failure."""
    async with connected(access) as client:
        found = await ElastiServices(client, wanted.place(client)).named(wanted.names)
        held = await _held(client, wanted) if found else HeldCounts({})
        place = wanted.place(client)
    rows = [row_of(es, held.counts) for es in found]
    if rows or wanted.output not in _TABLES:
        say(listed(rows, wanted, _now()), nl=False)
    else:
        where = f"in namespace {place}" if place else "in this cluster"
        say(f"There is no ElastiService {where}.", err=True)
    _report_unknown(held)


async def watch_changes(
    access: AccessOptions, wanted: GetQuery, *, say: Callable[..., None]
) -> None:
    """Print what there is, and then every change, until cancelled. Raises Failure."""
    async with connected(access) as client:
        objects = ElastiServices(client, wanted.place(client))
        held = await _held(client, wanted)
        rows = [row_of(es, held.counts) for es in await objects.named(wanted.names)]
        printer = RowPrinter(wanted, rows, say)
        _report_unknown(held)
        async with watch_elastiservices(client, objects.namespace) as changes:
            while True:
                change = await changes.next()
                if wanted.includes(change.es.metadata.name):
                    held = await _held(client, wanted)
                    printer.show(_changed(change, held))


async def _held(client: Client, wanted: GetQuery) -> HeldCounts:
    if wanted.output == "name":
        return HeldCounts(None)
    return await read_held(client, wanted.elasti_namespace)


def _changed(change: ElastiServiceChange, held: HeldCounts) -> ElastiServiceRow:
    row = row_of(change.es, held.counts)
    return dataclasses.replace(row, why=NotAsleepReason("Deleted")) if change.deleted else row


def listed(rows: Sequence[ElastiServiceRow], wanted: GetQuery, now: dt.datetime) -> str:
    """Return rows in the form that is wanted."""
    match wanted.output:
        case "json" | "yaml":
            return render([row.to_json() for row in rows], wanted.output)
        case "name":
            return "".join(f"{view.full_name(row)}\n" for row in rows)
        case _:
            form = {"wide": wanted.output == "wide", "everywhere": wanted.everywhere}
            body = [view.cells(row, now, **form) for row in rows]
            return table(view.heads(**form), body)


class RowPrinter:
    """Prints rows below each other; one that did not change is not printed again."""

    def __init__(
        self, wanted: GetQuery, rows: Sequence[ElastiServiceRow], say: Callable[..., None]
    ) -> None:
        self._wanted = wanted
        self._say = say
        self._form = {"wide": wanted.output == "wide", "everywhere": wanted.everywhere}
        heads = view.heads(**self._form)
        body = [heads, *(view.cells(row, _now(), **self._form) for row in rows)]
        self._widths = widths(body)
        self._shown: dict[tuple[str, str], ElastiServiceRow] = {}
        if wanted.output in _TABLES:
            say(line(heads, self._widths))
        for row in rows:
            self.show(row)

    def show(self, row: ElastiServiceRow) -> None:
        """Print a row, if it differs from what was printed of it before."""
        key = (row.namespace, row.name)
        if self._shown.get(key) == row:
            return
        self._shown[key] = row
        match self._wanted.output:
            case "json" | "yaml":
                self._say(render_line(row.to_json(), self._wanted.output), nl=False)
            case "name":
                self._say(view.full_name(row))
            case _:
                self._say(line(view.cells(row, _now(), **self._form), self._widths))


def _report_unknown(held: HeldCounts) -> None:
    if held.counts is None and held.why:
        click.echo(f"HELD is not known: {held.why}", err=True)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
