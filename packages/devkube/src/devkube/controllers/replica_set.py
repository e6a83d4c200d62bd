"""The ReplicaSet controller: claims pods, creates or deletes some, counts them.

Which pods are created or deleted, and the status, are pure functions.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence

from devkube.controllers.context import BY_CONTROLLER, ControllerSpec, SharedInformers
from devkube.controllers.objects import (
    PODS,
    REPLICA_SET,
    REPLICA_SETS,
    ReplicaSet,
    ReplicaSetStatus,
    SlimPod,
    WorkloadCondition,
    is_available,
    next_availability,
)
from devkube.controllers.pod_control import (
    PodControl,
    claim_owned,
    orphans_of,
    owners_of,
    report_status,
    slow_start,
)
from kubeloop.client.errors import KubeError
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.objects.owners import controller_of
from kubeloop.objects.times import format_time

# A single step never makes or deletes more than this.
BURST = 500
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
_COST = "controller.kubernetes.io/pod-deletion-cost"

FAILURE = "ReplicaFailure"
NAME = "replicaset"
_COMPONENT = "replicaset-controller"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetPlan:
    """How many pods to create, or which to delete; never both."""

    create: int = 0
    delete: tuple[SlimPod, ...] = ()


def plan_replica_set(
    wanted: int, active: Sequence[SlimPod], *, related: Iterable[SlimPod]
) -> ReplicaSetPlan:
    """Compare the wanted number with the active pods.

    `related` are all pods of the same Deployment: of two equal pods the one on the fuller node goes.
    """
    surplus = len(active) - wanted
    if surplus <= 0:
        return ReplicaSetPlan(create=min(-surplus, BURST))
    return ReplicaSetPlan(delete=tuple(victims(active, related)[: min(surplus, BURST)]))


def victims(pods: Sequence[SlimPod], related: Iterable[SlimPod]) -> list[SlimPod]:
    """Return the pods in the order in which they can be spared.

    First those without a node, then pending before running, not ready before ready, by deletion
    cost, from the fullest node, and the youngest.
    """
    crowd = collections.Counter(pod.spec.node_name for pod in related if pod.is_active)
    youngest_first = sorted(
        pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True
    )
    return sorted(
        youngest_first,
        key=lambda pod: (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.is_ready,
            _deletion_cost(pod),
            -crowd[pod.spec.node_name],
        ),
    )


def _deletion_cost(pod: SlimPod) -> int:
    text = (pod.metadata.annotations or {}).get(_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0


def count_status(
    replica_set: ReplicaSet, active: Sequence[SlimPod], *, failure: str | None, now: dt.datetime
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


class ReplicaSetReconciler:
    """Brings one ReplicaSet's pods to the wanted number."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._sets = shared.resource(REPLICA_SETS)
        self.guard = ConsistencyGuard()
        self.guard.follow(PODS, shared.pods.store)
        self.guard.follow(REPLICA_SETS, shared.replica_sets.store)
        self._control = PodControl(shared, component=_COMPONENT, kind=REPLICA_SET, guard=self.guard)

    async def __call__(self, request: Request) -> Result | None:
        """Observe, claim, plan, write, count."""
        replica_set = self._shared.replica_sets.lister.find(*request)
        if replica_set is None:
            self.guard.clear(request)
            return None
        candidates = [pod for pod in self._candidates(replica_set) if pod.is_active]
        active = await claim_owned(
            self._control.pods, self._sets, replica_set, REPLICA_SET, candidates
        )
        failure = None
        if replica_set.metadata.deletion_timestamp is None:
            failure = await self._manage(replica_set, active)
        return await self._finish(replica_set, active, failure)

    def _candidates(self, replica_set: ReplicaSet) -> list[SlimPod]:
        meta, store = replica_set.metadata, self._shared.pods.store
        controlled = store.by_index(BY_CONTROLLER, meta.uid)
        living = self._control.tombstones.living(meta.uid, controlled)
        return [*living, *store.by_index(BY_CONTROLLER, orphans_of(meta.namespace))]

    async def _manage(self, replica_set: ReplicaSet, active: list[SlimPod]) -> KubeError | None:
        plan = plan_replica_set(
            replica_set.spec.replicas, active, related=self._related(replica_set)
        )
        if plan.create:
            template = replica_set.spec.template
            return await slow_start(
                plan.create, lambda: self._control.create_from(replica_set, template)
            )
        deletions = (self._control.delete(replica_set, pod) for pod in plan.delete)
        results = await asyncio.gather(*deletions, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, KubeError):
                raise result
        return next((error for error in results if isinstance(error, KubeError)), None)

    def _related(self, replica_set: ReplicaSet) -> Iterable[SlimPod]:
        """Return the pods of all ReplicaSets of the same Deployment."""
        owner = controller_of(replica_set.metadata.owner_references or ())
        family = [replica_set.metadata.uid]
        if owner is not None:
            siblings = self._shared.replica_sets.store.by_index(BY_CONTROLLER, owner.uid)
            family = [sibling.metadata.uid for sibling in siblings]
        for uid in family:
            yield from self._shared.pods.store.by_index(BY_CONTROLLER, uid)

    async def _finish(
        self, replica_set: ReplicaSet, active: list[SlimPod], failure: KubeError | None
    ) -> Result | None:
        now = self._shared.clock.now()
        text = None if failure is None else str(failure)
        status = count_status(replica_set, active, failure=text, now=now)
        await report_status(self.guard, self._sets, replica_set, status, always=("replicas",))
        if failure is not None:
            raise failure
        wait = next_availability(active, replica_set.spec.min_ready_seconds, now)
        return Result(requeue_after=wait) if wait else None


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    reconciler = ReplicaSetReconciler(shared)
    part = ControllerSpec.of(NAME, reconciler, workers=4, guard=reconciler.guard)
    part.controller.watch(shared.replica_sets)
    part.controller.watch(
        shared.pods, mapping=map_func(lambda pod: owners_of(pod, REPLICA_SET, shared.replica_sets))
    )
    return part
