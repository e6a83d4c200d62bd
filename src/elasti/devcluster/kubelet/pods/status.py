"""A pod's status, computed from what is known of it. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.objects.status import (
    Address,
    ContainerState,
    ContainerStatus,
    PodStatus,
    Running,
    Terminated,
    Waiting,
)
from elasti.devcluster.kubelet.pods.conditions import conditions
from elasti.devcluster.kubelet.pods.restarts import should_restart
from elasti.devcluster.kubelet.pods.state import Stage, Why
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    import datetime as dt

    from elasti.devcluster.kubelet.objects.containers import Container
    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.pods.state import ContainerRun, Exit, PodState

_DEADLINE = "DeadlineExceeded"
_DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


def compute_status(
    pod: Pod, state: PodState, *, before: PodStatus, host: str, now: dt.datetime
) -> PodStatus:
    """Return the status; `before` is the one last written, whose transition times go on."""
    overdue = state.ending is not None and state.ending.why is Why.DEADLINE
    phase = _phase(pod, state)
    status = PodStatus(
        phase=phase,
        reason=_DEADLINE if overdue else before.reason,
        message=_DEADLINE_MESSAGE if overdue else before.message,
        host_ip=host,
        host_ips=(Address(host),),
        pod_ip=state.address or before.pod_ip,
        pod_ips=(Address(state.address),) if state.address else before.pod_ips,
        start_time=before.start_time or format_time(state.started_at.wall),
        observed_generation=pod.metadata.generation,
        init_container_statuses=_statuses(pod, state, init=True),
        container_statuses=_statuses(pod, state, init=False),
    )
    return _with_conditions(pod, state, status, before, now)


def _with_conditions(
    pod: Pod, state: PodState, status: PodStatus, before: PodStatus, now: dt.datetime
) -> PodStatus:
    made = conditions(pod, state, status, before=before, now=format_time(now))
    fields = {name: getattr(status, name) for name in PodStatus.__struct_fields__}
    return PodStatus(**{**fields, "conditions": made})


# Containers


def _statuses(pod: Pod, state: PodState, *, init: bool) -> tuple[ContainerStatus, ...]:
    containers = pod.spec.init_containers if init else pod.spec.containers
    return tuple(
        _container(pod, state, container, state.containers[container.name], init=init)
        for container in containers
    )


def _container(
    pod: Pod, state: PodState, container: Container, run: ContainerRun, *, init: bool
) -> ContainerStatus:
    present, last = _states(pod, state, container, run, init=init)
    ready = run.ready or (init and not container.is_sidecar and run.succeeded)
    return ContainerStatus(
        name=container.name,
        state=present,
        last_state=last,
        ready=ready,
        restart_count=run.attempt,
        image=container.image,
        container_id=run.container_id,
        started=run.started,
    )


def _states(
    pod: Pod, state: PodState, container: Container, run: ContainerRun, *, init: bool
) -> tuple[ContainerState, ContainerState]:
    last = ContainerState(terminated=_terminated(run.last)) if run.last else ContainerState()
    if run.stage is Stage.RUNNING:
        since = format_time(run.started_at) if run.started_at else None
        return ContainerState(running=Running(since)), last
    if run.stage is Stage.EXITED and run.exit is not None:
        ended = ContainerState(terminated=_terminated(run.exit))
        again = should_restart(pod, container, run.exit.code, init=init)
        if run.waiting is not None and again and state.ending is None:
            return ContainerState(waiting=run.waiting), ended
        return ended, last
    waiting = run.waiting or Waiting(_default_reason(pod, state, init=init))
    return ContainerState(waiting=waiting), last


def _default_reason(pod: Pod, state: PodState, *, init: bool) -> str:
    pending = bool(pod.spec.init_containers) and not state.initialized
    return "PodInitializing" if pending or (init and not state.address) else "ContainerCreating"


def _terminated(ended: Exit) -> Terminated:
    return Terminated(
        exit_code=ended.code,
        reason=ended.reason,
        message=ended.message,
        started_at=format_time(ended.started_at) if ended.started_at else None,
        finished_at=format_time(ended.at.wall),
        container_id=ended.container_id,
    )


# Phase


@dataclasses.dataclass(slots=True)
class _Count:
    waiting: int = 0
    running: int = 0
    stopped: int = 0
    succeeded: int = 0


def _phase(pod: Pod, state: PodState) -> str:
    if state.finished or (state.ending is not None and state.ending.why is Why.DEADLINE):
        return _final_phase(pod, state)
    if not state.initialized and _init_is_pending(pod, state):
        return "Pending"
    count = _count(pod, state)
    if count.waiting:
        return "Pending"
    over = state.ending is not None and not count.running and pod.spec.restart_policy != "Always"
    if over and count.stopped == count.succeeded:
        return "Succeeded"
    if over and pod.spec.restart_policy == "Never":
        return "Failed"
    return "Running"


def _init_is_pending(pod: Pod, state: PodState) -> bool:
    for container in pod.spec.init_containers:
        run = state.containers[container.name]
        if container.is_sidecar:
            if not run.started:
                return True
        elif not run.succeeded:
            return True
    return False


def _count(pod: Pod, state: PodState) -> _Count:
    count = _Count()
    for container in pod.spec.containers:
        run = state.containers[container.name]
        if run.stage is Stage.RUNNING:
            count.running += 1
        elif run.exit is not None or run.last is not None:
            count.stopped += 1
            count.succeeded += run.succeeded
        else:
            count.waiting += 1
    return count


def _final_phase(pod: Pod, state: PodState) -> str:
    if state.ending is None:
        return pod.status.phase  # it had ended before this kubelet saw it
    if state.ending.why in (Why.DEADLINE, Why.INIT_FAILED):
        return "Failed"
    runs = [state.containers[container.name] for container in pod.spec.containers]
    return "Succeeded" if all(run.succeeded for run in runs) else "Failed"
