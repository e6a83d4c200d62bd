"""What `elasti report` says: a row for each ElastiService or group, what was released or would be, its cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from elasti.api.observed import RECOMMENDED, explained
from elasti.api.prices import GIB, HOUR
from elasti.cli.rendering import NOTHING
from elasti.cli.report_formats import Column, Sheet
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from elasti.api.prices import Prices
    from elasti.api.types import CapacityStatus, ElastiService
    from elasti.api.usage import UsageRow


class ReportEntry(NamedTuple):
    """One ElastiService; hours are None if nothing is counted. `source`: what the operator wrote, as JSON."""

    es: ElastiService
    since: dt.datetime
    known_seconds: float
    asleep_seconds: float
    wakes: int
    cpu_core_hours: float | None
    memory_gib_hours: float | None
    source: dict[str, Any]


def usage_entry(es: ElastiService, row: UsageRow, now: dt.datetime) -> ReportEntry:
    """Return the entry of an ElastiService that sleeps."""
    import msgspec

    known, source = (now - row.since).total_seconds(), msgspec.to_builtins(row)
    cpu = row.cpu_core_hours if row.counted else None
    memory = row.memory_gib_hours if row.counted else None
    return ReportEntry(es, row.since, known, row.asleep_seconds, row.wakes, cpu, memory, source)


def observed_entry(es: ElastiService) -> ReportEntry:
    """Return the entry of an ElastiService that was observed."""
    import msgspec

    observed = es.status.observed
    assert observed is not None
    return ReportEntry(
        es,
        parse_time(observed.since),
        observed.observed_seconds,
        observed.asleep_seconds,
        observed.wakes,
        observed.cpu_millicore_seconds / 1000 / HOUR,
        observed.memory_byte_seconds / GIB / HOUR,
        msgspec.to_builtins(observed),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Entries; `by`: namespace, label:KEY, or "" for a row for each.

    `own`: the present requests of our own programs; None if they cannot be read. `priced`: whether costs were
    asked for; `prices` is None if they are not known.
    """

    entries: Sequence[ReportEntry]
    now: dt.datetime
    unseen: int = 0
    observe: bool = False
    by: str = ""
    own: CapacityStatus | None = None
    priced: bool = False
    prices: Prices | None = None

    def sheet(self) -> Sheet:
        """Return it for people and spreadsheets."""
        columns = list(self._columns())
        what = "What sleep would release" if self.observe else "What sleep has released"
        chart = "COST" if self.prices is not None else "CORE"
        return Sheet(
            title=f"{what}, {format_time(self.now)[:10]}",
            columns=columns,
            rows=[[column.of(group) for column in columns] for group in self._groups()],
            notes=list(self._notes()),
            chart=next(i for i, column in enumerate(columns) if column.head.startswith(chart)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it for scripts; the names of these fields stay."""
        own, prices = self._own_hours() or (None, None), self.prices
        found: dict[str, Any] = {
            "cpu_core_hours": _cpu(self.entries) or 0.0,
            "memory_gib_hours": _memory(self.entries) or 0.0,
            "own_cpu_core_hours": own[0],
            "own_memory_gib_hours": own[1],
            "not_seen": self.unseen,
        }
        if self.priced:
            found["cost"] = self._cost(self.entries)
            found["currency"] = prices.currency if prices is not None else None
            found["idle_cost"] = prices.idle if prices is not None else None
        if self.by:
            first, *rest = self._columns()
            return {
                "groups": [
                    {"group": first.of(group)} | {column.key: column.of(group) for column in rest}
                    for group in self._groups()
                ]
            } | found
        rows = [
            {"namespace": one.es.metadata.namespace, "name": one.es.metadata.name}
            | one.source
            | ({"cost": self._cost([one])} if self.priced else {})
            for one in self.entries
        ]
        return {"services": rows} | found

    def _columns(self) -> Iterator[Column]:
        single = self.observe and not self.by
        if self.by:
            key = self.by.removeprefix("label:").upper()
            yield Column(key, lambda group: self._group_of(group[0]))
            yield Column("SERVICES", len)
            if self.observe:
                yield Column("RECOMMENDED", lambda group: len(_recommended(group)))
        else:
            yield Column("NAMESPACE", lambda group: group[0].es.metadata.namespace)
            yield Column("NAME", lambda group: group[0].es.metadata.name)
            since = "OBSERVED FROM" if self.observe else "COUNTED FROM"
            yield Column(since, lambda group: format_time(group[0].since))
        yield Column("ASLEEP", _asleep, ".0%")
        yield Column("WAKES", lambda group: sum(one.wakes for one in group))
        if single:
            yield Column("COLD START P95", _p95, ".1f")
        yield Column("CORE HOURS", _cpu, ".1f")
        yield Column("GIB HOURS", _memory, ".1f")
        if self.priced:
            currency = self.prices.currency if self.prices is not None else ""
            yield Column(f"COST {currency}".rstrip(), self._cost, ".2f")
        if single:
            yield Column("VERDICT", lambda group: group[0].source["verdict"])
            yield Column("REASONS", lambda group: " ".join(group[0].source["reasons"]))

    def _group_of(self, one: ReportEntry) -> str:
        labels = one.es.metadata.labels or {}
        label = labels.get(self.by.removeprefix("label:"), NOTHING)
        return one.es.metadata.namespace if self.by == "namespace" else label

    def _groups(self) -> list[list[ReportEntry]]:
        """Return the entries of each row."""
        if not self.by:
            return [[one] for one in self.entries]
        groups: dict[str, list[ReportEntry]] = {}
        for one in self.entries:
            groups.setdefault(self._group_of(one), []).append(one)
        return [group for _, group in sorted(groups.items())]

    def _cost(self, group: Sequence[ReportEntry]) -> float | None:
        """Return the cost of what a group released; None if it is not known."""
        if self.prices is None or _cpu(group) is None:
            return None
        cost = self.prices.cost
        return sum(
            cost(one.es.metadata.namespace, one.cpu_core_hours or 0.0, one.memory_gib_hours or 0.0)
            for one in group
        )

    def _own_hours(self) -> tuple[float, float] | None:
        """Return the requests of our programs over the longest time of the report."""
        if self.own is None or not self.entries:
            return None
        hours = (self.now - min(one.since for one in self.entries)).total_seconds() / HOUR
        return self.own.cpu_millicores / 1000 * hours, self.own.memory_bytes / GIB * hours

    def _notes(self) -> Iterator[str]:
        fit = _recommended(self.entries) if self.observe else self.entries
        cpu, memory, count = _cpu(fit) or 0.0, _memory(fit) or 0.0, len(self.entries)
        if self.observe:
            yield (
                f"Recommended: {len(fit)} of {count}. Asleep, they would release {cpu:.1f} core"
                f" hours and {memory:.1f} GiB hours in the observed time."
            )
        else:
            yield f"Released: {cpu:.1f} core hours, {memory:.1f} GiB hours."
        if self.prices is not None:
            cost = f"{self._cost(fit) or 0.0:.2f} {self.prices.currency}".rstrip()
            yield f"Cost of that capacity: {cost}. It turns into idle capacity, which is paid for until nodes go."
            if self.prices.idle is not None:
                yield f"Idle capacity in the same time, as OpenCost reports it: {self.prices.idle:.2f}."
        if self.observe:
            if fit:
                yield "Let them sleep: elasti enable --observed"
        elif (own := self._own_hours()) is not None:
            yield (
                f"Elasti itself requested {own[0]:.1f} core hours and {own[1]:.1f} GiB hours in that"
                f" time, at its present size: {cpu - own[0]:z.1f} and {memory - own[1]:z.1f} are left."
            )
        elif self.entries:
            yield "Elasti's own requests are unknown here, and not subtracted."
        if dozed := sum(one.source.get("dozing_seconds", 0) > 0 for one in self.entries):
            yield f"Dozed: {dozed} of {count}. The sums include what their pods gave back."
        if without := sum(one.cpu_core_hours is None for one in self.entries):
            yield (
                f"Not counted: {without} of {count}. Their pods request nothing, or another"
                " ElastiService of the same target is counted."
            )
        if self.unseen:
            done = "observed" if self.observe else "counted"
            yield f"Left out because no operator has {done} them yet: {self.unseen}."
        found = {reason for one in self.entries for reason in one.source.get("reasons", ())}
        for reason in sorted(found):
            yield f"{reason}: {explained([reason])}."


def _recommended(entries: Sequence[ReportEntry]) -> list[ReportEntry]:
    return [one for one in entries if one.source.get("verdict") == RECOMMENDED]


def _asleep(group: Sequence[ReportEntry]) -> float:
    known = max(sum(one.known_seconds for one in group), 1.0)
    return min(sum(one.asleep_seconds for one in group) / known, 1.0)


def _p95(group: Sequence[ReportEntry]) -> float | None:
    return (group[0].source["coldStartSeconds"] or {}).get("p95")


def _cpu(group: Sequence[ReportEntry]) -> float | None:
    found = [one.cpu_core_hours for one in group if one.cpu_core_hours is not None]
    return sum(found) if found else None


def _memory(group: Sequence[ReportEntry]) -> float | None:
    found = [one.memory_gib_hours for one in group if one.memory_gib_hours is not None]
    return sum(found) if found else None
