"""`elasti report`: what sleep has released, from what the operator counts in status."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import re
from typing import TYPE_CHECKING, Any

import click

from elasti.cli.options import (
    cluster_options,
    elasti_namespace_option,
    namespace_option,
    output_option,
)
from elasti.cli.rendering import echo, render, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.api.types import CapacityStatus
    from elasti.api.usage import UsageRow
    from elasti.cli.options import AccessOptions

_DAYS = re.compile(r"(\d+)d")
_HEADS = ("NAMESPACE", "NAME", "COUNTED FROM", "ASLEEP", "WAKES", "CORE HOURS", "GIB HOURS")


def _window(_ctx: click.Context, _param: click.Parameter, text: str | None) -> dt.timedelta | None:
    from elasti.api.parsing import parse_duration

    if text is None:
        return None
    days = _DAYS.fullmatch(text)
    try:
        found = dt.timedelta(
            **({"days": int(days[1])} if days else {"seconds": parse_duration(text)})
        )
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is no duration; write 7d, 36h or 90m") from error
    if found <= dt.timedelta():
        raise click.BadParameter(f"{text!r} is not in the past; write 7d, 36h or 90m")
    return found


@click.command("report")
@namespace_option("Only this namespace; all by default.")
@click.option(
    "--since",
    "window",
    metavar="DURATION",
    callback=_window,
    help="Only so far back, such as 7d; by default everything that is counted.",
)
@output_option("table", "json", "csv", "markdown")
@elasti_namespace_option
@cluster_options
def command(*, access: AccessOptions, output: str, **options: Any) -> None:
    """Report what sleep has released: capacity that was requested by no pod.

    Released is the target's minimum of replicas times what one pod requests, for as long as none of its pods
    was left. Whether a bill gets smaller is for the owner of the nodes to say. The operator counts in status,
    each ElastiService from when it first saw it; with --since, an older one is reported by its last 20 sleeps,
    as far back as they reach, at its present requests. COUNTED FROM says from when.

    \b
    Examples:
      elasti report
      elasti report --since 7d -o markdown
    """
    from elasti.cli.running import run_to_end

    report = run_to_end(lambda: _collect(access, **options))
    echo(report.rendered(output), nl=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Rows, and what our own programs request now; None where that may not be read."""

    rows: Sequence[UsageRow]
    unseen: int
    own: CapacityStatus | None
    now: dt.datetime

    def rendered(self, output: str) -> str:
        """Return it in a form."""
        match output:
            case "json":
                return render(self._json(), "json")
            case "csv":
                written = io.StringIO()
                lines = csv.writer(written, lineterminator="\n")
                lines.writerow(head.lower().replace(" ", "_") for head in _HEADS)
                lines.writerows(self._cells(row) for row in self.rows)
                return written.getvalue()
            case "markdown":
                shown = [_HEADS, ("---",) * len(_HEADS), *map(self._cells, self.rows)]
                escaped = ((cell.replace("|", "\\|") for cell in line) for line in shown)
                text = "".join(f"| {' | '.join(line)} |\n" for line in escaped)
                return text + "".join(f"\n{note}\n" for note in self._notes())
        text = table(_HEADS, [self._cells(row) for row in self.rows])
        return text + "".join(f"{note}\n" for note in ("", *self._notes()))

    def _cells(self, row: UsageRow) -> tuple[str, ...]:
        from kubeloop.objects.times import format_time

        time = max((self.now - row.since).total_seconds(), 1.0)
        cpu, memory = f"{row.cpu_core_hours:.1f}", f"{row.memory_gib_hours:.1f}"
        return (
            row.namespace,
            row.name,
            format_time(row.since),
            f"{min(row.asleep_seconds / time, 1.0):.0%}",
            str(row.wakes),
            *((cpu, memory) if row.counted else ("not counted", "not counted")),
        )

    def _own_hours(self) -> tuple[float, float] | None:
        """Return what our programs request in the longest time of the report."""
        if self.own is None or not self.rows:
            return None
        hours = (self.now - min(row.since for row in self.rows)).total_seconds() / 3600
        return self.own.cpu_millicores / 1000 * hours, self.own.memory_bytes / 2**30 * hours

    def _notes(self) -> list[str]:
        cpu = sum(row.cpu_core_hours for row in self.rows)
        memory = sum(row.memory_gib_hours for row in self.rows)
        notes = [f"Released: {cpu:.1f} core hours, {memory:.1f} GiB hours."]
        if (own := self._own_hours()) is not None:
            notes.append(
                f"Elasti itself requested {own[0]:.1f} core hours and {own[1]:.1f} GiB hours in that"
                f" time, at its present size: {cpu - own[0]:z.1f} and {memory - own[1]:z.1f} are left."
            )
        elif self.rows:
            notes.append("What Elasti itself requests is not known here, and not subtracted.")
        if without := sum(not row.counted for row in self.rows):
            notes.append(
                f"{without} of {len(self.rows)} are not counted: their pods request nothing, or"
                " another ElastiService of the same target counts."
            )
        if self.unseen:
            notes.append(f"Left out, since no operator has counted them yet: {self.unseen}.")
        return notes

    def _json(self) -> dict[str, Any]:
        import msgspec

        own = self._own_hours() or (None, None)
        return {
            "services": [msgspec.to_builtins(row) for row in self.rows],
            "cpu_core_hours": sum(row.cpu_core_hours for row in self.rows),
            "memory_gib_hours": sum(row.memory_gib_hours for row in self.rows),
            "own_cpu_core_hours": own[0],
            "own_memory_gib_hours": own[1],
            "not_seen": self.unseen,
        }


async def _collect(
    access: AccessOptions,
    *,
    namespace: str | None,
    window: dt.timedelta | None,
    elasti_namespace: str,
) -> UsageReport:
    from elasti.api.usage import usage_row
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.running import connected
    from elasti.dashboard.live import own_requests

    now = dt.datetime.now(dt.UTC)
    async with connected(access) as client:
        found = await ElastiServices(client, namespace or "").all()
        own = await own_requests(client, elasti_namespace)
    rows = [row for es in found if (row := usage_row(es, now, window)) is not None]
    return UsageReport(rows=rows, unseen=len(found) - len(rows), own=own, now=now)
