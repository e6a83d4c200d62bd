"""What may happen to a pod, and what is known then. Pure.

Everything that happens reaches a pod's worker as a fact; `observe` folds it into the state.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, TypeAlias

from elasti.devcluster.kubelet.objects.status import Waiting
from elasti.devcluster.kubelet.pods.state import ContainerRun, Exit, PodState, ProbeKind, Stage, Why

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.pods.state import Moment


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
    """A container cannot be made as it is configured; `retry_at` is when to look again."""

    name: str
    waiting: Waiting
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
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Probed:
    """A probe changed its mind. `started`: it was the startup probe, and now others decide."""

    name: str
    kind: ProbeKind
    healthy: bool
    ready_at_once: bool = False
    """After a startup probe: nothing else decides about readiness."""


@dataclasses.dataclass(frozen=True, slots=True)
class HookFailed:
    """The postStart hook failed."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """Something that the pod refers to changed: what was blocked may be tried again."""


Fact: TypeAlias = (
    Prepared | Changed | Started | Blocked | StartFailed | Exited | Probed | HookFailed
)

START_ERROR = 128


def observe(state: PodState, fact: Fact) -> PodState:
    """Return what is known after a fact."""
    if isinstance(fact, Prepared):
        return dataclasses.replace(state, address=fact.address, preparing=False)
    if isinstance(fact, Changed):
        runs = {n: dataclasses.replace(r, retry_at=None) for n, r in state.containers.items()}
        return dataclasses.replace(state, containers=runs)
    run = state.containers[fact.name]
    return state.with_container(fact.name, _changed(run, fact))


def _changed(
    run: ContainerRun, fact: Started | Blocked | StartFailed | Exited | Probed | HookFailed
) -> ContainerRun:
    match fact:
        case Started():
            return _started(run, fact)
        case Blocked(waiting=waiting, retry_at=retry_at):
            return dataclasses.replace(run, stage=Stage.WAITING, waiting=waiting, retry_at=retry_at)
        case StartFailed():
            return _start_failed(run, fact)
        case Exited():
            return _exited(run, fact)
        case Probed():
            return _probed(run, fact)
        case HookFailed():
            return dataclasses.replace(run, unhealthy=Why.POST_START)


def _started(run: ContainerRun, fact: Started) -> ContainerRun:
    return dataclasses.replace(
        run,
        stage=Stage.RUNNING,
        container_id=fact.container_id,
        started_at=fact.at.wall,
        started=fact.started,
        ready=fact.ready,
        waiting=None,
        unhealthy=None,
    )


def _start_failed(run: ContainerRun, fact: StartFailed) -> ContainerRun:
    ended = Exit(
        code=START_ERROR,
        reason="StartError",
        message=fact.message,
        at=fact.at,
        container_id=fact.container_id,
        started_at=dt.datetime.fromtimestamp(0, dt.UTC),
    )
    return dataclasses.replace(
        run,
        stage=Stage.EXITED,
        exit=ended,
        container_id=fact.container_id,
        waiting=Waiting("RunContainerError", fact.message),
        stopping=None,
    )


def _exited(run: ContainerRun, fact: Exited) -> ContainerRun:
    ended = Exit(
        code=fact.code,
        reason="Completed" if fact.code == 0 else "Error",
        message=fact.message,
        at=fact.at,
        container_id=run.container_id,
        started_at=run.started_at,
    )
    return dataclasses.replace(
        run,
        stage=Stage.EXITED,
        exit=ended,
        waiting=None,
        started=False,
        ready=False,
        unhealthy=None,
        stopping=None,
    )


def _probed(run: ContainerRun, fact: Probed) -> ContainerRun:
    if run.stage is not Stage.RUNNING:
        return run  # the answer came from a run that is over
    match fact.kind:
        case ProbeKind.READINESS:
            return dataclasses.replace(run, ready=fact.healthy)
        case ProbeKind.LIVENESS:
            return dataclasses.replace(run, unhealthy=None if fact.healthy else Why.LIVENESS)
        case ProbeKind.STARTUP if fact.healthy:
            return dataclasses.replace(run, started=True, ready=fact.ready_at_once)
        case ProbeKind.STARTUP:
            return dataclasses.replace(run, unhealthy=Why.STARTUP)
