"""What the leader remembers of one ElastiService between two reconciles.

Nothing here is needed to be right after a restart: the state is derived from the cluster,
settles start again, and the times that matter for sleeping are in the object's status.
Monotonic times are the loop's; times for decisions are seconds since 1970.

`WriteOverlay` holds our own writes until the caches show them. A reconcile that follows a write
closely may find the cache without it, and take its own work for another writer's. What was
written is kept beside the cache, by name, for as long as the cache is older; versions of one
resource can be ordered, which is all that this needs.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from elasti.operator.handover.machine import Activity, Park, State
from kubeloop.objects.meta import compare_versions

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from elasti.operator.idleness.decisions import TriggerJudgement
    from elasti.operator.report.conditions import Finding
    from elasti.operator.scale_handler import ScaleTarget, ScaleView
    from kubeloop.controller.reconcile import Request
    from kubeloop.objects.core import EndpointSlice, ServiceEndpoint


T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Written(Generic[T]):
    version: str
    obj: T | None


class WriteOverlay(Generic[T]):
    """The newest known state of a few named objects: written or cached, whichever is newer."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[str, _Written[T]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether there is something that the cache may not show yet."""
        return bool(self._written)

    def wrote(self, name: str, version: str, obj: T) -> None:
        """Remember what the server answered to a write."""
        self._written[name] = _Written(version, obj)

    def deleted(self, name: str, version: str) -> None:
        """Remember that an object of that version was deleted."""
        self._written[name] = _Written(version, None)

    def newest(self, name: str, cached: T | None, version: str) -> T | None:
        """Return the newer of what was written and what the cache has (`version` "" for nothing).

        A cache without the object is taken for older than a write and newer than a delete.
        """
        written = self._written.get(name)
        if written is None:
            return cached
        if not version:
            if written.obj is None:
                del self._written[name]
            return written.obj
        if _is_newer(version, written):
            del self._written[name]
            return cached
        return written.obj

    def gone(self, name: str, version: str) -> None:
        """The cache was told that an object went, by whomever; `version` is what it was last."""
        written = self._written.get(name)
        if written is not None and (
            written.obj is None or compare_versions(version, written.version) >= 0
        ):
            del self._written[name]


def _is_newer(version: str, written: _Written[T]) -> bool:
    order = compare_versions(version, written.version)
    # A deleted object's cached version is the deleted one itself until the cache hears of it.
    return order >= 0 if written.obj is not None else order > 0


_CONFLICT_WINDOW = 3600.0
_CONTESTED_AT = 3
_LONGEST_BACKOFF = 86400.0


@dataclasses.dataclass(slots=True)
class ScaleConflict:
    """Parks that another writer undid, and how long to leave the target alone for it.

    `stamp` is the `lastScaledUpTime` that the last park found: every replica of ours that wakes a target
    writes a new one. `unclear`: somebody woke it, and nobody recorded who.
    """

    undone: list[float] = dataclasses.field(default_factory=list)
    until: float = -math.inf
    by: str = ""
    stamp: str | None = None
    unclear: bool = False

    @property
    def is_contested(self) -> bool:
        """Whether three parks within an hour were undone."""
        return len(self.undone) >= _CONTESTED_AT

    def record(self, now: float, by: str, cooldown: float) -> None:
        """Note that a park was undone; from the third within an hour on, wait ever longer."""
        self.undone = [at for at in self.undone if now - at < _CONFLICT_WINDOW] + [now]
        self.by = by
        if self.is_contested:
            doublings = len(self.undone) - _CONTESTED_AT + 1
            self.until = now + min(max(cooldown, 60.0) * 2.0**doublings, _LONGEST_BACKOFF)

    def calm(self, now: float) -> None:
        """Forget what is long ago, once the wait is over."""
        if now >= self.until:
            self.undone = [at for at in self.undone if now - at < _CONFLICT_WINDOW]


@dataclasses.dataclass(slots=True)
class SleepRequest:
    """Somebody asked for the target to sleep now.

    `since`: when it was first seen. `fulfilled`: the target was at zero since. `overtaken`: a wake-up
    was asked for after it.
    """

    since: float
    fulfilled: bool = False
    superseded: bool = False


@dataclasses.dataclass(slots=True)
class ServiceState:
    """One ElastiService and the Service that it names; another of either begins anew."""

    uid: str
    service: str
    target: ScaleTarget | None = None
    state: State | None = None
    why: str = ""
    refused: bool = False

    engaged_at: float | None = None
    ready_since: dict[str, float] = dataclasses.field(default_factory=dict)
    activity: Activity = Activity.UNKNOWN
    park: Park = Park.NOT_TRIED
    parked_here: bool = False
    decided_on: ScaleView | None = None

    wake: bool = False
    annotation: str = ""
    last_scaled_up: float = -math.inf
    last_traffic: float = -math.inf
    last_attempt: float = -math.inf
    attempt_ended: str = ""
    sleep: SleepRequest | None = None
    sleep_text: str = ""
    contest: ScaleConflict = dataclasses.field(default_factory=ScaleConflict)

    listed: tuple[ServiceEndpoint, ...] = ()
    listed_since: dict[str, float] = dataclasses.field(default_factory=dict)
    resolvers_to_query: dict[str, ServiceEndpoint] = dataclasses.field(default_factory=dict)
    verified: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    probe_failures: int = 0
    kind_failures: int = 0
    legacy_checked: bool = False
    keda_resumed: bool = False
    keda_paused: frozenset[str] = frozenset()
    keda_failures: int = 0
    keda_again: float = -math.inf
    loss_slot: float | None = None
    sliced_at: float = -math.inf
    finalizing_since: float | None = None
    reported: frozenset[Finding] = frozenset()
    judged: TriggerJudgement | None = None

    own: WriteOverlay[ElastiService] = dataclasses.field(default_factory=WriteOverlay)
    slices: WriteOverlay[EndpointSlice] = dataclasses.field(default_factory=WriteOverlay)
    scales: WriteOverlay[ScaleView] = dataclasses.field(default_factory=WriteOverlay)

    def enter(self, state: State, why: str) -> None:
        """Begin a state anew."""
        self.state, self.why = state, why
        self.park = Park.NOT_TRIED
        self.activity = Activity.UNKNOWN
        if state is not State.PARKING:
            self.engaged_at = None
        if state is State.ENGAGING:
            self.resolvers_to_query = {}
        if state is State.PROXY and self.sleep is not None:
            self.sleep.fulfilled = True

    def set_target(self, target: ScaleTarget) -> None:
        """Be about this target; of another, nothing that is known of the former one holds."""
        if self.target not in (None, target):
            self.state, self.engaged_at, self.decided_on = None, None, None
            self.parked_here = False
            self.contest, self.scales = ScaleConflict(), WriteOverlay()
            self.kind_failures = 0
        self.target = target

    def settled_engaging(self, now: float, settle: float) -> bool:
        """Whether our slice has been beside the pods' for the whole engage settle."""
        return self.engaged_at is not None and now - self.engaged_at >= settle

    def note_listed(self, now: float) -> None:
        """Keep since when each listed resolver has been so."""
        self.listed_since = {
            endpoint.place: self.listed_since.get(endpoint.place, now) for endpoint in self.listed
        }

    @property
    def query_targets(self) -> tuple[ServiceEndpoint, ...]:
        """Everyone who may have seen traffic; nobody where nobody is listed now."""
        return tuple(self.resolvers_to_query.values()) if self.listed else ()

    def long_listed(self, endpoint: ServiceEndpoint, now: float, settle: float) -> bool:
        """Whether a resolver has been listed for the whole engage settle."""
        since = self.listed_since.get(endpoint.place)
        return since is not None and now - since >= settle

    def note_ready(self, endpoints: frozenset[str], now: float) -> None:
        """Keep since when each endpoint has been ready."""
        self.ready_since = {name: self.ready_since.get(name, now) for name in endpoints}

    def settled_ready(self, now: float, settle: float) -> bool:
        """Whether one endpoint has been ready for the whole release settle."""
        return any(now - since >= settle for since in self.ready_since.values())


class StateStore:
    """All of them, by name."""

    def __init__(self) -> None:
        self._by_request: dict[Request, ServiceState] = {}

    def of(self, request: Request, uid: str, service: str) -> ServiceState:
        """Return what is known of an object; nothing yet where it was made anew."""
        memory = self._by_request.get(request)
        if memory is None or (memory.uid, memory.service) != (uid, service):
            memory = self._by_request[request] = ServiceState(uid, service)
        return memory

    def find(self, request: Request) -> ServiceState | None:
        """Return what is known, if anything."""
        return self._by_request.get(request)

    def forget(self, request: Request) -> None:
        """The object is gone."""
        self._by_request.pop(request, None)

    def items(self) -> list[tuple[Request, ServiceState]]:
        """Return all."""
        return list(self._by_request.items())
