"""A pod's state when this kubelet first sees it. Pure.

A pod that ran under a kubelet before this one has lost its processes with that one: what its status
calls running has ended, nobody knows how, and runs again if its policy says so, after the init
containers. A pod that had come to its end stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.objects.pods import TERMINAL
from elasti.devcluster.kubelet.pods.state import ContainerRun, Exit, Moment, PodState, Stage
from kubeloop.objects.times import parse_time

if TYPE_CHECKING:
    import datetime as dt

    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.objects.status import ContainerStatus, Terminated

_LOST_CODE = 137
_LOST_REASON = "ContainerStatusUnknown"
_LOST_MESSAGE = "The container could not be located when the pod was terminated"


def restore(pod: Pod, now: Moment) -> PodState:
    """Return the state to begin with."""
    is_terminal = pod.status.phase in TERMINAL
    runs = {c.name: _run(pod.status.container(c.name), now) for c in pod.spec.containers}
    for container in pod.spec.init_containers:
        run = _run(pod.status.container(container.name), now)
        again = not is_terminal and not container.is_sidecar
        runs[container.name] = ContainerRun(attempt=run.attempt) if again else run
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
    state, last = status.state, status.last_state.terminated
    before = None if last is None else _exit(last, now)
    if state.running is not None:
        return _over(status, _lost(status, now), before)
    if state.terminated is not None:
        return _over(status, _exit(state.terminated, now), before)
    if before is not None:
        return _over(status, before, None)
    return ContainerRun(attempt=status.restart_count)


def _over(status: ContainerStatus, ended: Exit, last: Exit | None) -> ContainerRun:
    return ContainerRun(
        stage=Stage.EXITED,
        attempt=status.restart_count,
        container_id=ended.container_id,
        exit=ended,
        last=last,
    )


def _lost(status: ContainerStatus, now: Moment) -> Exit:
    assert status.state.running is not None
    return Exit(
        code=_LOST_CODE,
        reason=_LOST_REASON,
        message=_LOST_MESSAGE,
        at=now,
        container_id=status.container_id,
        started_at=_time(status.state.running.started_at),
    )


def _exit(seen: Terminated, now: Moment) -> Exit:
    return Exit(
        code=seen.exit_code,
        reason=seen.reason,
        message=seen.message,
        at=Moment(now.loop, _time(seen.finished_at) or now.wall),
        container_id=seen.container_id,
        started_at=_time(seen.started_at),
    )


def _time(text: str | None) -> dt.datetime | None:
    return parse_time(text) if text else None
