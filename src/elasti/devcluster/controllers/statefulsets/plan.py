"""Which pods of a StatefulSet to make or delete next, and its status. Pure.

OrderedReady does one thing at a time: pods come in ascending order, each after the one before it is
available, and go in descending order. Parallel makes and deletes all at once. An update replaces
pods from the highest number down to the partition, one after another, in both.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers.pods import is_available
from elasti.devcluster.controllers.statefulsets.identity import (
    ordinal_of,
    revision_of,
    start_of,
)
from elasti.devcluster.controllers.workloads import StatefulSetStatus

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from elasti.devcluster.controllers.pods import Pod
    from elasti.devcluster.controllers.statefulsets.revisions import History, Revision
    from elasti.devcluster.controllers.workloads import StatefulSet


@dataclasses.dataclass(slots=True)
class StatefulPlan:
    """What to write: pods by number and revision, and pods to delete."""

    create: list[tuple[int, Revision]] = dataclasses.field(default_factory=list)
    delete: list[Pod] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A StatefulSet and its pods."""

    stateful_set: StatefulSet
    pods: Sequence[Pod]
    history: History
    now: dt.datetime

    @property
    def is_ordered(self) -> bool:
        """Whether pods come and go one by one."""
        return self.stateful_set.spec.pod_management_policy != "Parallel"

    @property
    def partition(self) -> int:
        """The number from which on pods are updated; older ones keep their revision."""
        rolling = self.stateful_set.spec.update_strategy.rolling_update
        return start_of(self.stateful_set) + (rolling.partition if rolling is not None else 0)

    @property
    def wanted(self) -> range:
        """The numbers of the pods that should be."""
        start = start_of(self.stateful_set)
        return range(start, start + self.stateful_set.spec.replicas)

    def numbered(self) -> dict[int, Pod]:
        """Return the pods by number."""
        numbers = {ordinal_of(self.stateful_set, pod): pod for pod in self.pods}
        return {number: pod for number, pod in numbers.items() if number >= 0}

    def is_healthy(self, pod: Pod) -> bool:
        """Whether it is available and stays."""
        seconds = self.stateful_set.spec.min_ready_seconds
        return not pod.is_deleting and is_available(pod, seconds, self.now)

    def revision_for(self, number: int) -> Revision:
        """Return what a new pod of that number is made of."""
        rolls = self.stateful_set.spec.update_strategy.type == "RollingUpdate"
        return self.history.current if rolls and number < self.partition else self.history.update


def plan_pods(seen: Observed) -> StatefulPlan:
    """Return the next step."""
    plan = StatefulPlan()
    if seen.stateful_set.metadata.deletion_timestamp is not None:
        return plan
    if not _fill(seen, plan) or not _condemn(seen, plan):
        return plan
    if seen.stateful_set.spec.update_strategy.type != "OnDelete":
        _update(seen, plan)
    return plan


def _fill(seen: Observed, plan: StatefulPlan) -> bool:
    """Make what is missing; whether the next stage may follow."""
    pods = seen.numbered()
    for number in seen.wanted:
        pod = pods.get(number)
        if pod is None:
            plan.create.append((number, seen.revision_for(number)))
        elif pod.is_terminal:
            if not pod.is_deleting:
                plan.delete.append(pod)
        elif seen.is_healthy(pod):
            continue
        if seen.is_ordered:
            return False
    return True


def _condemn(seen: Observed, plan: StatefulPlan) -> bool:
    """Delete what is too many, the highest number first; whether the next stage may follow."""
    pods = seen.numbered()
    condemned = sorted((number for number in pods if number not in seen.wanted), reverse=True)
    unhealthy = [n for n in sorted(pods) if not seen.is_healthy(pods[n])]
    in_range_first = sorted(unhealthy, key=lambda n: (n not in seen.wanted, n))
    first = in_range_first[0] if in_range_first else None
    for number in condemned:
        pod = pods[number]
        if not pod.is_deleting:
            # Of several that are not available, only the first may go: the others may recover.
            if seen.is_ordered and not seen.is_healthy(pod) and number != first:
                return False
            plan.delete.append(pod)
        if seen.is_ordered:
            return False
    return True


def _update(seen: Observed, plan: StatefulPlan) -> None:
    pods = seen.numbered()
    for number in reversed(seen.wanted):
        pod = pods.get(number)
        if number < seen.partition or pod is None:
            return
        if revision_of(pod) != seen.history.update.name and not pod.is_deleting:
            if pod not in plan.delete:
                plan.delete.append(pod)
            return
        if not seen.is_healthy(pod):
            return


def count_status(seen: Observed) -> StatefulSetStatus:
    """Return the status; a finished update makes the new revision the current one."""
    stateful_set, history = seen.stateful_set, seen.history
    created = [pod for pod in seen.pods if pod.status.phase]
    ready = [pod for pod in created if pod.status.phase == "Running" and pod.is_ready]
    staying = [revision_of(pod) for pod in created if not pod.is_deleting]
    seconds = stateful_set.spec.min_ready_seconds
    status = StatefulSetStatus(
        observed_generation=stateful_set.metadata.generation,
        replicas=len(created),
        ready_replicas=len(ready),
        available_replicas=sum(is_available(pod, seconds, seen.now) for pod in ready),
        current_replicas=staying.count(history.current.name),
        updated_replicas=staying.count(history.update.name),
        current_revision=history.current.name,
        update_revision=history.update.name,
        collision_count=stateful_set.status.collision_count or 0,
        conditions=stateful_set.status.conditions,
    )
    wanted = stateful_set.spec.replicas
    done = (status.updated_replicas, status.ready_replicas, status.replicas) == (wanted,) * 3
    if done and stateful_set.spec.update_strategy.type == "RollingUpdate":
        return msgspec.structs.replace(
            status,
            current_replicas=status.updated_replicas,
            current_revision=status.update_revision,
        )
    return status
