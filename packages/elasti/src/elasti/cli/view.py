"""What `elasti get` shows of an ElastiService, as a value. Pure.

Why a target is not asleep is what the operator reports in its conditions: first what is not in order,
then what keeps it from sleeping.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from elasti.api.defaults import cooldown_of
from elasti.api.names import GROUP
from elasti.cli.rendering import NOTHING, ago, cut, duration
from elasti.operator.report import conditions as words
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from elasti.api.types import ElastiService, StatusCondition
    from kubeloop.objects.meta import JsonObject


HEADS = ("NAME", "SERVICE", "MODE", "TARGET", "REPLICAS", "HELD", "LAST WAKE", "WHY NOT ASLEEP")
WIDE = ("STATE", "READY", "COOLDOWN")
_WHY_WIDTH = 64
_UNTIL = re.compile(r"(?:until|at) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


@dataclasses.dataclass(frozen=True, slots=True)
class NotAsleepReason:
    """Why a target is not asleep: a word and a sentence; both empty where it is."""

    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElastiServiceRow:
    """One ElastiService. `held` is None where no resolver could be asked."""

    namespace: str
    name: str
    service: str
    mode: str
    state: str
    target: str
    replicas: int | None
    held: int | None
    last_wake: dt.datetime | None
    ready: str
    cooldown: int
    why: NotAsleepReason

    def to_json(self) -> JsonObject:
        """Return it for scripts; the names of these fields stay."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "service": self.service,
            "mode": self.mode,
            "state": self.state,
            "target": self.target,
            "replicas": self.replicas,
            "held": self.held,
            "lastWake": format_time(self.last_wake) if self.last_wake else None,
            "ready": self.ready,
            "cooldownSeconds": self.cooldown,
            "whyNotAsleep": {"reason": self.why.reason, "message": self.why.message},
        }


def row_of(es: ElastiService, held: Mapping[tuple[str, str], int] | None) -> ElastiServiceRow:
    """Return what to show of an ElastiService."""
    meta, status, ref = es.metadata, es.status, es.spec.scale_target_ref
    ready = condition(es, words.READY)
    return ElastiServiceRow(
        namespace=meta.namespace,
        name=meta.name,
        service=es.spec.service,
        mode=status.mode,
        state=status.state,
        target=f"{ref.kind}/{ref.name}",
        replicas=status.replicas if status.state else None,
        held=held.get((meta.namespace, es.spec.service), 0) if held is not None else None,
        last_wake=moment(status.last_scaled_up_time),
        ready=ready.status if ready else "",
        cooldown=int(cooldown_of(es.spec)),
        why=why_of(es),
    )


def why_of(es: ElastiService) -> NotAsleepReason:
    """Return why its target is not asleep, by the operator's own account."""
    if es.metadata.deletion_timestamp:
        return NotAsleepReason("Deleting", "the ElastiService is being deleted")
    if not es.status.conditions:
        return NotAsleepReason(
            "NotSeen", "no operator has looked at it yet; elasti doctor says why"
        )
    ready, sleep = condition(es, words.READY), condition(es, words.MAY_SLEEP)
    if ready is not None and ready.status == "False":
        return NotAsleepReason(ready.reason, ready.message)
    if sleep is None:
        asleep = es.status.mode == "proxy" and not es.status.replicas
        return (
            NotAsleepReason()
            if asleep
            else NotAsleepReason("NotTold", "the operator is older than this command")
        )
    if sleep.reason == "Asleep":
        return NotAsleepReason()
    return NotAsleepReason(sleep.reason, sleep.message)


def condition(es: ElastiService, kind: str) -> StatusCondition | None:
    """Return a condition by its type."""
    return next((entry for entry in es.status.conditions if entry.type == kind), None)


def moment(text: str | None) -> dt.datetime | None:
    """Read a time of status; None where there is none, or it cannot be read."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def heads(*, wide: bool, everywhere: bool) -> tuple[str, ...]:
    """Return the heads of the table; why comes last, since it is the longest."""
    shown = (*HEADS[:-1], *WIDE, HEADS[-1]) if wide else HEADS
    return ("NAMESPACE", *shown) if everywhere else shown


def cells(
    row: ElastiServiceRow, now: dt.datetime, *, wide: bool, everywhere: bool
) -> tuple[str, ...]:
    """Return one row of the table."""
    more = (row.state or NOTHING, row.ready or NOTHING, duration(row.cooldown))
    why = str(row.why) or NOTHING
    shown = (
        row.name,
        row.service,
        row.mode or NOTHING,
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


def _short(why: NotAsleepReason, now: dt.datetime) -> str:
    left = _left(why.message, now)
    said = NotAsleepReason(f"{why.reason} ({left} left)", why.message) if left else why
    return cut(str(said), _WHY_WIDTH) or NOTHING


def _left(message: str, now: dt.datetime) -> str:
    found = _UNTIL.search(message)
    end = moment(found[1]) if found else None
    return duration((end - now).total_seconds()) if end is not None and end > now else ""
