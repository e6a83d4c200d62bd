"""The leader's memory of one ElastiService between two reconciles, in small records.

Each record is written by one module alone, the one that defines it; everything else reads it, and
says what happened through its methods. `HandoverState` is this module's; the others are the
listing's (which resolvers are published), the autoscaler's (what is owed), the requests' (wakes,
sleeps, traffic), our own writes', the conflicts' with other writers, the workers' (what each gets back),
the doze's, and what is counted of an observed one.

Nothing here is needed to be right after a restart: the state is derived from the cluster, settles
start again, and the times that matter for sleeping are in the object's status. Times are the loop's
unless a record says otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping

from elasti.api.states import State
from elasti.operator.model.doze import DozeRecord
from elasti.operator.model.facts import ClusterSnapshot, TriggerJudgement
from elasti.operator.model.findings import Finding
from elasti.operator.model.observing import ObservingState
from elasti.operator.model.own_writes import OwnWrites
from elasti.operator.model.records import AutoscalerState, ListingState, ScaleConflict
from elasti.operator.model.requests import RequestState
from elasti.operator.model.targets import ScaleTarget, ScaleView
from elasti.operator.model.workers import WorkerState
from kubeloop.controller.reconcile import Request


class Activity(enum.Enum):
    """The listed resolvers' answer about arrivals since the slice was published."""

    UNKNOWN = "unknown"
    QUIET = "quiet"
    BUSY = "busy"


class Park(enum.Enum):
    """How far the write of zero replicas has come."""

    NOT_TRIED = "not tried"
    REFUSED = "refused"


_SHORTEST = 0.001
"""Seconds below which a wait is over: times are sums of fractions."""
HELD_EVERY = 2.5
"""Seconds between two questions for how many connections wait; a quick wake-up needs none."""
AWAKE = (State.SERVE, State.RELEASING, State.WAKING)


@dataclasses.dataclass(slots=True)
class HandoverState:
    """Where the hand-over is. Written here alone."""

    target: ScaleTarget | None = None
    current: State | None = None  #: None: there is nothing to hand over
    why: str = ""  #: why it is in that state, for events
    refused: bool = False  #: the Service or the spec cannot be handed over at all, or is suspended
    engaged_at: float | None = None  #: when our slice joined the pods'
    look: float = 0.0  #: for how long it must be there, if longer than the engage settle
    least_settle: float = 0.0  #: the engage settle, if longer than the installation's
    asked_at: float | None = None  #: when resolvers were last asked during a look
    ready_since: Mapping[str, float] = dataclasses.field(default_factory=dict)  #: by endpoint
    activity: Activity = Activity.UNKNOWN  #: the resolvers' last answer
    held: int = 0  #: the connections that they hold while pods start
    held_due: float | None = None  #: when they are asked for it; None: with the next reconcile
    park: Park = Park.NOT_TRIED
    park_problem: str = ""  #: why it could not be parked
    parked_here: bool = False  #: this leader parked the target, and has not seen it up since
    stopping: frozenset[str] = frozenset()  #: endpoints that were ready when it was parked
    owned_uid: str = ""  #: the target whose replicas are ours; "" once it was up
    decided_on: ScaleView | None = None  #: the scale that the decision to park was made about
    kind_failures: int = 0  #: reconciles in a row in which the target's kind could not be watched
    loss_slot: float | None = None  #: when this target is woken because no resolver is ready
    sliced_at: float = -math.inf  #: when a slice of ours was last seen
    drains: bool = False  #: the user wants pods out of rotation before they stop
    drained_at: float | None = None  #: when they were first, in that state
    undrained_at: float = -math.inf  #: when they were let in again
    finalizing_since: float | None = None
    waking_since: float | None = None  #: when it was first to wake
    reported: frozenset[Finding] = frozenset()  #: what the last reconcile recorded events about
    judged: TriggerJudgement | None = None  #: what the last status says of time and triggers
    #: the state, and when its report began to wait for the next
    withheld: tuple[State | None, float] | None = None

    # Where it goes

    def enter(self, current: State, why: str) -> None:
        """Begin a state."""
        self.current, self.why = current, why
        self.park, self.park_problem = Park.NOT_TRIED, ""
        self.activity, self.asked_at = Activity.UNKNOWN, None
        self.drained_at, self.held = None, 0
        if current not in (State.DRAINING, State.PARKING):
            self.engaged_at = None
        if current is State.PARKING:
            self.ready_since = {}  # by then a pod that is ready may already be stopping
        if current is State.RELEASING:
            self.stopping = frozenset()  # what has been ready for the whole settle was not stopped

    def suspend(self, current: State | None) -> None:
        """There is nothing to hand over: it is nowhere, or traffic goes to the pods without us."""
        self.current = current

    def aim_at(self, target: ScaleTarget) -> bool:
        """Track this target. Returns True if it changed; state about the old one is dropped."""
        changed = self.target not in (None, target)
        if changed:
            self.current, self.engaged_at, self.decided_on = None, None, None
            self.parked_here, self.owned_uid = False, ""
            self.kind_failures = 0
        self.target = target
        return changed

    # Observations

    def note(self, snapshot: ClusterSnapshot) -> None:
        """Record when the observed conditions began to hold."""
        self.kind_failures = self.kind_failures + 1 if snapshot.kind_unusable else 0
        self.refused = snapshot.is_refused
        self.look = snapshot.es.spec.look_seconds
        self.least_settle = snapshot.path.least_settle
        self.drains = snapshot.es.spec.sleep.drain == "Selector" and snapshot.may_drain
        if self.current is State.DRAINING:
            if self.drained_at is not None and not snapshot.drained:
                self.note_park_refused("another writer changed the Service's selector")
            out = snapshot.drained and not snapshot.in_rotation
            if not out or self.drained_at is None:
                self.drained_at = snapshot.now if out else None
        if not snapshot.pods_left:
            self.stopping = frozenset()
        if snapshot.slices:
            self.sliced_at = snapshot.now
        if not snapshot.resolvers_lost_for:
            self.loss_slot = None
        if snapshot.ready is not None:
            self.ready_since = {
                name: self.ready_since.get(name, snapshot.now) for name in snapshot.ready
            }

    def note_activity(self, activity: Activity, now: float) -> None:
        """The resolvers answered."""
        self.activity, self.asked_at = activity, now

    def note_held(self, held: int, now: float) -> None:
        """So many connections wait for pods; of the first of them, an event is sent."""
        self.held, self.held_due = held, now + HELD_EVERY if held else None

    # Actions

    def decide_on(self, view: ScaleView | None) -> None:
        """An attempt to park begins, based on the target's present scale."""
        self.decided_on = view

    def note_parked(self, uid: str, ready: frozenset[str] | None) -> None:
        """The target of this uid was set to zero, with these endpoints."""
        self.parked_here, self.owned_uid, self.stopping = True, uid, ready or frozenset()

    def note_owned(self, uid: str) -> None:
        """The replicas of a target at zero are ours, as far as its kind allows it."""
        self.owned_uid = uid

    def note_park_refused(self, problem: str) -> None:
        """The target could not be set to zero, or should not be."""
        self.park, self.park_problem = Park.REFUSED, problem

    def note_undrained(self, now: float) -> None:
        """The pods come back into rotation: from now on the public Service's slices count."""
        self.ready_since, self.undrained_at = {}, now

    def note_step(self, now: float, *, listed: bool, at_zero: bool) -> None:
        """A step's writes were made."""
        if self.current is not State.WAKING:
            self.waking_since = None
        elif self.waking_since is None:
            self.waking_since, self.held_due = now, now + HELD_EVERY
        if self.current is State.ENGAGING and listed and self.engaged_at is None:
            self.engaged_at = now
        if self.current in AWAKE:
            self.parked_here, self.owned_uid = False, ""
            if not at_zero:
                self.loss_slot = None

    def reserve_loss_slot(self, slot: float) -> None:
        """No resolver is there: the target is woken at this time."""
        self.loss_slot = slot

    def note_reported(self, findings: frozenset[Finding]) -> None:
        """Events were recorded about these."""
        self.reported = findings

    def withhold(self, now: float, longest: float) -> float:
        """Delay the report of this state; returns how many more seconds it may wait, 0 if it is due."""
        if self.withheld is None or self.withheld[0] is not self.current:
            self.withheld = (self.current, now)
        left = self.withheld[1] + longest - now
        left = left if left >= _SHORTEST else 0.0
        self.withheld = self.withheld if left else None
        return left

    def note_judged(self, judged: TriggerJudgement) -> None:
        """Status says this of time and triggers."""
        self.judged = judged

    def finalizing_for(self, now: float) -> float:
        """Return for how long the end has been under way; it begins with the first call."""
        if self.finalizing_since is None:
            self.finalizing_since = now
        return now - self.finalizing_since

    # Deductions

    def settled_ready(self, now: float, settle: float) -> bool:
        """Whether one endpoint has been ready for the whole release settle."""
        return any(now - since >= settle for since in self.ready_since.values())


@dataclasses.dataclass(slots=True)
class ServiceState:
    """One ElastiService and the Service that it names; another of either begins again."""

    uid: str
    service: str
    handover: HandoverState = dataclasses.field(default_factory=HandoverState)
    listing: ListingState = dataclasses.field(default_factory=ListingState)
    autoscaler: AutoscalerState = dataclasses.field(default_factory=AutoscalerState)
    requests: RequestState = dataclasses.field(default_factory=RequestState)
    own_writes: OwnWrites = dataclasses.field(default_factory=OwnWrites)
    conflict: ScaleConflict = dataclasses.field(default_factory=ScaleConflict)
    workers: WorkerState = dataclasses.field(default_factory=WorkerState)
    doze: DozeRecord = dataclasses.field(default_factory=DozeRecord)
    observing: ObservingState = dataclasses.field(default_factory=ObservingState)
    notified: frozenset[str] = frozenset()  #: the notifier's: what it knows of

    @property
    def waking(self) -> bool:
        """Whether pods start, or their requests grow back."""
        return self.current is State.WAKING or self.doze.waking

    @property
    def current(self) -> State | None:
        """The state of the hand-over; None if there is nothing to hand over."""
        return self.handover.current

    def enter(self, current: State, why: str) -> None:
        """Begin a state of the hand-over, in every record that it concerns."""
        self.handover.enter(current, why)
        if current is State.ENGAGING:
            self.listing.forget_queries()

    def look(self, settle: float) -> float:
        """Return for how long our slice must be beside the pods' before a park, in seconds.

        A request to sleep stands for what triggers say, and so for their look.
        """
        return settle if is_in_force(self) else max(settle, self.handover.look)

    def settled_engaging(self, now: float, settle: float) -> bool:
        """Whether our slice has been beside the pods' for that long."""
        since = self.handover.engaged_at
        return since is not None and now - since >= self.look(settle)

    def settled_draining(self, now: float, settle: float) -> bool:
        """Whether the pods have been out of rotation for that long."""
        since = self.handover.drained_at
        return since is not None and now - since >= settle

    def may_park(self, now: float, settle: float, *, drained: bool) -> bool:
        """Whether it is ready for the park, or past it; `drained`: with its pods out of rotation, if it wants that."""
        if self.current is State.DRAINING:
            return not drained or self.settled_draining(now, settle)
        if self.current is State.WAKING:
            # Without pods of its own all its traffic goes to the resolver already.
            since = self.handover.waking_since
            return since is not None and now - since >= settle and not self.handover.ready_since
        ready = self.settled_engaging(now, settle) and not (drained and self.handover.drains)
        return ready or self.current in (State.PROXY, State.PARKING)

    def ask_due(self, settle: float) -> float | None:
        """Return when resolvers are to be asked during a look, on the loop's clock; None: at its end alone."""
        since = self.handover.asked_at or self.handover.engaged_at
        return since + settle if since is not None and self.look(settle) > settle else None

    def aim_at(self, target: ScaleTarget) -> None:
        """Be about this target."""
        if self.handover.aim_at(target):
            self.own_writes.forget_scale()
            self.conflict = ScaleConflict()

    def end_observing(self) -> None:
        """It is enforced: what was counted is over, and so is an end that had begun."""
        self.handover.finalizing_since = None
        if self.observing.began:
            self.observing = ObservingState()

    def note(self, snapshot: ClusterSnapshot) -> None:
        """Keep what the next decisions need of a snapshot."""
        self.handover.note(snapshot)
        self.listing.note_unlabelled(snapshot.unlabelled)
        for name, version in snapshot.cached_slices.items():
            self.own_writes.slices.caught_up(name, version)
        for name, version in snapshot.lost_slices.items():
            self.own_writes.slices.gone(name, version)
        if snapshot.cached_scale:
            self.own_writes.scale_caught_up(snapshot.cached_scale)


def is_in_force(state: ServiceState) -> bool:
    """Whether a request stands for the cooldown and the triggers now."""
    request = state.requests.sleep
    if request is None or request.superseded or state.requests.last_attempt >= request.since:
        return False
    # A new leader has not derived the state yet.
    dozes = state.doze.status is not None and not state.doze.waking
    return request.asleep_at is None or dozes or state.current in (None, State.PROXY)


class StateStore:
    """All of them, by name."""

    def __init__(self) -> None:
        self._by_request: dict[Request, ServiceState] = {}

    def of(self, request: Request, uid: str, service: str) -> ServiceState:
        """Return the state of an object; a new, empty one if another object has taken its name."""
        state = self._by_request.get(request)
        if state is None or (state.uid, state.service) != (uid, service):
            state = self._by_request[request] = ServiceState(uid, service)
        return state

    def find(self, request: Request) -> ServiceState | None:
        """Return what is known, if anything."""
        return self._by_request.get(request)

    def forget(self, request: Request) -> None:
        """The object is gone."""
        self._by_request.pop(request, None)

    def items(self) -> list[tuple[Request, ServiceState]]:
        """Return all."""
        return list(self._by_request.items())
