"""What workloads beside a target get back when it wakes: the record of `spec.targets`.

It is in status before the first of them is scaled to zero, and until each was woken. So a leader that ends between any
two writes leaves a record from which the next one goes on. Times are the loop's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from elasti.api.types import TargetStatus
from elasti.operator.model.records import retry_delay
from elasti.operator.model.targets import ScaleTarget


class SleepingWorker(NamedTuple):
    """One workload; `asleep`: it was scaled to zero in this sleep, and replicas that it has are another writer's."""

    target: ScaleTarget
    replicas: int
    asleep: bool = False


@dataclasses.dataclass(slots=True)
class Tries:
    """Attempts at one thing; after a failure the next one comes ever later."""

    failed: int = 0  #: in a row
    next_at: float = -math.inf

    def note(self, now: float, *, failed: bool) -> None:
        """All that was due was tried."""
        self.failed = self.failed + 1 if failed else 0
        self.next_at = now + retry_delay(self.failed) if failed else -math.inf


@dataclasses.dataclass(slots=True)
class WorkerState:
    """The workloads that sleep beside one target, or are about to. Written here alone."""

    owed: tuple[SleepingWorker, ...] = ()
    is_recalled: bool = False  #: this leader knows the record of the previous one
    #: each for itself: a wake-up must not wait because a park failed
    parks: Tries = dataclasses.field(default_factory=Tries)
    wakes: Tries = dataclasses.field(default_factory=Tries)

    @property
    def statuses(self) -> tuple[TargetStatus, ...]:
        """The record, as status has it."""
        return tuple(
            TargetStatus(one.api_version, one.kind, one.name, replicas, asleep)
            for one, replicas, asleep in self.owed
        )

    def replicas_of(self, target: ScaleTarget) -> int:
        """Return what a workload gets back."""
        return next((one.replicas for one in self.owed if one.target == target), 1)

    def recall(self, namespace: str, statuses: Iterable[TargetStatus]) -> None:
        """Take over the record of the previous leader."""
        self.is_recalled = True
        self.owed = tuple(
            SleepingWorker(
                ScaleTarget.of(namespace, one.api_version, one.kind, one.name),
                max(one.replicas, 1),
                one.asleep,
            )
            for one in statuses
        )

    def note_due(self, replicas: Mapping[ScaleTarget, int]) -> None:
        """These will be scaled to zero; one that is there already gets back what is noted, or one replica."""
        due = (
            SleepingWorker(target, count or self.replicas_of(target))
            for target, count in replicas.items()
        )
        self.owed = (*(one for one in self.owed if one.target not in replicas), *due)

    def note_asleep(self, target: ScaleTarget) -> None:
        """One is at zero."""
        self.owed = tuple(
            one._replace(asleep=True) if one.target == target else one for one in self.owed
        )

    def note_awake(self, target: ScaleTarget) -> None:
        """One has its replicas, or is gone."""
        self.owed = tuple(one for one in self.owed if one.target != target)
