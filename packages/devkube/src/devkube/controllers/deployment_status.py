"""A Deployment's status: counts, whether enough is available, whether it gets on. Pure."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from devkube.controllers.deployment_rolling import max_unavailable, total
from devkube.controllers.objects import Deployment, DeploymentStatus, WorkloadCondition
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    from devkube.controllers.deployment_plan import ReplicaSetGenerations

_FOREVER = 2**31 - 1
_AVAILABLE, _PROGRESSING, _FAILURE = "Available", "Progressing", "ReplicaFailure"
_COMPLETE, _TIMED_OUT = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"


def has_deadline(deployment: Deployment) -> bool:
    """Whether progress is judged at all."""
    seconds = deployment.spec.progress_deadline_seconds
    return seconds is not None and seconds != _FOREVER


def find_condition(status: DeploymentStatus, kind: str) -> WorkloadCondition | None:
    """Return the condition of a type."""
    return next((c for c in status.conditions or () if c.type == kind), None)


def with_condition(
    status: DeploymentStatus,
    kind: str,
    verdict: str,
    reason: str,
    message: str,
    *,
    now: dt.datetime,
    touch: bool = False,
) -> DeploymentStatus:
    """Set a condition; an equal one is kept, unless `touch` renews its update time."""
    old = find_condition(status, kind)
    if old is not None and (old.status, old.reason) == (verdict, reason) and not touch:
        return status
    stamp = format_time(now)
    since = old.last_transition_time if old is not None and old.status == verdict else stamp
    condition = WorkloadCondition(
        type=kind,
        status=verdict,
        reason=reason,
        message=message,
        last_update_time=stamp,
        last_transition_time=since,
    )
    others = _without(status, kind).conditions or ()
    return msgspec.structs.replace(status, conditions=(*others, condition))


def _without(status: DeploymentStatus, kind: str) -> DeploymentStatus:
    rest = tuple(c for c in status.conditions or () if c.type != kind)
    return msgspec.structs.replace(status, conditions=rest or None)


def counted(
    deployment: Deployment, status: DeploymentStatus, sets: ReplicaSetGenerations, now: dt.datetime
) -> DeploymentStatus:
    """Return the status with the counts of the ReplicaSets and the Available condition."""
    everything, spec = sets.all, deployment.spec
    available = sum(item.status.available_replicas for item in everything)
    status = msgspec.structs.replace(
        status,
        observed_generation=deployment.metadata.generation,
        replicas=sum(item.status.replicas for item in everything),
        updated_replicas=sets.new.status.replicas if sets.new is not None else 0,
        ready_replicas=sum(item.status.ready_replicas for item in everything),
        available_replicas=available,
        unavailable_replicas=max(0, total(everything) - available),
    )
    if available >= spec.replicas - max_unavailable(spec):
        reason, message = "MinimumReplicasAvailable", "Deployment has minimum availability."
        return with_condition(status, _AVAILABLE, "True", reason, message, now=now)
    reason, message = "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
    return with_condition(status, _AVAILABLE, "False", reason, message, now=now)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Whether all wanted pods are new and available, and none is old."""
    wanted = deployment.spec.replicas
    counts = (status.updated_replicas, status.replicas, status.available_replicas)
    seen = status.observed_generation >= deployment.metadata.generation
    return seen and counts == (wanted, wanted, wanted)


def judged(
    deployment: Deployment, status: DeploymentStatus, sets: ReplicaSetGenerations, now: dt.datetime
) -> DeploymentStatus:
    """Return a counted status with the verdict on progress and the ReplicaSets' failures."""
    if not has_deadline(deployment):
        status = _without(status, _PROGRESSING)
    elif not _was_complete(deployment, status):
        status = _progress(deployment, status, sets, now)
    return _failures(status, sets, now)


def _was_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    present = find_condition(deployment.status, _PROGRESSING)
    done = present is not None and present.reason == _COMPLETE
    return done and status.replicas == status.updated_replicas


def _progress(
    deployment: Deployment, status: DeploymentStatus, sets: ReplicaSetGenerations, now: dt.datetime
) -> DeploymentStatus:
    name = deployment.metadata.name
    who = f'Deployment "{name}"' if sets.new is None else f'ReplicaSet "{sets.new.metadata.name}"'
    if is_complete(deployment, status):
        message = f"{who} has successfully progressed."
        return with_condition(status, _PROGRESSING, "True", _COMPLETE, message, now=now)
    if _gets_on(deployment.status, status):
        message, reason = f"{who} is progressing.", "ReplicaSetUpdated"
        return with_condition(status, _PROGRESSING, "True", reason, message, now=now, touch=True)
    if _is_late(deployment, status, now):
        message = f"{who} has timed out progressing."
        return with_condition(status, _PROGRESSING, "False", _TIMED_OUT, message, now=now)
    return status


def _gets_on(old: DeploymentStatus, new: DeploymentStatus) -> bool:
    return (
        new.updated_replicas > old.updated_replicas
        or new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        or new.ready_replicas > old.ready_replicas
        or new.available_replicas > old.available_replicas
    )


def _is_late(deployment: Deployment, status: DeploymentStatus, now: dt.datetime) -> bool:
    present = find_condition(status, _PROGRESSING)
    if present is None or present.reason == _COMPLETE:
        return False
    if present.reason == _TIMED_OUT:
        return True
    due = _deadline(deployment, present)
    return due is not None and due < now


def _deadline(deployment: Deployment, condition: WorkloadCondition) -> dt.datetime | None:
    seconds = deployment.spec.progress_deadline_seconds
    if seconds is None or not condition.last_update_time:
        return None
    return parse_time(condition.last_update_time) + dt.timedelta(seconds=seconds)


def _failures(
    status: DeploymentStatus, sets: ReplicaSetGenerations, now: dt.datetime
) -> DeploymentStatus:
    newest_first = [*([sets.new] if sets.new is not None else []), *sets.old]
    conditions = (c for s in newest_first for c in s.status.conditions or () if c.type == _FAILURE)
    failure = next(conditions, None)
    if failure is None:
        return _without(status, _FAILURE)
    return with_condition(
        status, _FAILURE, failure.status, failure.reason, failure.message, now=now
    )


def next_check(deployment: Deployment, status: DeploymentStatus, now: dt.datetime) -> float | None:
    """Return the seconds until lack of progress would show; None if that cannot be."""
    present = find_condition(status, _PROGRESSING)
    due_at_all = has_deadline(deployment) and not deployment.spec.paused
    if present is None or not due_at_all or present.reason == _TIMED_OUT:
        return None
    due = _deadline(deployment, present)
    if is_complete(deployment, status) or due is None:
        return None
    # Times are written in whole seconds; a second later the deadline has passed for sure.
    return max(0.0, (due - now).total_seconds()) + 1.0
