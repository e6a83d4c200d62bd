"""The facts of one ElastiService: what was read, what was decided about it, and what follows."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

from elasti.api.conditions import Obstacle, Reason
from elasti.api.names import FINALIZER
from elasti.api.types import CapacityStatus, ElastiService
from elasti.operator.model.children import is_drained
from elasti.operator.model.doze import DozeView
from elasti.operator.model.findings import ARGO_KEY, Finding, refusal
from elasti.operator.model.records import AutoscalerRef
from elasti.operator.model.targets import ScaleTarget, UpdateObjInfo
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import EndpointSlice, Service, ServiceEndpoint


class Verdict(enum.Enum):
    """The decision from the evidence. LOOK: it may sleep soon; until then the resolver watches for arrivals."""

    SLEEP = "sleep"
    LOOK = "look"
    STAY = "stay"
    WAKE = "wake"


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The verdict, why, and what keeps the target awake: nothing exactly when it may sleep."""

    verdict: Verdict
    reason: str
    obstacle: Obstacle | None = None


class TriggerJudgement(NamedTuple):
    """All that time and triggers change about one ElastiService.

    If it equals that of the last reconcile, no new reconcile is needed. `calm`: which triggers have been
    quiet for long enough that status says so.
    """

    decision: Decision
    health: tuple[str | None, ...]
    calm: tuple[bool, ...] = ()


class TrafficPath(NamedTuple):
    """Whether traffic gets to the resolver, as far as is known: False or None with the reason.

    `names_pods`: endpoints name the resolver's pods. `least_settle`: the engage settle in seconds, if it is longer
    than the installation's.
    """

    names_pods: bool = True
    least_settle: float = 0.0
    reason: Reason = Reason.CLEAR
    message: str = ""
    holds: bool | None = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The data read for one ElastiService."""

    es: ElastiService
    now: float  #: on the loop's clock
    service: Service | None = None
    private: Service | None = None  #: the private Service
    target: UpdateObjInfo | None = None
    target_problem: str = ""  #: why there is no target
    kind_unusable: bool = False  #: the target's kind cannot be watched
    autoscaler: AutoscalerRef | None = None  #: what has to be paused for a sleep
    #: those that point at the resolver, ours or KubeElasti's, after our own writes
    slices: tuple[EndpointSlice, ...] = ()
    #: the versions that the cache has, "" for none
    cached_slices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cached_scale: str = ""  #: the target's version that the cache has
    #: those that we wrote, and the server does not have
    lost_slices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: those that no cache shows; None: the server was not asked
    unlabelled: tuple[EndpointSlice, ...] | None = None
    #: the ready endpoints that decide, of the private Service while the public one is drained; None: nothing depends on them
    ready: frozenset[str] | None = None
    ready_soon: bool = False  #: none is ready, but the private Service's slices have one
    in_rotation: bool = False  #: the drained Service's own slices still have a ready endpoint
    #: the private slices have an endpoint, which a pod has until it is gone
    pods_left: bool = False
    capacity: CapacityStatus | None = None  #: what a sleep releases, if it is counted
    resolvers: tuple[ServiceEndpoint, ...] = ()  #: those that are ready
    resolvers_lost_for: float = 0.0  #: seconds without a ready one
    #: the resolver port of each Service port
    ports: Mapping[int, int] = dataclasses.field(default_factory=dict)
    owned: bool = True  #: no older ElastiService names the Service
    findings: tuple[Finding, ...] = ()
    workers: tuple[ScaleTarget, ...] = ()  #: those of `spec.targets` that are not ignored
    lost_workers: tuple[ScaleTarget, ...] = ()  #: those of them that are not there
    doze: DozeView | None = None  #: None: it neither dozes nor may now
    path: TrafficPath = dataclasses.field(default=TrafficPath())

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.es.metadata.namespace

    @property
    def request(self) -> Request:
        """The reconcile key."""
        return Request(self.es.metadata.namespace, self.es.metadata.name)

    @property
    def waits_for_pods(self) -> bool:
        """Whether a target that is to wake has to stay at zero until its pods are gone."""
        return self.at_zero and self.target is not None and self.target.recreates

    @property
    def at_zero(self) -> bool:
        """Whether the target asks for no pods."""
        return self.target is not None and self.target.at_zero

    @property
    def drained(self) -> bool:
        """Whether our key keeps the pods out of the Service's rotation."""
        return is_drained(self.service)

    @property
    def may_drain(self) -> bool:
        """Whether the Service may have a key that no pod has: Argo Rollouts stops no pod behind one that it leads."""
        return self.service is None or ARGO_KEY not in (self.service.spec.selector or {})

    @property
    def service_problem(self) -> str:
        """The problem to report if the Service is missing."""
        return f"there is no Service {self.es.spec.service} in namespace {self.namespace}"

    @property
    def absences(self) -> tuple[Finding, ...]:
        """Findings for a missing target or Service."""
        found = []
        if self.target is None:
            found.append(Finding(Reason.TARGET_MISSING, self.target_problem))
        if self.service is None:
            found.append(Finding(Reason.SERVICE_MISSING, self.service_problem))
        return tuple(found)

    @property
    def unready(self) -> Finding | None:
        """The finding that makes it not ready; None if it is ready."""
        # A mistake in the spec may be why the rest cannot be found.
        invalid = [finding for finding in self.findings if finding.reason == Reason.INVALID_SPEC]
        return refusal((*invalid, *self.absences, *self.findings))

    @property
    def leads_elsewhere(self) -> bool:
        """Whether no pod of the target can ever be in the Service's rotation, so that none is waited for."""
        elsewhere = (Reason.SELECTS_OTHER_PODS, Reason.NO_SUCH_PORT)
        return any(finding.reason in elsewhere for finding in self.findings)

    @property
    def is_refused(self) -> bool:
        """Whether the target cannot sleep at all, as things are, or its user wants us out of it."""
        out = self.es.spec.suspended or self.ends_enforcing
        return out or refusal(self.findings) is not None

    @property
    def ends_enforcing(self) -> bool:
        """Whether it is to be observed, and something of ours may still be in its traffic."""
        return self.es.spec.observes and FINALIZER in (self.es.metadata.finalizers or ())

    @property
    def observed_only(self) -> bool:
        """Whether nothing is done about it."""
        return self.es.spec.observes and not self.ends_enforcing


UNDECIDED = Decision(Verdict.STAY, "not decided")


class Judgement(NamedTuple):
    """The joint decision of all ElastiServices on the same target, and what this one waits for.

    `partners_settled`: every other one is ready for the park. `waits_for`: dependencies that do not serve yet.
    """

    decision: Decision = UNDECIDED
    partners_settled: bool = True
    waits_for: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts(ClusterSnapshot):
    """Everything that is known of one ElastiService at one moment."""

    decision: Decision = UNDECIDED
    partners_settled: bool = True  #: every other ElastiService on the target is ready for the park
    #: dependencies that do not serve yet, and that a wake-up still waits for
    waits_for: tuple[str, ...] = ()
    lost_wake: bool = False  #: no resolver for too long, and it is this one's turn to wake
    lacks_loss_slot: bool = False  #: the same, but it has no turn yet
    may_undrain: bool = False  #: pods may come back into rotation
