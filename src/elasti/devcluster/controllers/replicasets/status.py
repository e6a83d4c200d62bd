"""A ReplicaSet's status, counted from its pods. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.controllers.pods import is_available
from elasti.devcluster.controllers.workloads import ReplicaSetStatus, WorkloadCondition
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from elasti.devcluster.controllers.pods import Pod
    from elasti.devcluster.controllers.workloads import ReplicaSet

FAILURE = "ReplicaFailure"


def count_status(
    replica_set: ReplicaSet,
    active: Sequence[Pod],
    *,
    terminating: int,
    failure: str | None,
    now: dt.datetime,
) -> ReplicaSetStatus:
    """Count; `failure` is why pods could not be made or deleted."""
    spec = replica_set.spec
    wanted_labels = ((spec.template.get("metadata") or {}).get("labels") or {}).items()
    ready = [pod for pod in active if pod.is_ready]
    return ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=sum(
            wanted_labels <= (pod.metadata.labels or {}).items() for pod in active
        ),
        ready_replicas=len(ready),
        available_replicas=sum(is_available(pod, spec.min_ready_seconds, now) for pod in ready),
        terminating_replicas=terminating,
        observed_generation=replica_set.metadata.generation,
        conditions=_conditions(replica_set, len(active), failure, now),
    )


def _conditions(
    replica_set: ReplicaSet, active: int, failure: str | None, now: dt.datetime
) -> tuple[WorkloadCondition, ...] | None:
    present = replica_set.status.conditions or ()
    others = tuple(condition for condition in present if condition.type != FAILURE)
    if failure is None:
        return others or None
    if len(others) < len(present):
        return present
    reason = "FailedCreate" if active < replica_set.spec.replicas else "FailedDelete"
    condition = WorkloadCondition(
        type=FAILURE,
        status="True",
        reason=reason,
        message=failure,
        last_transition_time=format_time(now),
    )
    return (*others, condition)
