"""What is counted of one observed ElastiService: the sleep that it would have had. Pure.

Time counts from one look at the triggers to the next. It counts as asleep if both say so. Time about which
triggers say nothing counts neither as asleep nor as observed: a failed reading, a gap between two looks, the time
without a leader. A new leader goes on from the totals in status, which are an hour old at most.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

from elasti.api.conditions import Reason
from elasti.api.types import CapacityStatus, ObservedStatus
from elasti.operator.model.facts import Decision, Verdict
from kubeloop.objects.times import format_time

_UNKNOWN = (Reason.TRIGGERS_UNREAD, Reason.TRIGGERS_FAILING)


def would_sleep(decision: Decision, *, used: bool) -> bool | None:
    """Whether a target would be asleep by a decision; None if nothing is known.

    `used`: a trigger shows use. That ends a sleep also if a schedule does not ask triggers, or the trigger is a
    veto: it stands for the traffic that no resolver sees here.
    """
    if used:
        return False
    if decision.verdict is Verdict.SLEEP:
        return True
    unknown = decision.obstacle is not None and decision.obstacle.reason in _UNKNOWN
    return None if unknown else False


@dataclasses.dataclass(slots=True)
class ObservingState:
    """The totals, and how it was at the last look. Written here alone; times are seconds since 1970.

    `asleep`: it would be asleep; unchanged while nothing is known. `can_sleep`, `capacity`: what the last reconcile
    found of the target.
    """

    since: str = ""
    observed: float = 0.0
    asleep_for: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    wakes: int = 0
    asleep: bool = False
    asleep_since: float | None = None
    known_at: float | None = None  #: the last look, if something was known
    can_sleep: bool = False
    capacity: CapacityStatus | None = None
    read: bool = False  #: its triggers have been read

    @property
    def began(self) -> bool:
        """Whether it is observed."""
        return bool(self.since)

    def begin(self, status: ObservedStatus | None, now: dt.datetime) -> None:
        """Go on from status, or from nothing; does nothing if it is observed already."""
        if self.began:
            return
        found = status or ObservedStatus(since=format_time(now))
        self.since, self.wakes = found.since, found.wakes
        self.observed, self.asleep_for = float(found.observed_seconds), float(found.asleep_seconds)
        self.cpu, self.memory = float(found.cpu_millicore_seconds), float(found.memory_byte_seconds)

    def note_target(self, *, can_sleep: bool, capacity: CapacityStatus | None) -> None:
        """A reconcile found what there is to put to sleep."""
        self.can_sleep, self.capacity = can_sleep, capacity

    def look(self, now: float, asleep: bool | None, *, used: bool, longest: float) -> None:  # noqa: FBT001
        """Count the time since the last look; a gap above `longest` seconds is not known."""
        before, self.known_at = self.known_at, None if asleep is None else now
        if asleep is None:
            return
        asleep = asleep and self.can_sleep
        passed = now - before if before is not None else 0.0
        if 0 < passed < longest:
            self.observed += passed
            if self.asleep and asleep:
                self.asleep_for += passed
                if self.capacity is not None:
                    self.cpu += passed * self.capacity.cpu_millicores
                    self.memory += passed * self.capacity.memory_bytes
        if self.asleep and used:
            self.wakes += 1
        if asleep != self.asleep:
            self.asleep, self.asleep_since = asleep, now if asleep else None

    def is_new(self) -> bool:
        """Whether its triggers are read for the first time, which is worth a report."""
        before, self.read = self.read, True
        return not before

    def totals(self) -> ObservedStatus:
        """Return what is counted, as status has it."""
        return ObservedStatus(
            since=self.since,
            observed_seconds=round(self.observed),
            asleep_seconds=round(self.asleep_for),
            wakes=self.wakes,
            cpu_millicore_seconds=round(self.cpu),
            memory_byte_seconds=round(self.memory),
        )
