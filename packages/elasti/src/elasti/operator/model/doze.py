"""Pods whose requests can change, and what the leader remembers of a doze. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from elasti.api.states import DozeState
from elasti.api.types import DozeStatus
from elasti.api.usage import ContainerResources
from elasti.operator.model.findings import Finding
from kubeloop.objects.core import PodCondition
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.quantities import Quantity
from kubeloop.objects.times import unix_seconds

_TEMPLATE_LABELS = ("pod-template-hash", "rollouts-pod-template-hash", "controller-revision-hash")


class ResizePolicy(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a change of a resource does to a container."""

    resource_name: str = ""
    restart_policy: str = ""


class DozeContainer(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What of a container decides about a doze, in a pod's spec or its status."""

    name: str
    resources: ContainerResources | None = None
    resize_policy: tuple[ResizePolicy, ...] | None = None
    restart_policy: str | None = None

    def request(self, resource: str) -> Quantity | None:
        """Return what it requests of a resource."""
        return _quantity(getattr(self.resources and self.resources.requests, resource, None))

    def limit(self, resource: str) -> Quantity | None:
        """Return its limit of a resource."""
        return _quantity(getattr(self.resources and self.resources.limits, resource, None))


class DozePodSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod's containers."""

    containers: tuple[DozeContainer, ...] = ()
    init_containers: tuple[DozeContainer, ...] | None = None
    resources: ContainerResources | None = None
    node_name: str = ""


class DozePodStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a kubelet says of a pod."""

    phase: str = ""
    qos_class: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[DozeContainer, ...] | None = None
    init_container_statuses: tuple[DozeContainer, ...] | None = None


class DozePod(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod of a target that dozes or may."""

    metadata: ObjectMeta
    spec: DozePodSpec = DozePodSpec()
    status: DozePodStatus = DozePodStatus()

    @property
    def template(self) -> str:
        """The hash of its template; its own name if its controller leaves none."""
        labels = self.metadata.labels or {}
        return next((labels[key] for key in _TEMPLATE_LABELS if key in labels), self.metadata.name)

    @property
    def is_live(self) -> bool:
        """Whether it runs or will."""
        ended = self.status.phase in ("Succeeded", "Failed")
        return not ended and self.metadata.deletion_timestamp is None

    @property
    def is_ready(self) -> bool:
        """Whether its Ready condition is true."""
        found = self.condition("Ready")
        return found is not None and found.is_true

    @property
    def created_at(self) -> float:
        """When it was created, in seconds since 1970."""
        return unix_seconds(self.metadata.creation_timestamp)

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of a type."""
        return next((c for c in self.status.conditions or () if c.type == kind), None)

    def resizable(self) -> Iterator[tuple[str, int, DozeContainer]]:
        """Iterate over the containers that can be resized: the field, the index, the container."""
        for index, container in enumerate(self.spec.containers):
            yield "containers", index, container
        for index, container in enumerate(self.spec.init_containers or ()):
            if container.restart_policy == "Always":  # a sidecar
                yield "initContainers", index, container

    def actual(self, container: str, resource: str) -> Quantity | None:
        """Return the request that the kubelet reports; None if it reports none."""
        status = self.status
        for found in (*(status.container_statuses or ()), *(status.init_container_statuses or ())):
            if found.name == container:
                return found.request(resource)
        return None


def _quantity(value: object) -> Quantity | None:
    try:
        return None if value is None else Quantity.parse(str(value))
    except ValueError:
        return None


class DozeView(NamedTuple):
    """What was read for a doze.

    `minimum` and `ratio`: what LimitRanges ask of a container's requests, by resource. `usage`: the memory
    that containers use, in bytes, by pod and container. `moved`: these are not the pods of the target that
    the spec names now.
    """

    pods: tuple[DozePod, ...] = ()
    selector: str = ""
    findings: tuple[Finding, ...] = ()
    minimum: Mapping[str, Quantity] = {}
    ratio: Mapping[str, Quantity] = {}
    usage: Mapping[tuple[str, str], int] = {}
    moved: bool = False


@dataclasses.dataclass(slots=True)
class DozeRecord:
    """Where the doze is. Written here alone; times are the loop's."""

    state: DozeState = DozeState.FULL
    status: DozeStatus | None = None  #: what status has of it, or will have
    entered_at: float = -math.inf
    problem: str = ""  #: why the server refused the last change of requests
    stuck: str = ""  #: why pods do not have their originals back, as the condition has it
    stuck_reason: str = ""
    spare_asked: bool = False  #: one pod more, since it is stuck
    spare_problem: str = ""  #: why that pod is still there
    zero_due: bool = False  #: it has dozed for `zeroAfter`
    pause: float | None = None  #: when to look again, in seconds
    released: tuple[int, int] = (0, 0)  #: CPU in millicores and memory in bytes
    _view: tuple[float, DozeView] | None = None

    @property
    def waking(self) -> bool:
        """Whether requests grow back."""
        return self.state in (DozeState.GROWING, DozeState.STUCK)

    def recall(self, status: DozeStatus | None, state: DozeState, now: float) -> None:
        """Take over what the leader before has written, and the state that follows from it."""
        if self.status is None and status is not None:
            self.status = status
            self.enter(state, now)

    def enter(self, state: DozeState, now: float) -> None:
        """Begin a state."""
        self.state, self.entered_at = state, now
        self.problem = self.stuck = self.stuck_reason = self.spare_problem = ""
        self.spare_asked = False
        if state is DozeState.FULL:
            self.status, self.released = None, (0, 0)

    def note(self, status: DozeStatus) -> None:
        """Status has this, or will have."""
        self.status = status

    def note_released(self, cpu: int, memory: int) -> None:
        """The pods have given back so much."""
        self.released = cpu, memory

    def note_problem(self, problem: str) -> None:
        """The server refused a change."""
        self.problem = problem

    def note_spare_asked(self) -> None:
        """One pod more was asked for."""
        self.spare_asked = True

    def is_new_spare_problem(self, problem: str) -> bool:
        """The pod more cannot go; returns False if that is known."""
        known, self.spare_problem = self.spare_problem, problem
        return known != problem

    def note_stuck(self, reason: str, message: str) -> None:
        """Pods do not get their originals back."""
        self.stuck_reason, self.stuck = reason, message

    def note_due(self, *, zero: bool, pause: float | None) -> None:
        """Whether it may sleep at zero, and when to look again."""
        self.zero_due, self.pause = zero, pause

    def keep(self, view: DozeView, now: float) -> None:
        """Keep what was read for a while."""
        self._view = now, view

    def kept(self, now: float, longest: float) -> DozeView | None:
        """Return what was read, if that is recent enough for a target that does not doze."""
        fresh = self._view is not None and now - self._view[0] < longest
        return self._view[1] if self._view and fresh and self.state is DozeState.FULL else None
