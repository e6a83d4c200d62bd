"""A pod's status, computed from what is known of it, and the state restored from a status. Pure.

Conditions of others, which readiness gates wait for, are read and never written.

A pod that ran under a kubelet before this one has lost its processes with that one: what its status
calls running has ended with an unknown result, and runs again if its policy says so, after the init
containers. A pod that had come to its end does not change.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from devkube.kubelet.pod_types import (
    TERMINAL,
    ContainerSpec,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    KubeletPod,
    KubeletPodStatus,
)
from devkube.kubelet.pods.plan import should_restart
from devkube.kubelet.pods.state import (
    ContainerExit,
    ContainerRun,
    ContainerStage,
    Moment,
    PodState,
    StopReason,
)
from kubeloop.objects.core import PodCondition, PodIP
from kubeloop.objects.times import format_time, parse_time

_LOST_CODE = 137
_LOST_REASON = "ContainerStatusUnknown"
_LOST_MESSAGE = "The container could not be located when the pod was terminated"


def conditions(
    pod: KubeletPod,
    state: PodState,
    status: KubeletPodStatus,
    *,
    before: KubeletPodStatus,
    now: str,
) -> tuple[PodCondition, ...]:
    """Return this kubelet's conditions; one that did not change keeps its time."""
    made = (
        _ready_to_start(state),
        _initialized(pod, state, status.phase),
        _ready(pod, status),
        _containers_ready(status),
        PodCondition("PodScheduled", "True"),
    )
    return tuple(_timed(item, before, now, pod.metadata.generation) for item in made)


def _timed(made: PodCondition, before: KubeletPodStatus, now: str, generation: int) -> PodCondition:
    known = before.condition(made.type)
    since = now
    if known is not None and known.status == made.status and known.last_transition_time:
        since = known.last_transition_time
    return PodCondition(made.type, made.status, made.reason, made.message, since, generation)


def _ready_to_start(state: PodState) -> PodCondition:
    there = state.is_prepared and not state.finished
    return PodCondition("PodReadyToStartContainers", "True" if there else "False")


def _initialized(pod: KubeletPod, state: PodState, phase: str) -> PodCondition:
    if phase == "Succeeded":
        return PodCondition("Initialized", "True", "PodCompleted")
    init = [] if state.initialized else pod.spec.init_containers
    incomplete = [item.name for item in init if not state.containers[item.name].succeeded]
    if not incomplete:
        return PodCondition("Initialized", "True")
    text = f"containers with incomplete status: [{' '.join(incomplete)}]"
    return PodCondition("Initialized", "False", "ContainersNotInitialized", text)


def _containers_ready(status: KubeletPodStatus) -> PodCondition:
    match status.phase:
        case "Succeeded":
            return PodCondition("ContainersReady", "False", "PodCompleted")
        case "Failed":
            return PodCondition("ContainersReady", "False", "PodFailed")
    unready = [item.name for item in status.container_statuses if not item.ready]
    if not unready:
        return PodCondition("ContainersReady", "True")
    text = f"containers with unready status: [{' '.join(unready)}]"
    return PodCondition("ContainersReady", "False", "ContainersNotReady", text)


def _ready(pod: KubeletPod, status: KubeletPodStatus) -> PodCondition:
    containers = _containers_ready(status)
    if not containers.is_true:
        return PodCondition("Ready", "False", containers.reason, containers.message)
    fine = {item.type for item in pod.status.conditions if item.is_true}
    shut = [g.condition_type for g in pod.spec.readiness_gates if g.condition_type not in fine]
    if shut:
        text = f"the conditions of readiness gates are not True: {', '.join(shut)}"
        return PodCondition("Ready", "False", "ReadinessGatesNotReady", text)
    return PodCondition("Ready", "True")


def compute_status(
    pod: KubeletPod, state: PodState, *, before: KubeletPodStatus, host: str, now: dt.datetime
) -> KubeletPodStatus:
    """Return the status; `before` is the one last written, whose transition times go on."""
    status = KubeletPodStatus(
        phase=_phase(pod, state),
        reason=before.reason,
        message=before.message,
        host_ip=host,
        host_ips=(PodIP(host),),
        pod_ip=state.address or before.pod_ip,
        pod_ips=(PodIP(state.address),) if state.address else before.pod_ips,
        start_time=before.start_time or format_time(state.started_at.wall),
        observed_generation=pod.metadata.generation,
        init_container_statuses=_statuses(pod, state, init=True),
        container_statuses=_statuses(pod, state, init=False),
    )
    made = conditions(pod, state, status, before=before, now=format_time(now))
    return msgspec.structs.replace(status, conditions=made)


# Containers


def _statuses(pod: KubeletPod, state: PodState, *, init: bool) -> tuple[ContainerStatus, ...]:
    containers = pod.spec.init_containers if init else pod.spec.containers
    return tuple(
        _container(pod, state, container, state.containers[container.name], init=init)
        for container in containers
    )


def _container(
    pod: KubeletPod, state: PodState, container: ContainerSpec, run: ContainerRun, *, init: bool
) -> ContainerStatus:
    present, last = _states(pod, state, run, init=init)
    return ContainerStatus(
        name=container.name,
        state=present,
        last_state=last,
        ready=run.ready or (init and run.succeeded),
        restart_count=run.attempt,
        image=container.image,
        container_id=run.container_id,
        started=run.started,
    )


def _states(
    pod: KubeletPod, state: PodState, run: ContainerRun, *, init: bool
) -> tuple[ContainerState, ContainerState]:
    last = ContainerState(terminated=_terminated(run.last)) if run.last else ContainerState()
    if run.stage is ContainerStage.RUNNING:
        since = format_time(run.started_at) if run.started_at else None
        return ContainerState(running=ContainerStateRunning(since)), last
    if run.stage is ContainerStage.EXITED and run.exit is not None:
        ended = ContainerState(terminated=_terminated(run.exit))
        again = should_restart(pod, run.exit.code, init=init)
        if run.waiting is not None and again and state.ending is None:
            return ContainerState(waiting=run.waiting), ended
        return ended, last
    waiting = run.waiting or ContainerStateWaiting(_default_reason(pod, state, init=init))
    return ContainerState(waiting=waiting), last


def _default_reason(pod: KubeletPod, state: PodState, *, init: bool) -> str:
    pending = bool(pod.spec.init_containers) and not state.initialized
    return "PodInitializing" if pending or (init and not state.address) else "ContainerCreating"


def _terminated(ended: ContainerExit) -> ContainerStateTerminated:
    return ContainerStateTerminated(
        exit_code=ended.code,
        reason=ended.reason,
        message=ended.message,
        started_at=format_time(ended.started_at) if ended.started_at else None,
        finished_at=format_time(ended.at.wall),
        container_id=ended.container_id,
    )


# Phase


def _phase(pod: KubeletPod, state: PodState) -> str:
    if state.finished:
        return _final_phase(pod, state)
    init = [] if state.initialized else pod.spec.init_containers
    if any(not state.containers[container.name].succeeded for container in init):
        return "Pending"
    others = [run for run in _main_runs(pod, state) if run.stage is not ContainerStage.RUNNING]
    if any(run.exit is None and run.last is None for run in others):
        return "Pending"
    is_over = state.ending is not None and len(others) == len(pod.spec.containers)
    if not is_over or pod.spec.restart_policy == "Always":
        return "Running"
    if all(run.succeeded for run in others):
        return "Succeeded"
    return "Failed" if pod.spec.restart_policy == "Never" else "Running"


def _main_runs(pod: KubeletPod, state: PodState) -> list[ContainerRun]:
    return [state.containers[container.name] for container in pod.spec.containers]


def _final_phase(pod: KubeletPod, state: PodState) -> str:
    if state.ending is None:
        return pod.status.phase  # it had ended before this kubelet saw it
    if state.ending.why is StopReason.INIT_FAILED:
        return "Failed"
    return "Succeeded" if all(run.succeeded for run in _main_runs(pod, state)) else "Failed"


def restore_state(pod: KubeletPod, now: Moment) -> PodState:
    """Return the state to begin with."""
    is_terminal = pod.status.phase in TERMINAL
    runs = {c.name: _run(pod.status.container(c.name), now) for c in pod.spec.containers}
    for container in pod.spec.init_containers:
        run = _run(pod.status.container(container.name), now)
        runs[container.name] = run if is_terminal else ContainerRun(attempt=run.attempt)
    return PodState(
        containers=runs,
        started_at=now,
        initialized=is_terminal,
        # One that is being deleted still has to be removed.
        finished=is_terminal and not pod.is_deleted,
    )


def _run(status: ContainerStatus | None, now: Moment) -> ContainerRun:
    if status is None:
        return ContainerRun()
    ended = status.state.terminated or status.last_state.terminated
    if status.state.running is None and ended is None:
        return ContainerRun(attempt=status.restart_count)
    if status.state.running is not None or ended is None:
        ended = ContainerStateTerminated(
            _LOST_CODE, _LOST_REASON, _LOST_MESSAGE, container_id=status.container_id
        )
    return ContainerRun(
        stage=ContainerStage.EXITED,
        attempt=status.restart_count,
        container_id=ended.container_id,
        exit=ContainerExit(
            code=ended.exit_code,
            reason=ended.reason,
            message=ended.message,
            at=Moment(now.loop, _time(ended.finished_at) or now.wall),
            container_id=ended.container_id,
            started_at=_time(ended.started_at),
        ),
    )


def _time(text: str | None) -> dt.datetime | None:
    return parse_time(text) if text else None
