"""The known state of a pod that runs here, and the facts that change it. Pure.

A pod's worker owns one `PodState`. Times are pairs: the loop's, for durations, and the wall's, for
people. Everything that happens reaches the worker as a fact; `observe` folds it into the state.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping
from typing import TypeAlias

from devkube.kubelet.pod_types import ContainerStateWaiting

START_ERROR = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, on both clocks."""

    loop: float
    wall: dt.datetime


class ContainerStage(enum.Enum):
    """Where a container is in its life."""

    WAITING = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    EXITED = enum.auto()


class ProbeKind(enum.Enum):
    """The decision of a probe."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


class StopReason(enum.Enum):
    """Why a container, or the whole pod, is stopped."""

    DELETED = enum.auto()
    COMPLETED = enum.auto()
    INIT_FAILED = enum.auto()
    LIVENESS = enum.auto()
    STARTUP = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExit:
    """How a run ended."""

    code: int
    reason: str
    at: Moment
    message: str = ""
    container_id: str = ""
    started_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RestartBackoff:
    """How long a container that ended must wait before it runs again; see `restarts`."""

    delay: float = 0.0
    since: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One container. `exit` is how the present run ended, `last` the one before."""

    stage: ContainerStage = ContainerStage.WAITING
    attempt: int = 0
    """The number of the present or coming run, from 0: the restart count."""
    container_id: str = ""
    started_at: dt.datetime | None = None
    started: bool = False
    ready: bool = False
    exit: ContainerExit | None = None
    last: ContainerExit | None = None
    waiting: ContainerStateWaiting | None = None
    retry_at: float | None = None
    backoff: RestartBackoff = RestartBackoff()
    unhealthy: StopReason | None = None
    stopped_by: float | None = None
    """When the patience of a stop under way ends (loop time)."""

    @property
    def is_active(self) -> bool:
        """Whether there is, or will be in a moment, a process."""
        return self.stage in (ContainerStage.STARTING, ContainerStage.RUNNING)

    @property
    def succeeded(self) -> bool:
        """Whether it ran to a good end."""
        return self.stage is ContainerStage.EXITED and self.exit is not None and self.exit.code == 0


@dataclasses.dataclass(frozen=True, slots=True)
class PodEnding:
    """The pod as a whole is being stopped."""

    why: StopReason
    grace: float
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod."""

    containers: Mapping[str, ContainerRun]
    started_at: Moment
    preparing: bool = False
    address: str = ""
    initialized: bool = False
    ending: PodEnding | None = None
    finished: bool = False
    removed: bool = False

    @property
    def is_prepared(self) -> bool:
        """Whether it has an address and its volumes."""
        return bool(self.address)

    def with_container(self, name: str, run: ContainerRun) -> PodState:
        """Return the state with one container changed."""
        return dataclasses.replace(self, containers={**self.containers, name: run})


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """The pod has an address, and its volumes are there."""

    address: str


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """A container runs. The flags say what it need not prove first."""

    name: str
    container_id: str
    at: Moment
    started: bool
    ready: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Blocked:
    """A container cannot be made as it is configured; `retry_at` is when to try again."""

    name: str
    waiting: ContainerStateWaiting
    retry_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class StartFailed:
    """A container was made, but its program did not start."""

    name: str
    container_id: str
    message: str
    at: Moment


@dataclasses.dataclass(frozen=True, slots=True)
class Exited:
    """A container's program ended."""

    name: str
    code: int
    at: Moment


@dataclasses.dataclass(frozen=True, slots=True)
class Probed:
    """A probe changed its mind. `started`: it was the startup probe, and now others decide."""

    name: str
    kind: ProbeKind
    healthy: bool
    ready_at_once: bool = False
    """After a startup probe: nothing else decides about readiness."""


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """Something that the pod refers to changed: what was blocked may be tried again."""


PodFact: TypeAlias = Prepared | Changed | Started | Blocked | StartFailed | Exited | Probed


def observe(state: PodState, fact: PodFact) -> PodState:
    """Return what is known after a fact."""
    if isinstance(fact, Prepared):
        return dataclasses.replace(state, address=fact.address, preparing=False)
    if isinstance(fact, Changed):
        runs = {n: dataclasses.replace(r, retry_at=None) for n, r in state.containers.items()}
        return dataclasses.replace(state, containers=runs)
    run = state.containers[fact.name]
    return state.with_container(fact.name, _changed(run, fact))


def _changed(
    run: ContainerRun, fact: Started | Blocked | StartFailed | Exited | Probed
) -> ContainerRun:
    match fact:
        case Started():
            return _started(run, fact)
        case Blocked(waiting=waiting, retry_at=retry_at):
            return dataclasses.replace(
                run, stage=ContainerStage.WAITING, waiting=waiting, retry_at=retry_at
            )
        case StartFailed():
            return _start_failed(run, fact)
        case Exited():
            return _exited(run, fact)
        case Probed():
            return _probed(run, fact)


def _started(run: ContainerRun, fact: Started) -> ContainerRun:
    return dataclasses.replace(
        run,
        stage=ContainerStage.RUNNING,
        container_id=fact.container_id,
        started_at=fact.at.wall,
        started=fact.started,
        ready=fact.ready,
        waiting=None,
        unhealthy=None,
    )


def _start_failed(run: ContainerRun, fact: StartFailed) -> ContainerRun:
    ended = ContainerExit(
        code=START_ERROR,
        reason="StartError",
        message=fact.message,
        at=fact.at,
        container_id=fact.container_id,
        started_at=dt.datetime.fromtimestamp(0, dt.UTC),
    )
    return dataclasses.replace(
        run,
        stage=ContainerStage.EXITED,
        exit=ended,
        container_id=fact.container_id,
        waiting=ContainerStateWaiting("RunContainerError", fact.message),
        stopped_by=None,
    )


def _exited(run: ContainerRun, fact: Exited) -> ContainerRun:
    ended = ContainerExit(
        code=fact.code,
        reason="Completed" if fact.code == 0 else "Error",
        at=fact.at,
        container_id=run.container_id,
        started_at=run.started_at,
    )
    return dataclasses.replace(
        run,
        stage=ContainerStage.EXITED,
        exit=ended,
        waiting=None,
        started=False,
        ready=False,
        unhealthy=None,
        stopped_by=None,
    )


def _probed(run: ContainerRun, fact: Probed) -> ContainerRun:
    if run.stage is not ContainerStage.RUNNING:
        return run  # the answer came from a run that is over
    match fact.kind:
        case ProbeKind.READINESS:
            return dataclasses.replace(run, ready=fact.healthy)
        case ProbeKind.LIVENESS:
            return dataclasses.replace(run, unhealthy=None if fact.healthy else StopReason.LIVENESS)
        case ProbeKind.STARTUP if fact.healthy:
            return dataclasses.replace(run, started=True, ready=fact.ready_at_once)
        case ProbeKind.STARTUP:
            return dataclasses.replace(run, unhealthy=StopReason.STARTUP)
