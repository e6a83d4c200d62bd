"""A pod's conditions. Pure.

Those of others, which readiness gates wait for, are read and never written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.objects.status import Condition
from elasti.devcluster.kubelet.pods.state import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.objects.status import PodStatus
    from elasti.devcluster.kubelet.pods.state import PodState


def conditions(
    pod: Pod, state: PodState, status: PodStatus, *, before: PodStatus, now: str
) -> tuple[Condition, ...]:
    """Return this kubelet's conditions; one that did not change keeps its time."""
    made = (
        _ready_to_start(state),
        _initialized(pod, state, status.phase),
        _ready(pod, status),
        _containers_ready(pod, status),
        Condition("PodScheduled", "True"),
    )
    return tuple(_timed(item, before, now, pod.metadata.generation) for item in made)


def _timed(made: Condition, before: PodStatus, now: str, generation: int) -> Condition:
    known = before.condition(made.type)
    since = now
    if known is not None and known.status == made.status and known.last_transition_time:
        since = known.last_transition_time
    return Condition(made.type, made.status, made.reason, made.message, since, generation)


def _ready_to_start(state: PodState) -> Condition:
    there = state.is_prepared and not state.finished
    return Condition("PodReadyToStartContainers", "True" if there else "False")


def _initialized(pod: Pod, state: PodState, phase: str) -> Condition:
    if phase == "Succeeded":
        return Condition("Initialized", "True", "PodCompleted")
    incomplete = [] if state.initialized else list(_incomplete(pod, state))
    if not incomplete:
        return Condition("Initialized", "True")
    text = f"containers with incomplete status: [{' '.join(incomplete)}]"
    return Condition("Initialized", "False", "ContainersNotInitialized", text)


def _incomplete(pod: Pod, state: PodState) -> Iterator[str]:
    for container in pod.spec.init_containers:
        run = state.containers[container.name]
        done = run.started and run.stage is Stage.RUNNING if container.is_sidecar else run.succeeded
        if not done:
            yield container.name


def _containers_ready(pod: Pod, status: PodStatus) -> Condition:
    match status.phase:
        case "Succeeded":
            return Condition("ContainersReady", "False", "PodCompleted")
        case "Failed":
            return Condition("ContainersReady", "False", "PodFailed")
    sidecars = {container.name for container in pod.spec.init_containers if container.is_sidecar}
    watched = [item for item in status.init_container_statuses if item.name in sidecars]
    unready = [item.name for item in (*watched, *status.container_statuses) if not item.ready]
    if not unready:
        return Condition("ContainersReady", "True")
    text = f"containers with unready status: [{' '.join(unready)}]"
    return Condition("ContainersReady", "False", "ContainersNotReady", text)


def _ready(pod: Pod, status: PodStatus) -> Condition:
    containers = _containers_ready(pod, status)
    if not containers.is_true:
        return Condition("Ready", "False", containers.reason, containers.message)
    problems = [
        text for gate in pod.spec.readiness_gates if (text := _gate(pod, gate.condition_type))
    ]
    if problems:
        return Condition("Ready", "False", "ReadinessGatesNotReady", ", ".join(problems))
    return Condition("Ready", "True")


def _gate(pod: Pod, kind: str) -> str:
    """Say what keeps a gate shut; nothing where it is open."""
    found = pod.status.condition(kind)
    if found is None:
        return f'corresponding condition of pod readiness gate "{kind}" does not exist.'
    if not found.is_true:
        return f'the status of pod readiness gate "{kind}" is not "True", but {found.status}'
    return ""
