"""The next actions for a pod. Pure: `plan_pod`, from its spec and its known state.

The plan's own decisions are part of the state it returns (a container that is being started is not
started twice), so the worker keeps that state and carries out the actions, nothing else.

The first restart of a container is at once; from then on one that ends backs off, counted from its
end: 10 seconds, then twice as long each time, 5 minutes at most. One that ran for twice the longest
back-off starts over.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from devkube.kubelet.pod_types import ContainerSpec, ContainerStateWaiting, KubeletPod
from devkube.kubelet.pods.state import (
    ContainerRun,
    ContainerStage,
    Moment,
    PodEnding,
    PodState,
    RestartBackoff,
    StopReason,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Delays before restarts; tests take shorter ones."""

    first: float = 10.0
    longest: float = 300.0

    def rests_until(self, backoff: RestartBackoff, ended: float) -> float:
        """Return when a container that ended then may run again."""
        if backoff.delay == 0 or self._forgotten(backoff, ended):
            return ended
        return ended + backoff.delay

    def restarted(self, backoff: RestartBackoff, *, ended: float, now: float) -> RestartBackoff:
        """Return the back-off after a restart."""
        if backoff.delay == 0 or self._forgotten(backoff, ended):
            return RestartBackoff(self.first, now)
        return RestartBackoff(min(2 * backoff.delay, self.longest), now)

    def _forgotten(self, backoff: RestartBackoff, ended: float) -> bool:
        return ended - backoff.since > 2 * self.longest


def should_restart(pod: KubeletPod, code: int, *, init: bool) -> bool:
    """Whether a container that ended with a code is to run again."""
    policy = pod.spec.restart_policy
    if init:
        return code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def span(seconds: float) -> str:
    """Write a duration as messages do: 10s, 2m40s, 5m0s."""
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g}m{rest:g}s"


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareSandbox:
    """Give the pod an address and its volumes."""


@dataclasses.dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a container for the n-th time, from 0."""

    name: str
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop a container; repeated with an earlier deadline it hurries."""

    name: str
    why: StopReason
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReportBackOff:
    """Report that a container backs off before its next start."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class FinishPod:
    """Everything has ended: release what the pod had; remove it if it was deleted."""

    remove: bool


WorkerAction: TypeAlias = (
    PrepareSandbox | StartContainer | StopContainer | ReportBackOff | FinishPod
)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The state to go on with, what to do now, and when to plan again if nothing happens."""

    state: PodState
    actions: tuple[WorkerAction, ...] = ()
    wake_at: float | None = None


def plan_pod(pod: KubeletPod, state: PodState, now: Moment, policy: RestartPolicy) -> WorkerPlan:
    """Decide what to do."""
    return _Planner(pod, state, now, policy).decide()


class _Planner:
    """One decision, built up step by step."""

    def __init__(
        self, pod: KubeletPod, state: PodState, now: Moment, policy: RestartPolicy
    ) -> None:
        self._pod = pod
        self._state = state
        self._now = now
        self._policy = policy
        self._actions: list[WorkerAction] = []
        self._wake_at: float | None = None

    def decide(self) -> WorkerPlan:
        """Return the whole plan."""
        if not self._state.finished:
            self._note_ending()
            if self._state.ending is None:
                self._go_on()
            # Going on may have found that there is nothing left to do.
            if self._state.ending is not None:
                self._wind_down()
        elif self._pod.is_deleted and not self._state.removed:
            self._finish()
        return WorkerPlan(self._state, tuple(self._actions), self._wake_at)

    # Ending

    def _note_ending(self) -> None:
        pod = self._pod
        if pod.is_deleted:
            grace = pod.metadata.deletion_grace_period_seconds
            self._end(
                StopReason.DELETED,
                pod.spec.termination_grace_period_seconds if grace is None else grace,
            )

    def _end(self, why: StopReason, grace: float) -> None:
        """Begin to end the pod; a second call may only shorten the grace period of the first."""
        ending = self._state.ending
        deadline = self._now.loop + grace
        if ending is not None and why is ending.why and grace >= ending.grace:
            return
        if ending is not None:
            deadline = min(deadline, ending.deadline)
        self._set(ending=PodEnding(why, grace, deadline))

    def _wind_down(self) -> None:
        ending = self._state.ending
        assert ending is not None
        every = (*self._pod.spec.init_containers, *self._pod.spec.containers)
        active = [container for container in every if self._run(container).is_active]
        for container in active:
            self._stop(container, ending.why, ending.deadline)
        if not active:
            self._finish()

    def _finish(self) -> None:
        self._set(finished=True, removed=self._pod.is_deleted)
        self._actions.append(FinishPod(remove=self._pod.is_deleted))

    def _stop(self, container: ContainerSpec, why: StopReason, deadline: float) -> None:
        run = self._run(container)
        if run.stage is not ContainerStage.RUNNING:
            return  # it is being started: stopped when that is known to have worked
        if run.stopped_by is not None and run.stopped_by <= deadline:
            return
        self._put(container, stopped_by=deadline)
        self._actions.append(StopContainer(container.name, why, deadline))

    # Going on

    def _go_on(self) -> None:
        if not self._state.is_prepared:
            if not self._state.preparing:
                self._set(preparing=True)
                self._actions.append(PrepareSandbox())
            return
        if not self._initialize():
            return
        self._set(initialized=True)
        for container in self._pod.spec.containers:
            self._keep_running(container, init=False)
        if all(self._is_over(container) for container in self._pod.spec.containers):
            self._end(StopReason.COMPLETED, self._pod.spec.termination_grace_period_seconds)

    def _initialize(self) -> bool:
        """Work through the init containers; True when the others may run."""
        if self._state.initialized:
            return True
        for container in self._pod.spec.init_containers:
            if not self._run(container).succeeded:
                self._keep_running(container, init=True)
                if self._is_over(container, init=True):
                    self._end(
                        StopReason.INIT_FAILED, self._pod.spec.termination_grace_period_seconds
                    )
                return False
        return True

    def _keep_running(self, container: ContainerSpec, *, init: bool) -> None:
        run = self._run(container)
        match run.stage:
            case ContainerStage.WAITING:
                self._start_when_due(container, run)
            case ContainerStage.RUNNING if run.unhealthy is not None:
                grace = self._pod.spec.termination_grace_period_seconds
                self._stop(container, run.unhealthy, self._now.loop + grace)
            case ContainerStage.EXITED if not self._is_over(container, init=init):
                self._restart_when_due(container, run)

    def _start_when_due(self, container: ContainerSpec, run: ContainerRun) -> None:
        if run.retry_at is not None and self._now.loop < run.retry_at:
            self._wake(run.retry_at)
            return
        self._put(container, stage=ContainerStage.STARTING, retry_at=None)
        self._actions.append(StartContainer(container.name, run.attempt))

    def _restart_when_due(self, container: ContainerSpec, run: ContainerRun) -> None:
        assert run.exit is not None
        ended = run.exit.at.loop
        due = self._policy.rests_until(run.backoff, ended)
        if self._now.loop < due:
            self._rest(container, run, due)
            return
        self._put(
            container,
            stage=ContainerStage.STARTING,
            attempt=run.attempt + 1,
            last=run.exit,
            exit=None,
            waiting=None,
            backoff=self._policy.restarted(run.backoff, ended=ended, now=self._now.loop),
        )
        self._actions.append(StartContainer(container.name, run.attempt + 1))

    def _rest(self, container: ContainerSpec, run: ContainerRun, due: float) -> None:
        self._wake(due)
        if run.waiting is not None and run.waiting.reason == "CrashLoopBackOff":
            return
        delay = span(run.backoff.delay)
        text = (
            f"back-off {delay} restarting failed container={container.name} pod={self._pod.title}"
        )
        self._put(container, waiting=ContainerStateWaiting("CrashLoopBackOff", text))
        self._actions.append(ReportBackOff(container.name))

    def _is_over(self, container: ContainerSpec, *, init: bool = False) -> bool:
        run = self._run(container)
        if run.stage is not ContainerStage.EXITED or run.exit is None:
            return False
        return not should_restart(self._pod, run.exit.code, init=init)

    # Bookkeeping

    def _run(self, container: ContainerSpec) -> ContainerRun:
        return self._state.containers[container.name]

    def _put(self, container: ContainerSpec, **changes: object) -> None:
        run = dataclasses.replace(self._run(container), **changes)  # type: ignore[arg-type]  # names are checked at run time
        self._state = self._state.with_container(container.name, run)

    def _set(self, **changes: object) -> None:
        self._state = dataclasses.replace(self._state, **changes)  # type: ignore[arg-type]  # names are checked at run time

    def _wake(self, at: float) -> None:
        self._wake_at = at if self._wake_at is None else min(at, self._wake_at)
