"""Leader election, decided: what one candidate knows, and what it should do about it.

Nothing here waits or writes; `elector.py` does. A candidate holds a `LeaseView` and asks `decide`
what to do with the lease. Two rules carry the safety of the whole:

- A lease ends, for candidates that watch it, a full `leaseDurationSeconds` after they last saw it
  *change*, by their own monotonic clock. Times in the record are compared for equality only, so
  clocks may differ by any amount; only their rates must agree within `lease_duration /
  renew_deadline`.
- The leader counts from before it *sent* its last successful write, and gives up at
  `renew_deadline`, before another candidate may take over.

Leadership is not fencing: a process that was paused believes that it leads until it checks again,
and a write that it sent before may still arrive. Work that must never happen twice needs a
precondition of its own, a resourceVersion for one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, TypeAlias

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import format_micro_time

_JITTER = 1.2
_RELEASED_FOR = 1


class ElectionConfigError(ValueError):
    """Settings with which an election could not be safe."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElectionConfig:
    """The lease, our identity, and the times (seconds).

    `identity` must differ between processes: a process that finds its own identity in the lease takes
    itself for the holder. `release_on_cancel` frees the lease at once when the election is
    cancelled, so that a successor need not wait for its end. The holder renews every `renew_period`,
    0 for `retry_period`, and tries every `retry_period` after a failure.
    """

    namespace: str
    name: str
    identity: str
    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    renew_period: float = 0.0
    release_on_cancel: bool = True

    def __post_init__(self) -> None:
        for field in ("namespace", "name", "identity"):
            if not getattr(self, field):
                raise ElectionConfigError(f"{field} must not be empty: it is what the lease names")
        self._check_times()

    def _check_times(self) -> None:
        for field in ("lease_duration", "renew_deadline", "retry_period"):
            if getattr(self, field) <= 0:
                raise ElectionConfigError(f"{field} {getattr(self, field)} must be positive")
        if self.lease_duration != int(self.lease_duration):
            raise ElectionConfigError(
                f"lease_duration {self.lease_duration} must be whole seconds, as the Lease has them"
            )
        if self.lease_duration <= self.renew_deadline:
            raise ElectionConfigError(
                f"lease_duration {self.lease_duration} must be longer than renew_deadline"
                f" {self.renew_deadline}, or two may lead at once"
            )
        if not 0 <= self.renew_period <= self.renew_deadline / 2:
            raise ElectionConfigError(
                f"renew_period {self.renew_period} must be from 0 to half of renew_deadline"
                f" {self.renew_deadline}, or a failed renewal leaves too little time for another"
            )
        if self.renew_deadline <= _JITTER * self.retry_period:
            raise ElectionConfigError(
                f"renew_deadline {self.renew_deadline} must be longer than {_JITTER} times"
                f" retry_period {self.retry_period}, or one failed renewal loses the lease"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The fields of a Lease that election is about; times are opaque text."""

    holder: str = ""
    duration: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    @classmethod
    def of(cls, lease: JsonObject) -> LeaseRecord:
        """Read the record of a Lease object; missing fields are empty."""
        spec: dict[str, Any] = lease.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            duration=spec.get("leaseDurationSeconds") or 0,
            acquired=spec.get("acquireTime") or "",
            renewed=spec.get("renewTime") or "",
            transitions=spec.get("leaseTransitions") or 0,
        )

    def written_to(self, lease: JsonObject) -> JsonObject:
        """Return a copy of the Lease with this record; everything else in it is kept."""
        record = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration,
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaseTransitions": self.transitions,
        }
        return {**lease, "spec": {**(lease.get("spec") or {}), **record}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A candidate's view of the lease.

    `lease` is the object as last read or written (None: absent), `changed_at` the local monotonic
    time of its last change.
    """

    identity: str
    lease: JsonObject | None = None
    record: LeaseRecord = LeaseRecord()
    changed_at: float = 0.0

    def observe(self, lease: JsonObject | None, now: float) -> LeaseView:
        """Return the view after the lease was seen; an unchanged record keeps its time."""
        if lease is None:
            return LeaseView(identity=self.identity, changed_at=now)
        record = LeaseRecord.of(lease)
        since = self.changed_at if record == self.record else now
        return LeaseView(identity=self.identity, lease=lease, record=record, changed_at=since)

    @property
    def is_holder(self) -> bool:
        """Whether the last record seen names us."""
        return self.record.holder == self.identity

    @property
    def expires_at(self) -> float:
        """When the record will not have changed for its whole duration."""
        return self.changed_at + self.record.duration

    def is_expired(self, now: float) -> bool:
        """Whether the record has not changed for its whole duration."""
        return now >= self.expires_at

    def is_stale(self, now: float, *, lease_duration: float, tolerance: float) -> bool:
        """Whether we take ourselves for the holder of a lease that is long over.

        The sign of an election loop that hangs: report unhealthy, be restarted.
        """
        return self.is_holder and now > self.changed_at + lease_duration + tolerance


@dataclasses.dataclass(frozen=True, slots=True)
class CreateLease:
    """There is no lease: make it ours."""

    lease: JsonObject


@dataclasses.dataclass(frozen=True, slots=True)
class UpdateLease:
    """Write the lease, on condition that it is still as we saw it (its resourceVersion)."""

    lease: JsonObject


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveLease:
    """Another replica holds it; nothing changes before `until` by our clock."""

    holder: str
    until: float


LeaseAction: TypeAlias = CreateLease | UpdateLease | LeaveLease


def decide(
    view: LeaseView, config: ElectionConfig, *, now: float, wall: dt.datetime
) -> LeaseAction:
    """Say what to do with the lease that was just seen; `wall` is what the record will say."""
    if view.lease is None:
        return CreateLease(_held(view, config, wall).written_to(_new_lease(config)))
    held_by_another = bool(view.record.holder) and not view.is_holder
    if held_by_another and not view.is_expired(now):
        return LeaveLease(view.record.holder, view.expires_at)
    return UpdateLease(_held(view, config, wall).written_to(view.lease))


def renewal(
    view: LeaseView, config: ElectionConfig, *, now: float, wall: dt.datetime
) -> UpdateLease | None:
    """Return the write that renews what we hold without reading it first, if we may try that."""
    if view.lease is None or not view.is_holder or view.is_expired(now):
        return None
    return UpdateLease(_held(view, config, wall).written_to(view.lease))


def release(view: LeaseView, *, wall: dt.datetime) -> UpdateLease | None:
    """Return the write that frees the lease just seen; None if it is not ours to free."""
    if view.lease is None or not view.is_holder:
        return None
    text = format_micro_time(wall)
    freed = LeaseRecord(
        duration=_RELEASED_FOR, acquired=text, renewed=text, transitions=view.record.transitions
    )
    return UpdateLease(freed.written_to(view.lease))


def _held(view: LeaseView, config: ElectionConfig, wall: dt.datetime) -> LeaseRecord:
    text = format_micro_time(wall)
    taken_over = view.lease is not None and not view.is_holder
    return LeaseRecord(
        holder=config.identity,
        duration=int(config.lease_duration),
        acquired=view.record.acquired if view.is_holder else text,
        renewed=text,
        transitions=view.record.transitions + taken_over,
    )


def _new_lease(config: ElectionConfig) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": config.namespace, "name": config.name},
    }
