"""The table of `elasti get`. Pure."""

from __future__ import annotations

import datetime as dt
import re

from elasti.api.conditions import Obstacle
from elasti.api.names import GROUP
from elasti.api.view import ElastiServiceRow, moment
from elasti.cli.rendering import NOTHING, ago, duration

HEADS = ("NAME", "SERVICE", "STATE", "TARGET", "REPLICAS", "HELD", "LAST WAKE", "WHY NOT ASLEEP")
WIDE = ("READY", "COOLDOWN", "TRIGGERS")
_UNTIL = re.compile(r"(?:until|at) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


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
    why = str(row.why) or NOTHING
    shown = (
        row.name,
        row.service,
        row.state or NOTHING,
        row.target,
        NOTHING if row.replicas is None else str(row.replicas),
        NOTHING if row.held is None else str(row.held),
        ago(row.last_wake, now),
        *(more if wide else ()),
        with_time_left(why, now) if wide else _short(row.why, now),
    )
    return (row.namespace, *shown) if everywhere else shown


def full_name(row: ElastiServiceRow) -> str:
    """Return the name as kubectl's `-o name` writes it."""
    return f"elastiservice.{GROUP}/{row.name}"


def with_time_left(message: str, now: dt.datetime) -> str:
    """Return a message that names a time of day with what is left until then."""
    left = _left(message, now)
    return f"{message} ({left} left)" if left else message


def _short(why: Obstacle, now: dt.datetime) -> str:
    left = _left(why.message, now)
    said = Obstacle(f"{why.reason} ({left} left)", why.message) if left else why
    return str(said) or NOTHING


def _left(message: str, now: dt.datetime) -> str:
    found = _UNTIL.search(message)
    end = moment(found[1]) if found else None
    return duration((end - now).total_seconds()) if end is not None and end > now else ""
