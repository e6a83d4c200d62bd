"""`elasti get`: the ElastiServices of a cluster, and why they are not asleep."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import GROUP, NAMESPACE
from elasti.cli.options import (
    cluster_options,
    elasti_namespace_option,
    names_argument,
    namespace_option,
    output_option,
)
from elasti.cli.rendering import (
    NOTHING,
    ago,
    duration,
    echo,
    fitted,
    line,
    render,
    render_line,
    table,
    widths,
    with_time_left,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.api.view import ElastiServiceRow
    from elasti.cli.cluster import AccessOptions
    from elasti.cli.exits import Failure
    from elasti.dashboard.live import HeldCounts
    from kubeloop.client import Client

_TABLES = ("table", "wide")
HEADS = ("NAME", "SERVICE", "STATE", "TARGET", "REPLICAS", "HELD", "LAST WAKE", "WHY NOT ASLEEP")
WIDE = ("READY", "COOLDOWN", "TRIGGERS")


@click.command("get")
@names_argument(required=False)
@namespace_option()
@click.option(
    "-l", "--selector", default="", help="Only those with these labels, such as team=shop."
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
@output_option("table", "wide", "json", "yaml", "name")
@click.option(
    "-w", "--watch", is_flag=True, help="Keep running and print each change, until Ctrl-C."
)
@elasti_namespace_option
@cluster_options
def command(*, watch: bool, access: AccessOptions, **options: Any) -> None:
    """Show ElastiServices: state, target, held connections, last wake, why not asleep.

    HELD comes from the resolvers, through the API server's proxy to pods, which needs the right `get pods/proxy`
    in Elasti's namespace. If a resolver cannot be reached, HELD is `-` and a line on standard error says why. The
    current values of triggers (-o wide, json, yaml) come from the leading operator in the same way. Everything
    else comes from status.

    \b
    Examples:
      elasti get
      elasti get web -o wide
      elasti get -A --watch
      elasti get -A -o json | jq -r '.[] | select(.state == "awake") | .whyNotAsleep.reason'
    """
    from elasti.cli.running import run_to_end, run_until_interrupted

    query = GetQuery(**options)
    if query.names and (query.everywhere or query.selector):
        raise click.UsageError("give either names or --all-namespaces and -l, not both")
    if watch:
        run_until_interrupted(lambda: watch_changes(access, query))
    else:
        run_to_end(lambda: show(access, query))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetQuery:
    """The selection, and the output format."""

    names: tuple[str, ...] = ()
    selector: str = ""
    namespace: str | None = None
    everywhere: bool = False
    output: str = "table"
    elasti_namespace: str = NAMESPACE

    def place(self, client: Client) -> str:
        """Return the namespace to read; empty for all."""
        return "" if self.everywhere else self.namespace or client.namespace


async def show(access: AccessOptions, query: GetQuery) -> None:
    """Print the ElastiServices. Raises Failure."""
    from elasti.api.view import row_of
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.running import connected
    from elasti.dashboard.live import read_trigger_values

    async with connected(access) as client:
        place = query.place(client)
        found, missing = await ElastiServices(client, place).named(query.names, query.selector)
        held = await _held(client, query) if found else None
        is_short = query.output in ("table", "name")
        values = {} if is_short else await read_trigger_values(client, query.elasti_namespace)
    rows = [row_of(es, held.counts if held else None, values) for es in found]
    if rows or query.output not in _TABLES:
        echo(listed(rows, query, _now()), nl=False)
    elif not missing:
        where = f"in namespace {place}" if place else "in this cluster"
        having = f" with {query.selector}" if query.selector else ""
        echo(f"There is no ElastiService{having} {where}.", err=True)
    if held:
        _report_unknown(held)
    _raise_first(missing)


async def watch_changes(access: AccessOptions, query: GetQuery) -> None:
    """Print the ElastiServices, then every change, until cancelled. Raises Failure."""
    from elasti.api.conditions import Obstacle, Reason
    from elasti.api.view import row_of
    from elasti.cli.elastiservices import ElastiServices, watch_elastiservices
    from elasti.cli.running import connected

    async with connected(access) as client:
        objects = ElastiServices(client, query.place(client))
        held = await _held(client, query)
        found, missing = await objects.named(query.names, query.selector)
        _raise_first(missing)
        printer = RowPrinter(query, [row_of(es, held.counts) for es in found])
        _report_unknown(held)
        async with watch_elastiservices(client, objects.namespace, "", query.selector) as changes:
            while True:
                change = await changes.next()
                if query.names and change.es.metadata.name not in query.names:
                    continue
                row = row_of(change.es, (await _held(client, query)).counts)
                if change.deleted:
                    row = dataclasses.replace(row, why=Obstacle(Reason.DELETED))
                printer.show(row)


async def _held(client: Client, query: GetQuery) -> HeldCounts:
    from elasti.dashboard.live import HeldCounts, read_held

    if query.output == "name":
        return HeldCounts(None)
    return await read_held(client, query.elasti_namespace)


def listed(rows: Sequence[ElastiServiceRow], query: GetQuery, now: dt.datetime) -> str:
    """Return rows in the output format of the query."""
    match query.output:
        case "json" | "yaml":
            return render([row.to_json() for row in rows], query.output)
        case "name":
            return "".join(f"{full_name(row)}\n" for row in rows)
        case _:
            form = {"wide": query.output == "wide", "everywhere": query.everywhere}
            shown = table(heads(**form), [cells(row, now, **form) for row in rows])
            return "".join(f"{fitted(text)}\n" for text in shown.splitlines())


class RowPrinter:
    """Prints each row when it changes, below the others."""

    def __init__(self, query: GetQuery, rows: Sequence[ElastiServiceRow]) -> None:
        self._query = query
        self._form = {"wide": query.output == "wide", "everywhere": query.everywhere}
        head = heads(**self._form)
        self._widths = widths([head, *(cells(row, _now(), **self._form) for row in rows)])
        self._shown: dict[tuple[str, str], ElastiServiceRow] = {}
        if query.output in _TABLES:
            echo(fitted(line(head, self._widths)))
        for row in rows:
            self.show(row)

    def show(self, row: ElastiServiceRow) -> None:
        """Print a row if it changed since it was last printed."""
        key = (row.namespace, row.name)
        if self._shown.get(key) == row:
            return
        self._shown[key] = row
        match self._query.output:
            case "json" | "yaml":
                echo(render_line(row.to_json(), self._query.output), nl=False)
            case "name":
                echo(full_name(row))
            case _:
                echo(fitted(line(cells(row, _now(), **self._form), self._widths)))


def _raise_first(missing: list[Failure]) -> None:
    for other in missing[1:]:
        echo(f"Error: {other.message}", err=True)
    if missing:
        raise missing[0]


def _report_unknown(held: HeldCounts) -> None:
    if held.counts is None and held.why:
        echo(f"HELD is unknown: {held.why}", err=True)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


# The table


def heads(*, wide: bool, everywhere: bool) -> tuple[str, ...]:
    """Return the heads of the table; why comes last, since it is the longest."""
    shown = (*HEADS[:-1], *WIDE, HEADS[-1]) if wide else HEADS
    return ("NAMESPACE", *shown) if everywhere else shown


def cells(
    row: ElastiServiceRow, now: dt.datetime, *, wide: bool, everywhere: bool
) -> tuple[str, ...]:
    """Return one row of the table."""
    values = ", ".join(f"{row.values[index]:g}" for index in sorted(row.values))
    more = (row.ready or NOTHING, duration(row.cooldown), values or NOTHING)
    shown = (
        row.name,
        row.service,
        row.state or NOTHING,
        row.target,
        NOTHING if row.replicas is None else str(row.replicas),
        NOTHING if row.held is None else str(row.held),
        ago(row.last_wake, now),
        *(more if wide else ()),
        with_time_left(row.why, now) or NOTHING,
    )
    return (row.namespace, *shown) if everywhere else shown


def full_name(row: ElastiServiceRow) -> str:
    """Return the name as kubectl's `-o name` writes it."""
    return f"elastiservice.{GROUP}/{row.name}"
