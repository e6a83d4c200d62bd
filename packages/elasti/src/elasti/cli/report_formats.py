"""A report as a table, csv, markdown or a page of HTML; cells stay numbers until they are written."""

from __future__ import annotations

import csv
import dataclasses
import html
import importlib.resources
import io
import re
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from elasti.cli.rendering import NOTHING, table

Cell: TypeAlias = str | int | float | None
_CHARTED = 20


class Column(NamedTuple):
    """`of` gives its cell of a row's entries; `spec`: how people see a number, as `format` takes it."""

    head: str
    of: Callable[[Sequence[Any]], Cell]
    spec: str = ""

    @property
    def key(self) -> str:
        """Its name for scripts."""
        return re.sub(r"\W+", "_", self.head.lower()).strip("_")

    def shown(self, cell: Cell) -> str:
        """Return a cell as people see it."""
        return NOTHING if cell is None else format(cell, self.spec)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Rows, and what to say below them; `chart`: the column that a chart shows."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    chart: int

    def rendered(self, output: str) -> str:
        """Return it in an output format."""
        if output == "csv":
            return self._csv()
        heads = [column.head for column in self.columns]
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        shown = [[column.shown(cell) for column, cell in row] for row in pairs]
        if output == "html":
            return self._html(heads, shown)
        if output == "markdown":
            lines = [heads, ["---"] * len(heads), *shown]
            escaped = ((cell.replace("|", "\\|") for cell in line) for line in lines)
            text = "".join(f"| {' | '.join(line)} |\n" for line in escaped)
            return text + "".join(f"\n{note}\n" for note in self.notes)
        return table(heads, shown) + "".join(f"{note}\n" for note in ("", *self.notes))

    def _csv(self) -> str:
        written = io.StringIO()
        lines = csv.writer(written, lineterminator="\n")
        lines.writerow(column.key for column in self.columns)
        for row in self.rows:
            lines.writerow([round(cell, 4) if isinstance(cell, float) else cell for cell in row])
        return written.getvalue()

    def _html(self, heads: Sequence[str], shown: Sequence[Sequence[str]]) -> str:
        """Return a page that needs nothing else: the largest rows as bars, every row, the notes."""
        sizes = [max(float(row[self.chart] or 0), 0.0) for row in self.rows]
        largest = sorted(range(len(sizes)), key=lambda index: -sizes[index])[:_CHARTED]
        names = 2 if "NAME" in heads else 1
        bars = [
            f'<dt>{html.escape("/".join(shown[index][:names]))}<dd><i style="width:'
            f'{sizes[index] / (max(sizes) or 1.0):.1%}"></i>{shown[index][self.chart]}\n'
            for index in largest
        ]
        page = importlib.resources.files("elasti.cli").joinpath("report.html").read_text("utf-8")
        return string.Template(page).substitute(
            title=html.escape(self.title),
            chart=html.escape(heads[self.chart]),
            bars="".join(bars),
            heads="".join(f"<th>{html.escape(head)}" for head in heads),
            rows="".join(
                f"<tr>{''.join(f'<td>{html.escape(cell)}' for cell in row)}\n" for row in shown
            ),
            notes="".join(f"<p>{html.escape(note)}\n" for note in self.notes),
        )
